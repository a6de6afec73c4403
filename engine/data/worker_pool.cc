#include "engine/data/worker_pool.h"

namespace ampd::data {

WorkerPool::WorkerPool(int threads) {
  threads_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { Run(i); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::ForEach(int64_t count, Work work) {
  if (threads_.empty()) {
    for (int64_t i = 0; i < count; ++i) work(i, 0);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    count_ = count;
    next_.store(0);
    busy_ = threads_.size();
    ++round_;
  }
  changed_.notify_all();
  Take(0);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerPool::Run(int worker) {
  int64_t done = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || round_ != done; });
    if (stopping_) return;
    done = round_;
    lock.unlock();
    Take(worker);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

void WorkerPool::Take(int worker) {
  for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*work_)(i, worker);
}

}  // namespace ampd::data
