#include "server/jobs/retry_policy.h"

#include <algorithm>

namespace ampd {

bool IsRetryable(v1::Failure::Class failure_class) {
  return failure_class == v1::Failure::GPU_FAULT || failure_class == v1::Failure::WORKER_CRASH ||
         failure_class == v1::Failure::INTERNAL || failure_class == v1::Failure::DISK_FULL;
}

bool ShouldRetry(v1::Failure::Class failure_class, int failures, int max_attempts) {
  return IsRetryable(failure_class) && failures < max_attempts;
}

absl::Duration RetryDelay(int failures) { return absl::Seconds(std::min(60, 1 << std::clamp(failures - 1, 0, 6))); }

}  // namespace ampd
