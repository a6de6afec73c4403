// Threads that share out the items of a loop.
#ifndef AMPD_ENGINE_CORE_WORKER_POOL_H_
#define AMPD_ENGINE_CORE_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/core/mutex.h"

namespace ampd {

// ForEach() is called from one thread at a time.
class WorkerPool {
 public:
  // What is done with item `i`, by worker 0 <= `worker` < threads(). Must not throw.
  using Work = absl::FunctionRef<void(int64_t i, int worker)>;

  // The caller of ForEach() is one of the `threads`, >= 1; the others wait for it meanwhile.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Does `work` once for each of 0..count-1, in any order and on any thread, and returns when all is done.
  void ForEach(int64_t count, Work work);

 private:
  void Run(int worker);
  void Take(int worker, const Work& work, int64_t count);

  Mutex mutex_;
  CondVar changed_;
  // Rounds started, and threads still in the present one.
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the present round.
  const Work* work_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> next_{0};

  // Set by the constructor.
  std::vector<std::thread> threads_;
};

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_WORKER_POOL_H_
