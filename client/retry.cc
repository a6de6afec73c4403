#include "client/retry.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"

namespace ampd::client {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr absl::Duration kShortest = absl::Milliseconds(10);

double Random() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  const absl::Duration asked =
      absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
  return std::max(asked, kShortest) * (1 + Random() / 2);
}

absl::Status UntilAdmitted(absl::Time deadline, const std::function<bool(absl::Duration)>& sleep,
                           const std::function<absl::Status()>& call) {
  while (true) {
    absl::Status status = call();
    const std::optional<absl::Duration> delay = RetryDelayOf(status);
    if (!delay || absl::Now() + *delay >= deadline || !sleep(*delay)) return status;
  }
}

bool IsTransient(const absl::Status& status) {
  if (RetryDelayOf(status)) return true;
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
