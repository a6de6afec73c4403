// Locks that clang's thread safety analysis knows: std::mutex and std::condition_variable with its attributes, which
// libstdc++'s lack. Header-only, for the server and the client too. absl::Mutex would do, but ThreadSanitizer does not
// see into the packaged library.
//
// Every member that a Mutex protects is ABSL_GUARDED_BY it; a function that expects it to be held has
// ABSL_EXCLUSIVE_LOCKS_REQUIRED. Members beside a Mutex that need none say why.
#ifndef AMPD_ENGINE_CORE_MUTEX_H_
#define AMPD_ENGINE_CORE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace ampd {

// Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds `mutex`, which outlives it, from construction until its end, except between Unlock() and Lock().
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (held_) mutex_->Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Only while it holds the mutex, respectively does not.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    held_ = false;
    mutex_->Unlock();
  }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_->Lock();
    held_ = true;
  }

 private:
  Mutex* const mutex_;
  bool held_ = true;
};

// A wait lets go of `mutex`, which the caller holds, and holds it again when it returns. It may return for no reason,
// so it stands in a loop that tests what is waited for; a loop rather than a lambda, which would be analysed apart from
// the lock around it. All waits of one CondVar at a time are with the same mutex.
class CondVar {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False once `deadline` has passed.
  bool WaitUntil(Mutex* mutex, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_MUTEX_H_
