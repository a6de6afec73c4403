// A few threads for what would block a gRPC thread: reading files and the store, waiting for the planner.
#ifndef AMPD_SERVER_SERVICE_WORK_POOL_H_
#define AMPD_SERVER_SERVICE_WORK_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class WorkPool {
 public:
  // At most `max_queued` tasks wait; `threads` >= 1.
  WorkPool(int threads, size_t max_queued);
  // Runs what is queued, then ends.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False, and nothing happens, when the queue is full.
  bool Post(std::function<void()> task);

 private:
  void Run();

  const size_t max_queued_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Set by the constructor.
  std::vector<std::thread> threads_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_WORK_POOL_H_
