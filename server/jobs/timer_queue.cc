#include "server/jobs/timer_queue.h"

namespace ampd {

TimerId TimerQueue::Add(absl::Duration deadline, std::function<void()> action) {
  const TimerId id = ++last_;
  timers_.emplace(Key{deadline, id}, std::move(action));
  deadlines_.emplace(id, deadline);
  return id;
}

void TimerQueue::Cancel(TimerId* id) {
  const auto it = deadlines_.find(std::exchange(*id, 0));
  if (it == deadlines_.end()) return;
  timers_.erase(Key{it->second, it->first});
  deadlines_.erase(it);
}

void TimerQueue::RunDue(absl::Duration now) {
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    deadlines_.erase(node.key().second);
    node.mapped()();
  }
}

std::optional<absl::Duration> TimerQueue::NextDeadline() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.first;
}

}  // namespace ampd
