// Whether and when a job that failed is tried again.
#ifndef AMPD_SERVER_JOBS_RETRY_POLICY_H_
#define AMPD_SERVER_JOBS_RETRY_POLICY_H_

#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

// True for classes that may pass by themselves: GPU_FAULT, WORKER_CRASH, INTERNAL, DISK_FULL.
bool IsRetryable(v1::Failure::Class failure_class);

// `failures` counts this failure, >= 1; `max_attempts` >= 1 is the spec's retry.max_attempts.
bool ShouldRetry(v1::Failure::Class failure_class, int failures, int max_attempts);

// Pause before the next attempt: 1, 2, 4, ... seconds after the 1st, 2nd, 3rd, ... failure, at most 60.
absl::Duration RetryDelay(int failures);

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_RETRY_POLICY_H_
