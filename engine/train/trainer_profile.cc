// Profiles that people ask for while a job trains.
#include <utility>

#include "engine/core/status.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {

bool TrainerImpl::TakesStepsWhole() const {
  if (captured_ == nullptr) return false;
  const runtime::StepLaunch launch = captured_->launch();
  return launch == runtime::StepLaunch::kResident || launch == runtime::StepLaunch::kInterpreted;
}

void TrainerImpl::StartProfile() {
  // Steps that a device has begun cannot be timed any more.
  const ProfileRequest asked = asked_profile_.Get();
  if (asked.steps > 0 && profiler_ == nullptr && (captured_ == nullptr || captured_->idle())) {
    const ProfiledSteps kind = TakesStepsWhole() ? ProfiledSteps::kWhole : ProfiledSteps::kParts;
    auto profiler = StepProfiler::Create(*plan_, asked, kind);
    // A device without room for an event will say so of the training itself.
    if (profiler.ok()) profiler_ = *std::move(profiler);
  }
}

absl::Status TrainerImpl::ProfileStep(const data::Batch& batch, double seconds) {
  if (profiler_ == nullptr) {
    unprofiled_seconds_ += seconds;
    ++unprofiled_steps_;
    return absl::OkStatus();
  }
  profiler_->EndStep(state_.step, seconds, batch.wait_seconds);
  return profiler_->left() == 0 || !profiler_->status().ok() ? FinishProfile() : absl::OkStatus();
}

absl::Status TrainerImpl::FinishProfile() {
  const std::unique_ptr<StepProfiler> profiler = std::exchange(profiler_, nullptr);
  // One without a step is begun anew when there is one.
  if (profiler == nullptr || profiler->steps() == 0) return absl::OkStatus();
  asked_profile_.Clear();
  absl::optional<double> usual;
  if (unprofiled_steps_ > 0) usual = unprofiled_seconds_ / static_cast<double>(unprofiled_steps_);
  const bool read_by_host =
      profiler->kind() == ProfiledSteps::kParts && captured_ != nullptr && captured_->samples().ok();
  v1::JobEvent event;
  *event.mutable_step_profile() = profiler->Profile(
      usual, read_by_host ? "the host read the batches of these steps; those of others are made on the device" : "");
  return reporter_->Emit(std::move(event));
}

}  // namespace ampd::train
