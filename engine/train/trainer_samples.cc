// What a training makes to look at.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {

absl::Status TrainerImpl::SampleIfDue() {
  if (sampler_ == nullptr) return absl::OkStatus();
  if (state_.step % job().report().samples().every_steps() != 0 && !AtEnd()) return absl::OkStatus();
  const bool of_average = job().optimizer().ema().samples();
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  AMPD_ASSIGN_OR_RETURN(Samples samples, sampler_->Draw(state_.step, model_.get()));
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  for (const Artifact& artifact : samples.artifacts) AMPD_RETURN_IF_ERROR(Keep(artifact));
  for (v1::JobEvent& event : samples.events) AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  return absl::OkStatus();
}

absl::Status TrainerImpl::Keep(const Artifact& artifact) {
  if (!artifacts_.keeps()) return absl::OkStatus();
  absl::StatusOr<v1::ArtifactSaved> saved = artifacts_.Save(artifact);
  // A training is worth more than a picture of it.
  if (!saved.ok()) {
    return reporter_->Log(v1::LogLine::WARNING, absl::StrCat("not kept: ", saved.status().message()));
  }
  v1::JobEvent event;
  *event.mutable_artifact() = *std::move(saved);
  event.mutable_artifact()->set_step(state_.step);
  return reporter_->Emit(std::move(event));
}

}  // namespace ampd::train
