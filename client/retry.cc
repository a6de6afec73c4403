#include "client/retry.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace ampd::client {

bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    // A server that stops cancels the streams it serves.
    case absl::StatusCode::kCancelled:
      return true;
    default:
      // How a connection that breaks within an answer looks, with a code that depends on the moment.
      return absl::StrContains(status.message(), "RST_STREAM") || absl::StrContains(status.message(), "Stream removed");
  }
}

absl::Duration Backoff::Next() {
  const absl::Duration delay = next_;
  next_ = std::min(2 * next_, longest_);
  return delay;
}

}  // namespace ampd::client
