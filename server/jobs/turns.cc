#include "server/jobs/turns.h"

#include <utility>

namespace ampd {

void Turns::Close() {
  std::map<std::string, std::deque<Task>> dropped;
  const MutexLock lock(&state_->mutex);
  state_->closed = true;
  dropped.swap(state_->waiting);
}

void Turns::Take(const std::string& user, Task task) {
  {
    const MutexLock lock(&state_->mutex);
    if (state_->closed) return;
    if (std::exchange(state_->taken, true)) {
      state_->waiting[user].push_back(std::move(task));
      return;
    }
    state_->last = user;
  }
  Run(state_, task);
}

void Turns::Run(const std::shared_ptr<State>& state, const Task& task) {
  // Who lets go of the last copy ends the turn.
  task(Turn(state.get(), [state](const void*) { End(state); }));
}

void Turns::End(const std::shared_ptr<State>& state) {
  Task next;
  {
    const MutexLock lock(&state->mutex);
    if (state->waiting.empty()) {
      state->taken = false;
      return;
    }
    auto user = state->waiting.upper_bound(state->last);
    if (user == state->waiting.end()) user = state->waiting.begin();
    next = std::move(user->second.front());
    user->second.pop_front();
    state->last = user->first;
    if (user->second.empty()) state->waiting.erase(user);
  }
  Run(state, next);
}

}  // namespace ampd
