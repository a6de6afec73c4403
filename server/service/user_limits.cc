#include "server/service/user_limits.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"
#include "server/scheduling/capability.h"

namespace ampd {
namespace {

// Of the priority in `field`; empty: it is within the limit.
std::vector<FieldViolation> PriorityViolations(std::string field, int priority, const Caller& caller,
                                               const UserLimits& limits) {
  if (caller.role == v1::ADMIN || priority <= limits.max_priority) return {};
  return {{std::move(field), absl::StrCat("is ", priority, "; only administrators give jobs more than ",
                                          limits.max_priority, " (auth.max_priority)")}};
}

absl::Status StatusOf(const std::vector<FieldViolation>& violations) {
  return violations.empty() ? absl::OkStatus() : InvalidFields(violations);
}

}  // namespace

absl::Status CheckUserLimits(const v1::JobSpec& spec, const Caller& caller, const UserLimits& limits) {
  std::vector<FieldViolation> violations = FieldViolationsOf(CheckDeviceQuota(spec, limits.max_running_devices));
  for (FieldViolation& one : PriorityViolations("resources.priority", spec.resources().priority(), caller, limits)) {
    violations.push_back(std::move(one));
  }
  return StatusOf(violations);
}

absl::Status CheckUserLimits(const v1::UpdateJobRequest& request, const Caller& caller, const UserLimits& limits) {
  if (!request.has_priority()) return absl::OkStatus();
  return StatusOf(PriorityViolations("priority", request.priority(), caller, limits));
}

}  // namespace ampd
