#include "server/main/ending.h"

#include <algorithm>
#include <utility>

namespace ampd {
namespace {

// Of the end of a drain's time workers that do not stop are killed, and the servers take their leave.
absl::Duration Reserve(absl::Duration timeout) { return std::min(timeout / 4, absl::Seconds(5)); }

}  // namespace

Ending::Ending(Options options, const Clock* clock) : options_(std::move(options)), clock_(clock) {}

Ending::Answer Ending::OnSignal() {
  if (std::exchange(signalled_, true)) return Answer::kCutShort;
  if (begun() || !options_.detach_on_signal) {
    DrainWithin(options_.timeout, "");
    return Answer::kGoOn;
  }
  detaching_ = true;
  ends_ = clock_->Monotonic() + options_.timeout - Reserve(options_.timeout) / 2;
  options_.detach(options_.timeout);
  return Answer::kGoOn;
}

void Ending::OnRequest(const DrainRequest& request) {
  DrainWithin(request.timeout.value_or(options_.timeout), request.reason);
}

void Ending::DrainWithin(absl::Duration timeout, const std::string& reason) {
  // Workers that were left alone are no longer ours to stop.
  if (detaching_) return;
  const absl::Duration ends = clock_->Monotonic() + timeout - Reserve(timeout) / 2;
  if (begun() && ends >= *ends_) return;
  const bool first = !begun();
  ends_ = ends;
  const absl::Duration workers = timeout - Reserve(timeout);
  first ? options_.drain(timeout, workers, reason) : options_.hurry(timeout, workers);
}

absl::Duration Ending::Left() const {
  return begun() ? std::max(*ends_ - clock_->Monotonic(), absl::ZeroDuration()) : absl::InfiniteDuration();
}

}  // namespace ampd
