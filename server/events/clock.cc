#include "server/events/clock.h"

#include <time.h>

#include <chrono>

#include "absl/time/clock.h"

namespace ampd {
namespace {

class MachineClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Duration SinceBoot() const override {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return absl::DurationFromTimespec(now);
  }
};

}  // namespace

const Clock& SystemClock() {
  static const MachineClock& clock = *new MachineClock;
  return clock;
}

}  // namespace ampd
