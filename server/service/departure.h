// Whether the caller of a call that waits for long has gone away meanwhile.
#ifndef AMPD_SERVER_SERVICE_DEPARTURE_H_
#define AMPD_SERVER_SERVICE_DEPARTURE_H_

#include <functional>
#include <utility>

#include "engine/core/mutex.h"

namespace ampd {

// Whether somebody has gone away, and what is to be done then. Thread-safe.
class Departure {
 public:
  // Calls `leave` once they have gone, or at once where they have. Call it once.
  void Then(std::function<void()> leave) {
    {
      const MutexLock lock(&mutex_);
      if (!has_gone_) {
        leave_ = std::move(leave);
        return;
      }
    }
    leave();
  }

  bool has_gone() const {
    const MutexLock lock(&mutex_);
    return has_gone_;
  }

  // They have.
  void Go() {
    std::function<void()> leave;
    {
      const MutexLock lock(&mutex_);
      has_gone_ = true;
      leave = std::exchange(leave_, nullptr);
    }
    if (leave) leave();
  }

 private:
  mutable Mutex mutex_;
  bool has_gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> leave_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_DEPARTURE_H_
