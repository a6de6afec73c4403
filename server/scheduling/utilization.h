// How busy a CPU device is, from its worker's heartbeats.
#ifndef AMPD_SERVER_SCHEDULING_UTILIZATION_H_
#define AMPD_SERVER_SCHEDULING_UTILIZATION_H_

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace ampd {

// Share of the device's threads that the worker kept busy between its last two heartbeats:
// delta cpu_seconds / (threads * delta time), clamped to [0, 1]. Not thread-safe.
class UtilizationMeter {
 public:
  // `threads` >= 1.
  explicit UtilizationMeter(int threads) : threads_(std::max(1, threads)) {}

  // `at` is monotonic; `cpu_seconds` counts from the worker's start.
  void Heartbeat(absl::Duration at, double cpu_seconds) {
    if (last_ && at > last_->at) {
      const double wall = absl::ToDoubleSeconds(at - last_->at);
      value_ = std::clamp((cpu_seconds - last_->cpu_seconds) / (threads_ * wall), 0.0, 1.0);
    }
    if (!last_ || at > last_->at) last_ = Sample{at, cpu_seconds};
  }

  // 0 before the second heartbeat.
  double value() const { return value_; }

 private:
  struct Sample {
    absl::Duration at;
    double cpu_seconds;
  };
  int threads_;
  std::optional<Sample> last_;
  double value_ = 0;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_UTILIZATION_H_
