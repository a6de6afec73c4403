#include "engine/train/step_runner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/core/half.h"
#include "engine/core/status.h"
#include "engine/optim/update_scalars.h"
#include "engine/train/fp8_agreement.h"
#include "engine/train/spec_configs.h"

namespace ampd::train {
namespace {

void Round(DType dtype, float* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    values[i] = dtype == DType::kF16 ? ToFloat(ToHalf(values[i])) : ToFloat(ToBFloat16(values[i]));
  }
}

Replica ReplicaOf(const runtime::Collective* collective) {
  return collective == nullptr ? Replica() : Replica{collective->rank(), collective->size()};
}

}  // namespace

StepRunner::StepRunner(int64_t total_steps, PlannedModel* plan, LoadedModel* model, int phase,
                       runtime::Collective* collective, int64_t bucket_bytes)
    : loss_scale_(LossScaleConfigOf(plan->phases[static_cast<size_t>(phase)].spec)),
      schedule_(ScheduleConfigOf(plan->phases[static_cast<size_t>(phase)].spec,
                                 std::max<int64_t>(total_steps / plan->phases[static_cast<size_t>(phase)].every, 1))),
      clip_norm_(plan->phases[static_cast<size_t>(phase)].spec.proto().optimizer().clip_global_norm()),
      seed_(plan->phases[static_cast<size_t>(phase)].spec.proto().seed()),
      plan_(plan),
      phase_index_(static_cast<size_t>(phase)),
      phase_(&plan->phases[static_cast<size_t>(phase)]),
      model_(model),
      collective_(collective),
      micro_batches_(plan, model, phase_->spec.proto().train().batch_size(),
                     phase_->spec.proto().train().micro_batch_size(), phase, ReplicaOf(collective)) {
  for (const runtime::Plan& own : phase_->plans) {
    if (collective != nullptr) reducers_.emplace_back(&own, &model->memory, collective, bucket_bytes);
  }
  for (int32_t parameter : micro_batches_.plan().gradient_order) slots_.push_back(plan->layout.slots()[parameter]);
  const auto moment = [&](int i) {
    return i < phase_->optimizer.moments() ? model->moments.arena(phase_->first_moment + i) : nullptr;
  };
  update_.config = phase_->optimizer;
  update_.ranges = phase_->update_ranges;
  update_.masters = model->memory.masters();
  update_.gradients = model->memory.gradients();
  update_.moment1 = moment(0);
  update_.moment2 = moment(1);
  update_.moment3 = moment(2);
  update_.round_to = MasterDType(phase_->spec);
  update_.average = model->average.arena(0);
  update_.average_weight = static_cast<float>(1 - phase_->spec.proto().optimizer().ema().decay());
}

absl::Status StepRunner::Prepare() {
  if (update_.round_to != DType::kF32) {
    for (const runtime::UpdateRange& range : update_.ranges) {
      const runtime::ArenaSlot& slot = range.slot;
      AMPD_RETURN_IF_ERROR(
          runtime::EditOnHost(model_->memory.memory(), update_.masters + slot.offset, slot.size * SizeOf(DType::kF32),
                              [&](void* values) { Round(update_.round_to, static_cast<float*>(values), slot.size); }));
    }
  }
  return model_->memory.PublishAll();
}

absl::Status StepRunner::WarmUp() {
  for (const std::unique_ptr<runtime::Executor>& executor : model_->train[phase_index_]) {
    std::vector<Tensor> zeros;
    for (const runtime::PlannedTensor& input : executor->plan().inputs) {
      zeros.emplace_back(input.type.dtype, input.type.shape);
      AMPD_RETURN_IF_ERROR(executor->BindInput(input.name, zeros.back().view().data));
    }
    AMPD_RETURN_IF_ERROR(model_->memory.BeginUpdate());
    AMPD_RETURN_IF_ERROR(Annotate(executor->Run({.seed = seed_}), "warming up"));
    for (const runtime::PlannedTensor& input : executor->plan().inputs) {
      AMPD_RETURN_IF_ERROR(executor->BindInput(input.name, nullptr));
    }
  }
  runtime::GradientCheck check;
  AMPD_RETURN_IF_ERROR(plan_->backend->CheckGradients(model_->memory.gradients(), slots_, 1.0f, &check));
  return FindNonFiniteState(plan_->backend.get(), &model_->memory).status();
}

runtime::StepState StepRunner::StateOf(const data::Batch& batch) const {
  return {.seed = seed_, .attempted_step = static_cast<uint64_t>(batch.step)};
}

absl::StatusOr<StepResult> StepRunner::Run(const data::Batch& batch, optim::LossScalerState* scaler) {
  Findings found;
  if (profiler_ != nullptr) profiler_->Start();
  micro_batches_.set_profiler(profiler_);
  absl::StatusOr<double> loss =
      micro_batches_.Run(batch, StateOf(batch), scaler->scale, nullptr, absl::MakeSpan(reducers_));
  micro_batches_.set_profiler(nullptr);
  AMPD_ASSIGN_OR_RETURN(found.loss, std::move(loss));
  AMPD_RETURN_IF_ERROR(
      plan_->backend->CheckGradients(model_->memory.gradients(), slots_, 1.0f / scaler->scale, &found.check));
  // New running statistics can overflow though every gradient is finite; no scale cures that either.
  AMPD_ASSIGN_OR_RETURN(const absl::optional<NonFinite> state,
                        FindNonFiniteState(plan_->backend.get(), &model_->memory));
  found.state_finite = !state.has_value();
  Profile(StepPart::kCheck);
  if (collective_ != nullptr) {
    AMPD_RETURN_IF_ERROR(Agree(&found));
    Profile(StepPart::kReduce);
  }
  return Finish(batch, found, state, scaler);
}

// The gradients are the same everywhere, but the first replica's check is everybody's: on devices of unlike sizes the
// norm need not be summed in one order.
absl::Status StepRunner::Agree(Findings* findings) const {
  std::vector<Findings> all;
  AMPD_RETURN_IF_ERROR(collective_->group()->AllGather(collective_->rank(), *findings, &all));
  *findings = {0, all[0].check, true};
  for (const Findings& of : all) {
    findings->loss += of.loss;
    findings->state_finite = findings->state_finite && of.state_finite;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<NonFinite>> StepRunner::FirstOf(const absl::optional<NonFinite>& own) const {
  if (collective_ == nullptr) return own;
  std::vector<absl::optional<NonFinite>> all;
  AMPD_RETURN_IF_ERROR(collective_->group()->AllGather(collective_->rank(), own, &all));
  const auto first = std::find_if(all.begin(), all.end(), [](const auto& find) { return find.has_value(); });
  return first == all.end() ? absl::nullopt : *first;
}

absl::StatusOr<StepResult> StepRunner::Finish(const data::Batch& batch, const Findings& found,
                                              const absl::optional<NonFinite>& state, optim::LossScalerState* scaler) {
  StepResult result;
  result.calibration = scaler->steps_applied == 0;
  result.scale_before = scaler->scale;
  result.loss = found.loss;
  const bool clean = std::isfinite(result.loss) && found.check.finite && found.state_finite;
  if (!clean) {
    AMPD_ASSIGN_OR_RETURN(result.first_non_finite, Attribute(batch, found.check, state, result));
  }
  const optim::LossScalerState before = *scaler;
  // What the replay finds first need not be all: with micro-batches a loss can overflow after an earlier gradient did.
  // And what went wrong before the backward pass is not the scale's doing, even where the loss came out finite.
  const bool forward_finite =
      std::isfinite(result.loss) && found.state_finite && (clean || IsOfTheGradient(result.first_non_finite.stage));
  const optim::StepOutcome outcome{forward_finite, found.check.finite};
  result.decision = optim::Update(loss_scale_, outcome, batch.step + 1, scaler);
  result.scale_after = scaler->scale;
  if (result.applied()) AMPD_RETURN_IF_ERROR(Apply(found.check, before, &result));
  return result;
}

absl::optional<NonFinite> StepRunner::BadStateOf(const runtime::StepRecord& record) const {
  if (record.first_bad_state < 0) return absl::nullopt;
  const std::string& name = plan_->layout.states()[static_cast<size_t>(record.first_bad_state)].name;
  return NonFinite{v1::OverflowSkip::FORWARD, name, KindOf(record.first_bad_state_is_nan)};
}

absl::StatusOr<StepResult> StepRunner::Resolve(const data::Batch& batch, const runtime::StepRecord& record,
                                               optim::LossScalerState* scaler) {
  const absl::optional<NonFinite> state = BadStateOf(record);
  return Finish(batch, {record.loss, record.check, !state.has_value()}, state, scaler);
}

StepResult StepRunner::ResultOf(const runtime::StepRecord& record) const {
  StepResult result;
  result.loss = record.loss;
  result.decision = record.decision;
  result.scale_before = record.scale_before;
  result.scale_after = record.scaler.scale;
  result.calibration = record.scaler.steps_applied == (result.applied() ? 1 : 0);
  if (result.applied()) {
    result.learning_rate = LearningRate(record.scaler.steps_applied - 1);
    result.gradient_norm = std::sqrt(record.check.sum_of_squares);
  } else {
    result.first_non_finite = WithoutReplay(record.check, BadStateOf(record), result);
  }
  return result;
}

runtime::StepLoopPhase StepRunner::LoopPhase() const {
  runtime::StepLoopPhase phase;
  for (const auto& executor : model_->train[static_cast<size_t>(phase_ - plan_->phases.data())]) {
    phase.executors.push_back(executor.get());
  }
  phase.loss_scale = loss_scale_;
  phase.clip_norm = clip_norm_;
  phase.update = update_;
  phase.slots = slots_;
  phase.scalars = [this](int64_t applied_steps) {
    return optim::ComputeUpdateScalars(update_.config, LearningRate(applied_steps), applied_steps, 1, 1);
  };
  return phase;
}

absl::Status StepRunner::Apply(const runtime::GradientCheck& check, const optim::LossScalerState& scaler,
                               StepResult* result) {
  result->learning_rate = LearningRate(scaler.steps_applied);
  result->gradient_norm = std::sqrt(check.sum_of_squares);
  const double clip = clip_norm_ > 0 ? optim::ClipFactor(result->gradient_norm, clip_norm_) : 1;
  update_.scalars = optim::ComputeUpdateScalars(update_.config, result->learning_rate, scaler.steps_applied, clip,
                                                static_cast<double>(scaler.scale));
  AMPD_RETURN_IF_ERROR(plan_->backend->Update(update_));
  Profile(StepPart::kUpdate);
  if (collective_ != nullptr) AMPD_RETURN_IF_ERROR(AgreeOnFp8Scales(collective_, &model_->memory));
  AMPD_RETURN_IF_ERROR(model_->memory.CommitState());
  Profile(StepPart::kCommit);
  AMPD_RETURN_IF_ERROR(model_->memory.PublishAll());
  Profile(StepPart::kPublish);
  return absl::OkStatus();
}

void StepRunner::Profile(StepPart part) const {
  if (profiler_ != nullptr) profiler_->After(static_cast<size_t>(phase_ - plan_->phases.data()), part);
}

// Every replica replays its own share: the first one's find is what one device would have come upon first.
absl::StatusOr<NonFinite> StepRunner::Attribute(const data::Batch& batch, const runtime::GradientCheck& check,
                                                const absl::optional<NonFinite>& state,
                                                const StepResult& result) const {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<NonFinite> first_state, FirstOf(state));
  NonFinite without = WithoutReplay(check, first_state, result);
  if (result.calibration) return without;
  AMPD_ASSIGN_OR_RETURN(absl::optional<NonFinite> found, Replay(batch, result, false));
  // Infinities of a forward pass may be meant, as a mask's are, and do no harm.
  const bool only_gradients = std::isfinite(result.loss) && !first_state.has_value() && !check.finite;
  if (only_gradients && found.has_value() && !IsOfTheGradient(found->stage)) {
    AMPD_ASSIGN_OR_RETURN(const bool of_the_scale, IsFiniteAtTheLeast(batch, result));
    if (of_the_scale) {
      AMPD_ASSIGN_OR_RETURN(found, Replay(batch, result, true));
    }
  }
  if (found.has_value()) return *found;
  // Every share is finite, their sum is not.
  if (collective_ != nullptr && without.stage == v1::OverflowSkip::GRADIENT) without.stage = v1::OverflowSkip::REDUCE;
  return without;
}

absl::StatusOr<absl::optional<NonFinite>> StepRunner::Replay(const data::Batch& batch, const StepResult& result,
                                                             bool gradients_only) const {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<NonFinite> own,
                        ReplayForNonFinite(micro_batches_, batch, StateOf(batch), result.scale_before, gradients_only));
  return FirstOf(own);
}

float StepRunner::LeastScale() const {
  if (loss_scale_.kind != optim::LossScaleKind::kDynamic) return 1;
  return static_cast<float>(std::clamp<double>(loss_scale_.min, optim::kSmallestScale, 1));
}

// What a forward pass holds does not depend on the scale. Where it does no harm at a smaller one, the scale did.
absl::StatusOr<bool> StepRunner::IsFiniteAtTheLeast(const data::Batch& batch, const StepResult& result) const {
  const float least = LeastScale();
  if (result.scale_before <= least) return false;
  AMPD_RETURN_IF_ERROR(micro_batches_.Run(batch, StateOf(batch), least).status());
  runtime::GradientCheck check;
  AMPD_RETURN_IF_ERROR(plan_->backend->CheckGradients(model_->memory.gradients(), slots_, 1.0f / least, &check));
  if (collective_ == nullptr) return check.finite;
  std::vector<bool> all;
  AMPD_RETURN_IF_ERROR(collective_->group()->AllGather(collective_->rank(), check.finite, &all));
  return std::all_of(all.begin(), all.end(), [](bool finite) { return finite; });
}

NonFinite StepRunner::WithoutReplay(const runtime::GradientCheck& check, const absl::optional<NonFinite>& state,
                                    const StepResult& result) const {
  if (!std::isfinite(result.loss)) return {v1::OverflowSkip::LOSS, "loss", KindOf(std::isnan(result.loss))};
  if (check.finite) return *state;
  const int32_t parameter = micro_batches_.plan().gradient_order[check.first_bad_slot];
  return {v1::OverflowSkip::GRADIENT, absl::StrCat(plan_->layout.parameters()[parameter].name, ".grad"),
          KindOf(check.first_bad_is_nan)};
}

}  // namespace ampd::train
