// Errors are absl::Status. An error says where it arose, the values involved and the node or field concerned.
#ifndef AMPD_ENGINE_CORE_STATUS_H_
#define AMPD_ENGINE_CORE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns from the current function when `expr`, an absl::Status, is an error.
#define AMPD_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                               \
    if (absl::Status ampd_status_ = (expr); !ampd_status_.ok()) return ampd_status_; \
  } while (false)

// Evaluates `expr`, an absl::StatusOr<T>; on an error returns it, else assigns the value to `lhs`.
#define AMPD_ASSIGN_OR_RETURN(lhs, expr) AMPD_ASSIGN_OR_RETURN_(AMPD_CONCAT_(ampd_or_, __LINE__), lhs, expr)
#define AMPD_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = *std::move(tmp)
#define AMPD_CONCAT_(a, b) AMPD_CONCAT_INNER_(a, b)
#define AMPD_CONCAT_INNER_(a, b) a##b

namespace ampd {

// `status` with "context: " before its message; OK stays OK. Payloads are kept.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_STATUS_H_
