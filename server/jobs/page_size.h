// How much of a list a client asks for at a time.
#ifndef AMPD_SERVER_JOBS_PAGE_SIZE_H_
#define AMPD_SERVER_JOBS_PAGE_SIZE_H_

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"

namespace ampd {

// Of a request's page_size: 100 for 0. INVALID_ARGUMENT, with the field, for what is not in 0..1000.
inline absl::StatusOr<int> PageSizeOf(int asked) {
  constexpr int kDefault = 100;
  constexpr int kMost = 1000;
  if (asked >= 0 && asked <= kMost) return asked == 0 ? kDefault : asked;
  return InvalidFields({{"page_size", absl::StrCat(asked, " is not in 1..", kMost)}});
}

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_PAGE_SIZE_H_
