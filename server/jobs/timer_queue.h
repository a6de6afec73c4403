// Things to do at a time.
#ifndef AMPD_SERVER_JOBS_TIMER_QUEUE_H_
#define AMPD_SERVER_JOBS_TIMER_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

namespace ampd {

// Names a timer; 0 is none.
using TimerId = uint64_t;

// Not thread-safe. Times are Clock::Monotonic's.
class TimerQueue {
 public:
  TimerId Add(absl::Duration deadline, std::function<void()> action);
  // Sets `*id` to 0. Harmless for a timer that ran, was cancelled, or is none.
  void Cancel(TimerId* id);
  // Runs what is due at `now`, earliest first; actions may add and cancel timers.
  void RunDue(absl::Duration now);
  // When the earliest is due; empty when there is none.
  std::optional<absl::Duration> NextDeadline() const;

 private:
  using Key = std::pair<absl::Duration, TimerId>;
  TimerId last_ = 0;
  std::map<Key, std::function<void()>> timers_;
  std::unordered_map<TimerId, absl::Duration> deadlines_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_TIMER_QUEUE_H_
