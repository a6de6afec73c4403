#ifndef AMPD_TESTS_UNIT_SERVER_JOBS_FAKE_CLOCK_H_
#define AMPD_TESTS_UNIT_SERVER_JOBS_FAKE_CLOCK_H_

#include <mutex>

#include "server/events/clock.h"

namespace ampd {

// Stands still until told.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override {
    std::lock_guard lock(mutex_);
    return absl::FromUnixSeconds(1'800'000'000) + elapsed_ + suspended_ + set_;
  }
  absl::Duration Monotonic() const override {
    std::lock_guard lock(mutex_);
    return absl::Seconds(50) + elapsed_;
  }
  absl::Duration SinceBoot() const override {
    std::lock_guard lock(mutex_);
    return absl::Seconds(60) + elapsed_ + suspended_;
  }
  void Advance(absl::Duration by) {
    std::lock_guard lock(mutex_);
    elapsed_ += by;
  }
  // The machine slept.
  void Suspend(absl::Duration by) {
    std::lock_guard lock(mutex_);
    suspended_ += by;
  }
  // The wall clock alone, as when somebody sets it.
  void Set(absl::Duration by) {
    std::lock_guard lock(mutex_);
    set_ += by;
  }

 private:
  mutable std::mutex mutex_;
  absl::Duration elapsed_;
  absl::Duration suspended_;
  absl::Duration set_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_JOBS_FAKE_CLOCK_H_
