// Time as the daemon sees it; tests hand in their own.
#ifndef AMPD_SERVER_EVENTS_CLOCK_H_
#define AMPD_SERVER_EVENTS_CLOCK_H_

#include "absl/time/time.h"

namespace ampd {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // UTC, for timestamps; may jump.
  virtual absl::Time Now() const = 0;
  // Time since an arbitrary fixed point; never goes back. For intervals and deadlines.
  virtual absl::Duration Monotonic() const = 0;
  // As Monotonic, but it counts on while the machine is suspended, as the wall clock does. To be compared with that.
  virtual absl::Duration SinceBoot() const = 0;
};

// The machine's clocks. Lives for the whole program.
const Clock& SystemClock();

}  // namespace ampd

#endif  // AMPD_SERVER_EVENTS_CLOCK_H_
