// A few threads for what would block a gRPC thread: reading files and the store, waiting for the planner.
#ifndef AMPD_SERVER_SERVICE_WORK_POOL_H_
#define AMPD_SERVER_SERVICE_WORK_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_WORK_POOL_H_
