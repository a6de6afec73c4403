#include "server/service/work_pool.h"

#include <utility>

namespace ampd {

WorkPool::WorkPool(int threads, size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::Post(std::function<void()> task) {
  const MutexLock lock(&mutex_);
  if (queue_.size() >= max_queued_) return false;
  queue_.push_back(std::move(task));
  // Under the lock: whoever waits for what the task does may then destroy the pool.
  wake_.NotifyOne();
  return true;
}

void WorkPool::Run() {
  MutexLock lock(&mutex_);
  while (true) {
    while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
    if (queue_.empty()) return;
    const std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.Unlock();
    task();
    lock.Lock();
  }
}

}  // namespace ampd
