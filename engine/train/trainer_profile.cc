// Profiles that people ask for while a job trains.
#include <utility>

#include "engine/core/status.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {

void TrainerImpl::Profile(int64_t steps) {
  int64_t none = 0;
  profile_requested_.compare_exchange_strong(none, steps);
}

bool TrainerImpl::TakesStepsWhole() const {
  return captured_ != nullptr && captured_->launch() == runtime::StepLaunch::kResident;
}

absl::Status TrainerImpl::StartProfile() {
  const int64_t steps = profile_requested_.load();
  // Steps that a device has begun cannot be timed any more.
  if (steps == 0 || profiler_ != nullptr || (captured_ != nullptr && !captured_->idle())) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(profiler_, StepProfiler::Create(*plan_, steps, !TakesStepsWhole()));
  return absl::OkStatus();
}

absl::Status TrainerImpl::ProfileStep(const data::Batch& batch, double seconds) {
  if (profiler_ == nullptr) {
    unprofiled_seconds_ += seconds;
    ++unprofiled_steps_;
    return absl::OkStatus();
  }
  AMPD_RETURN_IF_ERROR(profiler_->EndStep(state_.step, seconds, batch.wait_seconds));
  return profiler_->done() ? FinishProfile() : absl::OkStatus();
}

absl::Status TrainerImpl::FinishProfile() {
  const std::unique_ptr<StepProfiler> profiler = std::exchange(profiler_, nullptr);
  // One without a step is begun anew when there is one.
  if (profiler == nullptr || profiler->steps() == 0) return absl::OkStatus();
  profile_requested_ = 0;
  absl::optional<double> usual;
  if (unprofiled_steps_ > 0) usual = unprofiled_seconds_ / static_cast<double>(unprofiled_steps_);
  v1::JobEvent event;
  *event.mutable_step_profile() = profiler->Profile(usual);
  return reporter_->Emit(std::move(event));
}

}  // namespace ampd::train
