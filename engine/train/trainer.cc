#include "engine/train/trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/evaluation.h"
#include "engine/train/spec_configs.h"
#include "engine/train/trainer_impl.h"

namespace ampd::train {

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const ResolvedJobSpec& spec, const TrainerOptions& options,
                                                         TrainerObserver* observer) {
  auto trainer = std::make_unique<TrainerImpl>(spec, options, observer);
  AMPD_RETURN_IF_ERROR(trainer->Open());
  return trainer;
}

TrainerImpl::TrainerImpl(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer)
    : spec_(spec), options_(options), observer_(observer), spec_hash_(SpecHash(spec)), active_spec_(spec) {}

absl::Status TrainerImpl::Open() {
  AMPD_ASSIGN_OR_RETURN(data_, TrainingData::Open(spec_, options_.data_roots));
  const v1::TrainSpec& train = job().train();
  batches_per_epoch_ = data_->train().size() / train.batch_size();
  total_steps_ = train.has_steps() ? train.steps() : train.epochs() * batches_per_epoch_;
  AMPD_RETURN_IF_ERROR(Restore());
  if (job().report().diagnostics_every_steps() > 0) {
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, MakeBackend(options_.device, options_.threads));
    AMPD_ASSIGN_OR_RETURN(diagnostics_, GradientDiagnostics::Create(spec_, SampleInfoOf(data_->train().info()),
                                                                    std::move(backend), options_.threads));
  }
  reporter_ = std::make_unique<Reporter>(job().report(), phase().name, total_steps_,
                                         runner_->LearningRate(phase().scaler.steps_applied), observer_);
  AMPD_ASSIGN_OR_RETURN(loader_, data_->TrainLoader(plan_->outputs, state_.step));
  return absl::OkStatus();
}

absl::Status TrainerImpl::Restore() {
  AMPD_ASSIGN_OR_RETURN(CheckpointStore store,
                        CheckpointStore::Open(options_.checkpoint_dir, job().checkpoint().keep_last()));
  checkpoints_ = std::make_unique<CheckpointStore>(std::move(store));
  AMPD_ASSIGN_OR_RETURN(absl::optional<LoadedCheckpoint> loaded,
                        checkpoints_->LoadNewest(spec_hash_, options_.last_checkpoint, &refused_checkpoints_));
  saved_at_ = SteadySeconds();
  if (loaded.has_value()) {
    saved_ = {loaded->name, loaded->size_bytes};
    saved_step_ = loaded->state.step;
  }
  return StartFrom(std::move(loaded));
}

absl::Status TrainerImpl::StartFrom(absl::optional<LoadedCheckpoint> checkpoint) {
  active_spec_ = spec_;
  if (checkpoint.has_value() && !checkpoint->state.phases.empty() && checkpoint->state.phases[0].scaler.fell_back) {
    AMPD_ASSIGN_OR_RETURN(active_spec_, WithMode(spec_, v1::PrecisionSpec::BF16));
  }
  AMPD_RETURN_IF_ERROR(OpenModel());
  const bool resumes = checkpoint.has_value();
  if (resumes) {
    AMPD_RETURN_IF_ERROR(TakeOver(*std::move(checkpoint)));
  } else {
    state_.step = 0;
    state_.seed = job().seed();
    state_.spec_hash = spec_hash_;
    state_.phases = {{job().phases(0).name(), optim::InitialScalerState(runner_->loss_scale()), {}}};
    model_->memory.Initialize(job().seed());
  }
  step_ = state_.step;
  AMPD_RETURN_IF_ERROR(runner_->Prepare());
  if (!resumes) model_->StartAverage();
  return absl::OkStatus();
}

absl::Status TrainerImpl::OpenModel() {
  runner_.reset();
  model_.reset();
  plan_.reset();
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, MakeBackend(options_.device, options_.threads));
  AMPD_ASSIGN_OR_RETURN(
      plan_, PlanModel(active_spec_, SampleInfoOf(data_->train().info()), std::move(backend), options_.threads));
  AMPD_ASSIGN_OR_RETURN(model_, LoadedModel::Create(*plan_));
  // The loader refuses a dataset without a whole batch; it is made here to find that, and unfit targets, at once.
  AMPD_RETURN_IF_ERROR(data_->TrainLoader(plan_->outputs, 0).status());
  if (data_->eval() != nullptr) AMPD_RETURN_IF_ERROR(data_->EvalLoader(plan_->outputs).status());
  runner_ = std::make_unique<StepRunner>(active_spec_, total_steps_, plan_.get(), model_.get());
  skip_limits_ = {.max_ratio = job().limits().max_skip_ratio(),
                  .window = job().limits().skip_window_steps(),
                  .total_steps = total_steps_,
                  .hysteresis = runner_->loss_scale().hysteresis};
  return absl::OkStatus();
}

absl::Status TrainerImpl::TakeOver(LoadedCheckpoint checkpoint) {
  AMPD_RETURN_IF_ERROR(Annotate(LoadModel(checkpoint.model, &model_->memory), checkpoint.name));
  AMPD_RETURN_IF_ERROR(
      Annotate(LoadOptimizer(checkpoint.optimizer, &model_->memory, &model_->moments), checkpoint.name));
  if (plan_->keeps_average) {
    if (!checkpoint.ema.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(checkpoint.name, ": no ema.safetensors"));
    }
    AMPD_RETURN_IF_ERROR(Annotate(LoadAverage(*checkpoint.ema, &model_->memory, &model_->average), checkpoint.name));
  }
  state_ = std::move(checkpoint.state);
  if (state_.phases.size() != 1 || state_.step > total_steps_) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.name, ": ", state_.phases.size(), " phases, step ", state_.step, " of ", total_steps_));
  }
  return absl::OkStatus();
}

void TrainerImpl::Request(Command command) {
  if (command == Command::kCheckpointAndStop) stop_requested_ = true;
  checkpoint_requested_ = true;
}

absl::StatusOr<Outcome> TrainerImpl::Run() {
  AMPD_RETURN_IF_ERROR(Announce());
  absl::StatusOr<Outcome> outcome = Loop();
  if (outcome.ok()) return outcome;
  // The steps before the failure happened; where the observer is what failed, its error stands.
  reporter_->Flush().IgnoreError();
  return outcome;
}

absl::Status TrainerImpl::Announce() {
  for (const std::string& line : refused_checkpoints_) {
    AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::WARNING, line));
  }
  const std::string resumed = absl::StrCat("resumed from checkpoint ", saved_.name,
                                           phase().scaler.fell_back ? ", in BF16 since it fell back" : "");
  if (state_.step < options_.last_reported_step) {
    v1::JobEvent event;
    event.mutable_rewound()->set_to_step(state_.step);
    event.mutable_rewound()->set_reason(saved_step_ < 0 ? "no checkpoint to resume from" : resumed);
    return reporter_->Emit(std::move(event));
  }
  return saved_step_ < 0 ? absl::OkStatus() : reporter_->Log(v1::LogLine::INFO, resumed);
}

absl::StatusOr<Outcome> TrainerImpl::Loop() {
  if (state_.step == total_steps_) {
    // The attempt before came this far, but its last events may not have got out.
    AMPD_RETURN_IF_ERROR(EvaluateIfDue());
    AMPD_RETURN_IF_ERROR(EmitCheckpoint(0));
    return Outcome::kCompleted;
  }
  while (state_.step < total_steps_) {
    AMPD_ASSIGN_OR_RETURN(const optim::ScalerDecision decision, Step());
    // It wrote the checkpoint it stands at, and ends no epoch.
    if (decision == optim::ScalerDecision::kRollBack) continue;
    const bool stop = stop_requested_.load();
    const bool asked = checkpoint_requested_.exchange(false) || stop;
    AMPD_RETURN_IF_ERROR(EvaluateIfDue());
    AMPD_RETURN_IF_ERROR(CheckpointIfDue(asked));
    if (stop && state_.step < total_steps_) return Outcome::kStopped;
  }
  return Outcome::kCompleted;
}

absl::StatusOr<optim::ScalerDecision> TrainerImpl::Step() {
  const double start = SteadySeconds();
  absl::StatusOr<data::Batch*> batch = loader_->Next();
  if (!batch.ok()) return DataError(batch.status(), "data.train");
  v1::JobEvent diagnostics;
  AMPD_RETURN_IF_ERROR(Diagnose(**batch, &diagnostics));
  AMPD_ASSIGN_OR_RETURN(const StepResult result, runner_->Run(**batch, &phase().scaler));
  ++state_.step;
  step_.store(state_.step, std::memory_order_relaxed);
  AMPD_RETURN_IF_ERROR(ReportStep(**batch, result, SteadySeconds() - start));
  if (!result.applied()) AMPD_RETURN_IF_ERROR(ReportSkip(**batch, result));
  AMPD_RETURN_IF_ERROR(ReportScale(result.scale_before, result.scale_after));
  if (diagnostics.has_gradient_diagnostics()) AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(diagnostics)));
  loader_->Release(*batch);
  AMPD_RETURN_IF_ERROR(CheckSkips(result));
  return result.decision;
}

absl::Status TrainerImpl::Diagnose(const data::Batch& batch, v1::JobEvent* event) {
  if (diagnostics_ == nullptr || (state_.step + 1) % job().report().diagnostics_every_steps() != 0) {
    return absl::OkStatus();
  }
  const bool scaled = runner_->loss_scale().kind != optim::LossScaleKind::kNone;
  AMPD_ASSIGN_OR_RETURN(*event->mutable_gradient_diagnostics(),
                        diagnostics_->Run(batch, runner_->StateOf(batch),
                                          scaled ? phase().scaler.scale : kFp16FirstScale, &model_->memory));
  event->mutable_gradient_diagnostics()->set_step(state_.step + 1);
  event->mutable_gradient_diagnostics()->set_phase(phase().name);
  return absl::OkStatus();
}

absl::Status TrainerImpl::ReportStep(const data::Batch& batch, const StepResult& result, double seconds) {
  const optim::LossScalerState& scaler = phase().scaler;
  return reporter_->AddStep({.step = state_.step,
                             .epoch = batch.epoch,
                             .loss = result.loss,
                             .applied = result.applied(),
                             .learning_rate = result.learning_rate,
                             .gradient_norm = result.gradient_norm,
                             .loss_scale = static_cast<double>(scaler.scale),
                             .steps_applied = scaler.steps_applied,
                             .steps_skipped = scaler.steps_skipped,
                             .samples = batch.valid,
                             .seconds = seconds,
                             .wait_seconds = batch.wait_seconds});
}

absl::Status TrainerImpl::ReportSkip(const data::Batch& batch, const StepResult& result) {
  v1::JobEvent event;
  v1::OverflowSkip* skip = event.mutable_overflow_skip();
  skip->set_step(state_.step);
  skip->set_phase(phase().name);
  skip->set_scale_before(result.scale_before);
  skip->set_scale_after(result.scale_after);
  skip->set_stage(result.first_non_finite.stage);
  skip->set_first_tensor(result.first_non_finite.tensor);
  skip->set_kind(result.first_non_finite.kind);
  skip->set_epoch(batch.epoch);
  skip->set_batch(batch.batch);
  skip->set_calibration(result.calibration);
  return reporter_->Emit(std::move(event));
}

absl::Status TrainerImpl::ReportScale(double before, double after) {
  if (before == after) return absl::OkStatus();
  v1::JobEvent event;
  v1::LossScaleChange* change = event.mutable_loss_scale_change();
  change->set_step(state_.step);
  change->set_phase(phase().name);
  change->set_scale_before(before);
  change->set_scale_after(after);
  return reporter_->Emit(std::move(event));
}

absl::Status TrainerImpl::CheckSkips(const StepResult& result) {
  if (result.decision == optim::ScalerDecision::kFail) return Diverged(result);
  if (result.decision == optim::ScalerDecision::kRollBack) return RollBack(result);
  const bool scale_moved = result.scale_after != result.scale_before;
  AMPD_RETURN_IF_ERROR(
      CountStep(skip_limits_, state_.step, result.applied(), result.calibration, scale_moved, &phase().skips));
  return result.decision == optim::ScalerDecision::kFallBack ? FallBack(result) : absl::OkStatus();
}

absl::Status TrainerImpl::EvaluateIfDue() {
  if (data_->eval() == nullptr) return absl::OkStatus();
  const bool epoch_ended = state_.step % batches_per_epoch_ == 0;
  const bool due = epoch_ended && EpochsCompleted() % job().train().eval_every_epochs() == 0;
  if (!due && state_.step != total_steps_) return absl::OkStatus();
  v1::JobEvent event;
  const bool of_average = job().optimizer().ema().evaluate();
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  AMPD_ASSIGN_OR_RETURN(*event.mutable_evaluation(), Evaluate(*data_, *plan_, model_.get()));
  if (of_average) AMPD_RETURN_IF_ERROR(model_->SwapAverage());
  event.mutable_evaluation()->set_step(state_.step);
  event.mutable_evaluation()->set_epoch(EpochsCompleted());
  return reporter_->Emit(std::move(event));
}

absl::Status TrainerImpl::CheckpointIfDue(bool asked) {
  const v1::CheckpointSpec& spec = job().checkpoint();
  const double now = SteadySeconds();
  const bool by_step = spec.every_steps() > 0 && state_.step % spec.every_steps() == 0;
  const bool by_time = spec.every_seconds() > 0 && now - saved_at_ >= static_cast<double>(spec.every_seconds());
  if (!asked && !by_step && !by_time && state_.step != total_steps_) return absl::OkStatus();
  return WriteCheckpoint();
}

absl::Status TrainerImpl::WriteCheckpoint() {
  const double start = SteadySeconds();
  AMPD_RETURN_IF_ERROR(reporter_->Flush());
  AMPD_ASSIGN_OR_RETURN(saved_, checkpoints_->Save(state_, ModelTensors(&model_->memory),
                                                   OptimizerTensors(&model_->memory, model_->moments),
                                                   AverageTensors(&model_->memory, model_->average)));
  saved_step_ = state_.step;
  saved_at_ = SteadySeconds();
  return EmitCheckpoint(saved_at_ - start);
}

absl::Status TrainerImpl::EmitCheckpoint(double write_seconds) {
  v1::JobEvent event;
  v1::CheckpointSaved* checkpoint = event.mutable_checkpoint();
  checkpoint->set_step(saved_step_);
  checkpoint->set_checkpoint(saved_.name);
  checkpoint->set_size_bytes(saved_.size_bytes);
  checkpoint->set_write_seconds(write_seconds);
  return reporter_->Emit(std::move(event));
}

}  // namespace ampd::train
