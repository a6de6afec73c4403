// How a training goes on when gradients overflow at the smallest loss scale.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/failure.h"
#include "engine/train/spec_configs.h"
#include "engine/train/start_weights.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {
namespace {

absl::StatusOr<Safetensors> InMemory(const std::vector<TensorSource>& tensors) {
  std::string bytes;
  AMPD_RETURN_IF_ERROR(WriteSafetensors(tensors, [&bytes](absl::string_view part) {
    bytes.append(part.data(), part.size());
    return absl::OkStatus();
  }));
  return Safetensors::Parse(std::move(bytes));
}

std::string AtTheFloor(const StepResult& result, int64_t step) {
  return absl::StrCat("the gradients overflow at the smallest loss scale, ", result.scale_before, " (step ", step,
                      ", first in ", result.first_non_finite.tensor, ")");
}

// Before the first applied step skips that lower the scale count as none in a row.
bool LastWasApplied(const PhaseState& phase) {
  const bool calibrates = phase.scaler.steps_applied == 0 && phase.scaler.steps_skipped > 0;
  return phase.skips.consecutive == 0 && !calibrates;
}

}  // namespace

absl::Status TrainerImpl::Diverged(const PhaseResult& result) const {
  const PhaseState& phase = state_.phases[result.phase];
  const int64_t rollbacks = phase.scaler.rollbacks;
  return WithFailureClass(
      absl::AbortedError(
          absl::StrCat("training diverged: ", state_.phases.size() > 1 ? absl::StrCat("phase ", phase.name, ": ") : "",
                       AtTheFloor(result.step, state_.step),
                       rollbacks > 0 ? absl::StrCat(", after ", rollbacks, " rollbacks") : "")),
      v1::Failure::DIVERGED);
}

// A checkpoint and a resume in the other mode, but in memory: one copy of the tensors instead of two models at once.
absl::Status TrainerImpl::FallBack(const PhaseResult& result) {
  AMPD_ASSIGN_OR_RETURN(Safetensors model, InMemory(ModelTensors(&model_->memory)));
  AMPD_ASSIGN_OR_RETURN(Safetensors optimizer,
                        InMemory(OptimizerTensors(&model_->memory, MomentsOf(*plan_, model_->moments))));
  absl::optional<Safetensors> ema;
  if (plan_->keeps_average) {
    AMPD_ASSIGN_OR_RETURN(ema, InMemory(AverageTensors(&model_->memory, model_->average)));
  }
  TrainState state = state_;
  optim::FallBack(&state.phases[result.phase].scaler);
  AMPD_RETURN_IF_ERROR(StartFrom(LoadedCheckpoint{"falling back to BF16", 0, std::move(state), std::move(model),
                                                  std::move(optimizer), std::move(ema), /*of_other_mode=*/true}));
  // Batches of steps that a device had not come to must be read again.
  if (captured_ != nullptr) AMPD_RETURN_IF_ERROR(OpenLoader());
  v1::JobEvent event;
  v1::PrecisionChange* change = event.mutable_precision_change();
  change->set_step(state_.step);
  change->set_phase(state_.phases[result.phase].name);
  change->set_mode_before(job().precision().mode());
  change->set_mode_after(plan_->phases[result.phase].spec.proto().precision().mode());
  change->set_reason(AtTheFloor(result.step, state_.step));
  AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  return ReportScale(result.phase, result.step.scale_after, state_.phases[result.phase].scaler.scale);
}

absl::StatusOr<absl::optional<LoadedCheckpoint>> TrainerImpl::LoadGoodCheckpoint() {
  absl::optional<LoadedCheckpoint> oldest;
  int64_t up_to = state_.step;
  while (up_to >= 0) {
    std::vector<std::string> refused;
    AMPD_ASSIGN_OR_RETURN(absl::optional<LoadedCheckpoint> loaded,
                          checkpoints_->LoadNewest(spec_hash_, CheckpointName(up_to), &refused));
    for (const std::string& line : refused) AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::WARNING, line));
    // One of a later step: there are none up to it.
    if (!loaded.has_value() || loaded->state.step > up_to || loaded->state.phases.size() != state_.phases.size()) break;
    oldest = std::move(loaded);
    const std::vector<PhaseState>& phases = oldest->state.phases;
    if (std::all_of(phases.begin(), phases.end(), LastWasApplied)) break;
    up_to = oldest->state.step - 1;
  }
  return oldest;
}

absl::Status TrainerImpl::RollBack(const PhaseResult& result) {
  const std::vector<PhaseState> before = state_.phases;
  std::string reason = AtTheFloor(result.step, state_.step);
  AMPD_ASSIGN_OR_RETURN(absl::optional<LoadedCheckpoint> checkpoint, LoadGoodCheckpoint());
  const std::string where = checkpoint.has_value()                   ? absl::StrCat("checkpoint ", checkpoint->name)
                            : job().start_from().continue_training() ? StartName(job().start_from())
                                                                     : "initial weights";
  AMPD_RETURN_IF_ERROR(Annotate(StartFrom(std::move(checkpoint)), "rollback"));
  // Those of the other phases stay counted.
  for (size_t i = 0; i < before.size(); ++i) state_.phases[i].scaler.rollbacks = before[i].scaler.rollbacks;
  PhaseState& phase = state_.phases[result.phase];
  const optim::LossScaleConfig& config = runners_[result.phase]->loss_scale();
  optim::RollBack(config, before[result.phase].scaler, &phase.scaler);
  phase.skips.consecutive = 0;
  AMPD_RETURN_IF_ERROR(OpenLoader());
  v1::JobEvent event;
  event.mutable_rewound()->set_to_step(state_.step);
  event.mutable_rewound()->set_reason(
      absl::StrCat(reason, ": rollback ", phase.scaler.rollbacks, " of ", config.max_rollbacks, " to ", where));
  AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  AMPD_RETURN_IF_ERROR(ReportScale(result.phase, result.step.scale_after, phase.scaler.scale));
  // A worker that dies now must not forget the rollback, or it could go on for ever.
  return WriteCheckpoint();
}

}  // namespace ampd::train
