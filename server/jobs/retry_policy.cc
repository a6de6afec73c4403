#include "server/jobs/retry_policy.h"

#include <algorithm>
#include <cmath>

namespace ampd {

bool IsRetryable(v1::Failure::Class failure_class) {
  switch (failure_class) {
    case v1::Failure::OUT_OF_MEMORY:
    case v1::Failure::GPU_FAULT:
    case v1::Failure::WORKER_CRASH:
    case v1::Failure::INTERNAL:
      return true;
    default:
      return false;
  }
}

bool ShouldRetry(v1::Failure::Class failure_class, int failures, int max_attempts) {
  return IsRetryable(failure_class) && failures < max_attempts;
}

absl::Duration RetryDelay(const v1::RetrySpec& retry, int failures, double draw) {
  const double first = retry.has_backoff_seconds() ? retry.backoff_seconds() : 1;
  const double longest = retry.has_max_backoff_seconds() ? retry.max_backoff_seconds() : 60;
  const double seconds = std::min(longest, std::ldexp(first, std::clamp(failures - 1, 0, 60)));
  return absl::Seconds(seconds * (0.8 + 0.4 * draw));
}

}  // namespace ampd
