// A unary call that waits for long, and tells when its caller goes away meanwhile.
#ifndef AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_
#define AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
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
  Mutex mutex_;
  bool has_gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> leave_ ABSL_GUARDED_BY(mutex_);
};

// Frees itself once the call is over, after Finish().
class LeavableCall final : public grpc::ServerUnaryReactor {
 public:
  // The caller's: cancelled the call, hung up, or let its deadline pass. May outlive the call; somebody still has to
  // finish that.
  const std::shared_ptr<Departure>& departure() const { return departure_; }

 private:
  void OnCancel() override { departure_->Go(); }
  void OnDone() override { delete this; }

  const std::shared_ptr<Departure> departure_ = std::make_shared<Departure>();
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_LEAVABLE_CALL_H_
