#include "engine/runtime/lap_timer.h"

#include <chrono>
#include <utility>

#include "engine/core/status.h"
#include "engine/runtime/backend.h"

namespace ampd::runtime {
namespace {

class HostLapTimer : public LapTimer {
 public:
  explicit HostLapTimer(Memory* memory) : memory_(memory) {}

  LapTiming timing() const override { return LapTiming::kHostClock; }

  absl::Status Start() override {
    AMPD_RETURN_IF_ERROR(Wait());
    last_ = Clock::now();
    return absl::OkStatus();
  }

  absl::Status Lap(size_t part) override {
    AMPD_RETURN_IF_ERROR(Wait());
    const Clock::time_point now = Clock::now();
    if (part >= seconds_.size()) seconds_.resize(part + 1);
    seconds_[part] += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    return absl::OkStatus();
  }

  absl::Status Wait() override { return memory_->on_host() ? absl::OkStatus() : memory_->Wait(); }

  absl::Status Collect(absl::Span<double> seconds) override {
    for (size_t part = 0; part < seconds_.size(); ++part) seconds[part] += std::exchange(seconds_[part], 0);
    return absl::OkStatus();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Memory* const memory_;
  Clock::time_point last_;
  std::vector<double> seconds_;
};

}  // namespace

std::unique_ptr<LapTimer> MakeHostLapTimer(Memory* memory) { return std::make_unique<HostLapTimer>(memory); }

absl::StatusOr<std::unique_ptr<LapTimer>> Backend::MakeLapTimer(bool) { return MakeHostLapTimer(memory()); }

}  // namespace ampd::runtime
