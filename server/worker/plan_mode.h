// `ampd-worker --plan`.
#ifndef AMPD_SERVER_WORKER_PLAN_MODE_H_
#define AMPD_SERVER_WORKER_PLAN_MODE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ampd {

// A serialized PlanRequest to a serialized PlanResponse. What is wrong with the spec is in the response.
// INVALID_ARGUMENT when `request` is not a PlanRequest.
absl::StatusOr<std::string> PlanFromBytes(absl::string_view request);

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_PLAN_MODE_H_
