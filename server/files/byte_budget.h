// How many bytes something may take in all.
#ifndef AMPD_SERVER_FILES_BYTE_BUDGET_H_
#define AMPD_SERVER_FILES_BYTE_BUDGET_H_

#include <cstdint>

#include "engine/core/mutex.h"

namespace ampd {

// Thread safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  int64_t limit() const { return limit_; }
  int64_t used() const {
    const MutexLock lock(&mutex_);
    return used_;
  }

  // False, and nothing is taken, where `bytes` more would be beyond the limit. `bytes` >= 0.
  bool Take(int64_t bytes) {
    const MutexLock lock(&mutex_);
    if (bytes > limit_ - used_) return false;
    used_ += bytes;
    return true;
  }
  // Of what is there already, limit or not.
  void Count(int64_t bytes) {
    const MutexLock lock(&mutex_);
    used_ += bytes;
  }
  void GiveBack(int64_t bytes) {
    const MutexLock lock(&mutex_);
    used_ -= bytes;
  }

 private:
  const int64_t limit_;
  mutable Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_BYTE_BUDGET_H_
