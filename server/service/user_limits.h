// What the jobs of one user may ask for at most.
#ifndef AMPD_SERVER_SERVICE_USER_LIMITS_H_
#define AMPD_SERVER_SERVICE_USER_LIMITS_H_

#include "absl/status/status.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "server/auth/caller.h"

namespace ampd {

struct UserLimits {
  // As SchedulingPolicy's: devices, of everybody's jobs; 0: no limit.
  int max_running_devices = 0;
  // resources.priority, where the caller is no ADMIN.
  int max_priority = 1000;
};

// Of a resolved spec that `caller` submits, has planned or retries. INVALID_ARGUMENT with each field that is beyond the
// limits.
absl::Status CheckUserLimits(const v1::JobSpec& spec, const Caller& caller, const UserLimits& limits);

// Likewise of a change of a job.
absl::Status CheckUserLimits(const v1::UpdateJobRequest& request, const Caller& caller, const UserLimits& limits);

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_USER_LIMITS_H_
