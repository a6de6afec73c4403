#include "server/service/step_pool.h"

#include <utility>

namespace ampd {

StepPool::~StepPool() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

bool StepPool::Post(const std::string& user, Task task) {
  const MutexLock lock(&mutex_);
  if (tasks_ >= options_.all) return false;
  const auto line = lines_.find(user);
  if (line != lines_.end() && line->second.tasks.size() >= options_.per_user) return false;
  lines_[user].tasks.push_back(std::move(task));
  ++tasks_;
  // Under the lock: whoever waits for what the task does may then destroy the pool.
  wake_.NotifyOne();
  return true;
}

StepPool::Line* StepPool::Next() {
  auto line = lines_.upper_bound(last_);
  for (size_t i = 0; i < lines_.size(); ++i, ++line) {
    if (line == lines_.end()) line = lines_.begin();
    if (!line->second.begun && begun_ >= options_.begun) continue;
    last_ = line->first;
    return &line->second;
  }
  return nullptr;
}

void StepPool::Run() {
  MutexLock lock(&mutex_);
  while (true) {
    while (!stopping_ && tasks_ == 0) wake_.Wait(&mutex_);
    if (tasks_ == 0) return;
    // There is one: either not as many have begun as may, or one that has goes on.
    Line* const line = Next();
    if (!std::exchange(line->begun, true)) ++begun_;
    Task task = std::move(line->tasks.front());
    lock.Unlock();
    const bool more = task();
    // What it holds is let go of before anybody else has a turn.
    if (!more) task = nullptr;
    lock.Lock();
    if (more) {
      line->tasks.front() = std::move(task);
      continue;
    }
    line->tasks.pop_front();
    line->begun = false;
    --begun_;
    --tasks_;
    if (line->tasks.empty()) lines_.erase(last_);
  }
}

}  // namespace ampd
