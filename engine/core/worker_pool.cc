#include "engine/core/worker_pool.h"

namespace ampd {

WorkerPool::WorkerPool(int threads) {
  threads_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { Run(i); });
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::ForEach(int64_t count, Work work) {
  if (threads_.empty()) {
    for (int64_t i = 0; i < count; ++i) work(i, 0);
    return;
  }
  {
    const MutexLock lock(&mutex_);
    work_ = &work;
    count_ = count;
    next_.store(0);
    busy_ = threads_.size();
    ++round_;
  }
  changed_.NotifyAll();
  Take(0, work, count);
  const MutexLock lock(&mutex_);
  while (busy_ != 0) changed_.Wait(&mutex_);
}

void WorkerPool::Run(int worker) {
  int64_t done = 0;
  MutexLock lock(&mutex_);
  while (true) {
    while (!stopping_ && round_ == done) changed_.Wait(&mutex_);
    if (stopping_) return;
    done = round_;
    const Work& work = *work_;
    const int64_t count = count_;
    lock.Unlock();
    Take(worker, work, count);
    lock.Lock();
    if (--busy_ == 0) changed_.NotifyAll();
  }
}

void WorkerPool::Take(int worker, const Work& work, int64_t count) {
  for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) work(i, worker);
}

}  // namespace ampd
