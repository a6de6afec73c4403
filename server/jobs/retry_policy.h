// Whether and when a job that failed is tried again.
#ifndef AMPD_SERVER_JOBS_RETRY_POLICY_H_
#define AMPD_SERVER_JOBS_RETRY_POLICY_H_

#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

// False for classes that come again whenever the same is done: INVALID_SPEC, DATA, DIVERGED and LIMIT; and for
// DISK_FULL, which is no failure of the job: it waits for room (core_disk.cc). Whether there is a device with memory
// for one that was OUT_OF_MEMORY is another matter (core_lifecycle.cc).
bool IsRetryable(v1::Failure::Class failure_class);

// `failures` counts this failure, >= 1; `max_attempts` >= 1 is the spec's retry.max_attempts.
bool ShouldRetry(v1::Failure::Class failure_class, int failures, int max_attempts);

// Pause before the next attempt: retry.backoff_seconds after the first failure, doubled with each further one, at most
// max_backoff_seconds (1 and 60 where the spec has none), times a factor from 0.8 to 1.2 that `draw`, in [0, 1), gives:
// jobs that failed together do not come back together.
absl::Duration RetryDelay(const v1::RetrySpec& retry, int failures, double draw);

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_RETRY_POLICY_H_
