#include "engine/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/models/imported_notes.h"
#include "engine/train/auto_mode.h"
#include "engine/train/benchmark.h"
#include "engine/train/continuation.h"
#include "engine/train/finite_tensors.h"
#include "engine/train/onnx_file.h"
#include "engine/train/spec_configs.h"
#include "engine/train/start_weights.h"
#include "engine/train/trainer_impl.h"
#include "proto/spec/start_step.h"

namespace ampd::train {
namespace {

// A source has a limit, and an order by class.
bool LimitsByClass(const v1::DataSpec& data) {
  const auto limits = [](const v1::DatasetSpec& source) {
    return source.limit() > 0 && (source.has_image_folder() || source.has_quickdraw() || source.has_wav_folder());
  };
  return limits(data.train()) || limits(data.eval());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const ResolvedJobSpec& spec, const TrainerOptions& options,
                                                         TrainerObserver* observer) {
  const absl::Status read = ReadOnnxFile(spec, options.data_roots, options.upload_dir);
  if (!read.ok()) return DataError(read, "model.onnx.path");
  if (spec.proto().has_bench()) return std::make_unique<Benchmark>(spec, options, observer);
  if (spec.proto().precision().mode() == v1::PrecisionSpec::AUTO) {
    return std::make_unique<AutoTrainer>(spec, options, observer);
  }
  auto trainer = std::make_unique<TrainerImpl>(spec, options, observer);
  AMPD_RETURN_IF_ERROR(trainer->Open());
  return trainer;
}

TrainerImpl::TrainerImpl(const ResolvedJobSpec& spec, const TrainerOptions& options, TrainerObserver* observer)
    : spec_(spec),
      options_(options),
      observer_(observer),
      spec_hash_(SpecHash(spec)),
      artifacts_(options.artifact_dir) {}

absl::Status TrainerImpl::Open() {
  AMPD_ASSIGN_OR_RETURN(data_,
                        TrainingData::Open(spec_, options_.data_roots, options_.checkpoint_dir, options_.threads));
  const v1::TrainSpec& train = job().train();
  AMPD_RETURN_IF_ERROR(CheckShares(train, static_cast<int64_t>(Devices().size())));
  batches_per_epoch_ = data_->train().size() / train.batch_size();
  total_steps_ = TotalSteps(train, data_->train().size());
  // Before the samples that may lie on the device: they take of what is left.
  if (job().report().diagnostics_every_steps() > 0) {
    AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, NewBackend());
    AMPD_ASSIGN_OR_RETURN(diagnostics_,
                          GradientDiagnostics::Create(spec_, data_->sample(), std::move(backend), ThreadsPerReplica()));
  }
  AMPD_RETURN_IF_ERROR(Restore());
  AMPD_RETURN_IF_ERROR(CheckMetrics());
  reporter_ = std::make_unique<Reporter>(job().report(), PhaseStarts(), total_steps_, observer_);
  return OpenLoader();
}

absl::Status TrainerImpl::OpenLoader() {
  // What the device runs ahead by, and one to be filled meanwhile.
  const int64_t batches = captured_ == nullptr ? 0 : captured_->most_batches() + 1;
  const auto read_ahead = captured_ == nullptr ? data::ReadAhead::kSamples : captured_->read_ahead();
  AMPD_ASSIGN_OR_RETURN(loader_, data_->TrainLoader(plan_->outputs, state_.step, batches, 0, read_ahead));
  return absl::OkStatus();
}

std::vector<std::string> TrainerImpl::Devices() const {
  return options_.devices.empty() ? std::vector<std::string>{options_.device} : options_.devices;
}

int TrainerImpl::ThreadsPerReplica() const {
  return std::max(1, options_.threads / static_cast<int>(Devices().size()));
}

absl::StatusOr<std::unique_ptr<runtime::Backend>> TrainerImpl::NewBackend(size_t rank) const {
  if (options_.make_backend) return options_.make_backend();
  return MakeBackend(Devices()[rank], ThreadsPerReplica(), options_.autotune_dir);
}

absl::Status TrainerImpl::Restore() {
  AMPD_ASSIGN_OR_RETURN(
      CheckpointStore store,
      CheckpointStore::Open(options_.checkpoint_dir, job().checkpoint().keep_last(), options_.mirror_dir));
  checkpoints_ = std::make_unique<CheckpointStore>(std::move(store));
  absl::optional<LoadedCheckpoint> loaded;
  if (options_.last_checkpoint.has_value() && options_.attempt > 0) {
    AMPD_ASSIGN_OR_RETURN(
        loaded, checkpoints_->LoadLeft(options_.attempt, spec_hash_, *options_.last_checkpoint, &refused_checkpoints_));
  }
  was_left_ = loaded.has_value();
  if (!was_left_) {
    AMPD_ASSIGN_OR_RETURN(loaded,
                          checkpoints_->LoadNewest(spec_hash_, options_.last_checkpoint, &refused_checkpoints_));
  }
  saved_at_ = SteadySeconds();
  if (loaded.has_value()) {
    saved_ = {loaded->name, loaded->size_bytes, ""};
    saved_step_ = loaded->state.step;
    from_mirror_ = loaded->from_mirror;
    if (options_.last_checkpoint.has_value()) checkpoints_->Hold(loaded->name);
  }
  return StartFrom(std::move(loaded));
}

std::vector<PhaseStart> TrainerImpl::PhaseStarts() const {
  std::vector<PhaseStart> starts;
  for (size_t i = 0; i < state_.phases.size(); ++i) {
    const PhaseState& phase = state_.phases[i];
    starts.push_back({phase.name, runners_[i]->LearningRate(std::max<int64_t>(phase.scaler.steps_applied - 1, 0)),
                      static_cast<double>(phase.scaler.scale), phase.own_applied(), phase.own_skipped()});
  }
  return starts;
}

absl::Status TrainerImpl::StartFrom(absl::optional<LoadedCheckpoint> checkpoint) {
  if (!checkpoint.has_value() && job().start_from().continue_training()) {
    const TrainingLength length{
        .steps = total_steps_, .samples = data_->train().size(), .length_buckets = data_->Notes().length_buckets};
    AMPD_ASSIGN_OR_RETURN(checkpoint, LoadContinued(options_.start_checkpoint_dir, spec_, length));
  }
  std::vector<bool> fell_back;
  if (checkpoint.has_value()) {
    AMPD_RETURN_IF_ERROR(CheckOnnxFile(spec_, checkpoint->state.onnx_sha256));
    for (const PhaseState& phase : checkpoint->state.phases) fell_back.push_back(phase.scaler.fell_back);
  }
  AMPD_RETURN_IF_ERROR(OpenModel(fell_back));
  infinite_in_file_ = InfiniteInOnnxFile(spec_);
  const bool resumes = checkpoint.has_value();
  if (resumes) {
    AMPD_RETURN_IF_ERROR(TakeOver(*std::move(checkpoint)));
  } else {
    state_.step = 0;
    state_.seed = job().seed();
    state_.phases.clear();
    state_.best.reset();
    state_.stopping.reset();
    for (size_t i = 0; i < runners_.size(); ++i) {
      state_.phases.push_back({plan_->phases[i].name, optim::InitialScalerState(runners_[i]->loss_scale()), {}});
    }
    AMPD_RETURN_IF_ERROR(SetFirstWeights(spec_, options_, &model_->memory, &start_notes_));
  }
  // By this build, whichever wrote the checkpoint.
  state_.spec_hash = spec_hash_;
  state_.spec = HashedSpec(spec_);
  state_.onnx_sha256 = OnnxChecksum(spec_);
  InputNotes input = data_->Notes();
  if (resumes) {
    AMPD_ASSIGN_OR_RETURN(data_notes_, CompareInputs(state_.input, input));
    // `limit` has taken classes in turn since checkpoints tell of the number of samples.
    if (state_.input.samples == 0 && LimitsByClass(spec_.proto().data())) {
      data_notes_.push_back(
          "data: limit takes samples of each class in turn; an earlier build, which wrote the checkpoint, took the "
          "first "
          "ones, so the samples may be others from here on");
    }
  }
  state_.input = std::move(input);
  step_ = state_.step;
  for (const std::unique_ptr<StepRunner>& runner : runners_) AMPD_RETURN_IF_ERROR(runner->Prepare());
  if (!resumes) AMPD_RETURN_IF_ERROR(model_->StartAverage());
  if (replicas_ == nullptr) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(replicas_->TakeOver(model_.get()));
  for (const std::unique_ptr<StepRunner>& runner : runners_) {
    AMPD_RETURN_IF_ERROR(Annotate(runner->WarmUp(), absl::StrCat("device ", Devices()[0])));
  }
  return replicas_->WarmUp();
}

absl::Status TrainerImpl::OpenModel(const std::vector<bool>& fell_back) {
  captured_.reset();
  runners_.clear();
  sampler_.reset();
  skip_limits_.clear();
  replicas_.reset();
  model_.reset();
  plan_.reset();
  unprofiled_seconds_ = 0;
  unprofiled_steps_ = 0;
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, NewBackend());
  const Fusion fusion = Devices().size() > 1 ? kReplicaFusion : Fusion::kAll;
  AMPD_ASSIGN_OR_RETURN(plan_, PlanModel(spec_, data_->sample(), std::move(backend), ThreadsPerReplica(), fusion,
                                         fell_back, static_cast<int64_t>(Devices().size())));
  AMPD_ASSIGN_OR_RETURN(model_, LoadedModel::Create(*plan_));
  AMPD_ASSIGN_OR_RETURN(sampler_, MakeSampler(spec_, *plan_));
  if (Devices().size() > 1) AMPD_RETURN_IF_ERROR(OpenReplicas(fell_back));
  // The loader refuses a dataset without a whole batch; it is made here to find that, and unfit targets, at once.
  AMPD_RETURN_IF_ERROR(data_->TrainLoader(plan_->outputs, 0).status());
  if (data_->eval() != nullptr) AMPD_RETURN_IF_ERROR(data_->EvalLoader(plan_->outputs).status());
  for (size_t i = 0; i < plan_->phases.size(); ++i) {
    runners_.push_back(std::make_unique<StepRunner>(total_steps_, plan_.get(), model_.get(), static_cast<int>(i),
                                                    replicas_ == nullptr ? nullptr : replicas_->collective(),
                                                    options_.gradient_bucket_bytes));
    skip_limits_.push_back({.max_ratio = job().limits().max_skip_ratio(),
                            .window = job().limits().skip_window_steps(),
                            .total_steps = std::max<int64_t>(total_steps_ - StepsBefore(job()), 1),
                            .every = plan_->phases[i].every,
                            .hysteresis = runners_.back()->loss_scale().hysteresis});
  }
  // What the replicas agree upon goes through the host.
  if (options_.steps == StepMode::kHost || replicas_ != nullptr) return absl::OkStatus();
  AMPD_ASSIGN_OR_RETURN(captured_,
                        CapturedSteps::Create(*plan_, model_.get(), &runners_, LaunchOf(options_.steps), data_.get()));
  return absl::OkStatus();
}

absl::Status TrainerImpl::OpenReplicas(const std::vector<bool>& fell_back) {
  ReplicaOptions options;
  options.spec = &spec_;
  options.sample = &data_->sample();
  options.fell_back = fell_back;
  options.total_steps = total_steps_;
  options.devices = Devices();
  options.threads = ThreadsPerReplica();
  options.bucket_bytes = options_.gradient_bucket_bytes;
  options.make_backend = [this](int rank) { return NewBackend(static_cast<size_t>(rank)); };
  options.make_collectives = options_.make_collectives;
  AMPD_ASSIGN_OR_RETURN(replicas_, Replicas::Create(options, plan_->backend.get()));
  return absl::OkStatus();
}

absl::Status TrainerImpl::TakeOver(LoadedCheckpoint checkpoint) {
  AMPD_RETURN_IF_ERROR(Annotate(LoadModel(checkpoint.model, &model_->memory), checkpoint.name));
  AMPD_RETURN_IF_ERROR(Annotate(LoadOptimizer(checkpoint.optimizer, &model_->memory, MomentsOf(*plan_, model_->moments),
                                              checkpoint.of_other_mode),
                                checkpoint.name));
  if (plan_->keeps_average) {
    if (!checkpoint.ema.has_value()) {
      return DoesNotFit(absl::StrCat(checkpoint.name, ": no ema.safetensors"));
    }
    AMPD_RETURN_IF_ERROR(Annotate(LoadAverage(*checkpoint.ema, &model_->memory, &model_->average), checkpoint.name));
  }
  state_ = std::move(checkpoint.state);
  // A later best one took its place, and is behind the training again, or it is lost, and the mirror has no copy.
  if (state_.best && !checkpoints_->HasOrBringsBack(state_.best->step, &start_notes_)) state_.best.reset();
  if (state_.phases.size() != plan_->phases.size() || state_.step > total_steps_) {
    return DoesNotFit(absl::StrCat(checkpoint.name, ": ", state_.phases.size(), " phases of ", plan_->phases.size(),
                                   ", step ", state_.step, " of ", total_steps_));
  }
  for (size_t i = 0; i < state_.phases.size(); ++i) {
    if (state_.phases[i].name == plan_->phases[i].name) continue;
    return DoesNotFit(absl::StrCat(checkpoint.name, ": phase ", i, " is ", state_.phases[i].name, ", the job's is ",
                                   plan_->phases[i].name));
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
  if (outcome.ok()) {
    AMPD_RETURN_IF_ERROR(FinishProfile());
    return outcome;
  }
  // The steps before the failure happened, and so did the damage; where the observer is what failed, its error stands.
  ReportCorrupt().IgnoreError();
  FinishProfile().IgnoreError();
  reporter_->Flush().IgnoreError();
  return outcome;
}

absl::Status TrainerImpl::Announce() {
  for (const std::string& line : refused_checkpoints_) {
    AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::WARNING, line));
  }
  for (const std::string& line : data_notes_) {
    AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::WARNING, line));
  }
  if (saved_step_ < 0 && job().model().has_onnx()) {
    for (const std::string& note : models::DescribeGuesses(job().model())) {
      AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::INFO, note));
    }
  }
  if (saved_step_ < 0 && job().has_start_from()) {
    for (const std::string& note : start_notes_) AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::WARNING, note));
    AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::INFO, StartText()));
  }
  if (captured_ != nullptr) {
    const absl::Status& samples = captured_->samples();
    AMPD_RETURN_IF_ERROR(reporter_->Log(
        v1::LogLine::INFO, samples.ok() ? "training samples lie on the device"
                                        : absl::StrCat("training samples are fed by the host: ", samples.message())));
    for (const std::string& note : captured_->notes()) AMPD_RETURN_IF_ERROR(reporter_->Log(v1::LogLine::INFO, note));
  }
  std::string resumed =
      absl::StrCat("resumed from checkpoint ", saved_.name, from_mirror_ ? ", the copy in the mirror" : "");
  for (const PhaseState& phase : state_.phases) {
    if (!phase.scaler.fell_back) continue;
    absl::StrAppend(&resumed, state_.phases.size() > 1 ? absl::StrCat(", phase ", phase.name) : "",
                    ", in BF16 since it fell back");
  }
  if (was_left_) {
    absl::StrAppend(
        &resumed,
        ", as LEFT has it (of an attempt that had no daemon any more, or whose daemon had an older database)");
  }
  AMPD_RETURN_IF_ERROR(AnnounceStart(resumed));
  // The daemon knows it before what follows from it.
  return was_left_ && !AtEnd() ? EmitCheckpoint(std::nullopt) : absl::OkStatus();
}

std::string TrainerImpl::StartText() const {
  const std::string source = StartName(job().start_from());
  if (!job().start_from().continue_training()) return absl::StrCat("starts from ", source);
  std::string text =
      absl::StrCat("continues the training of ", source, ": ", state_.step, " of ", total_steps_, " steps are done");
  for (size_t i = 0; i < state_.phases.size(); ++i) {
    const PhaseState& phase = state_.phases[i];
    absl::StrAppend(&text, i == 0 ? "; " : ", ",
                    state_.phases.size() > 1 ? absl::StrCat("phase ", phase.name, " ") : "",
                    "goes on at learning rate ", runners_[i]->LearningRate(phase.scaler.steps_applied),
                    phase.scaler.fell_back ? ", in BF16 since it fell back" : "");
    if (runners_[i]->loss_scale().kind == optim::LossScaleKind::kNone) continue;
    absl::StrAppend(&text, " and loss scale ", phase.scaler.scale);
  }
  return text;
}

absl::Status TrainerImpl::AnnounceStart(const std::string& resumed) {
  if (state_.step < options_.last_reported_step) {
    v1::JobEvent event;
    event.mutable_rewound()->set_to_step(state_.step);
    event.mutable_rewound()->set_reason(saved_step_ < 0 ? "no checkpoint to resume from" : resumed);
    return reporter_->Emit(std::move(event));
  }
  const bool knows_reports = options_.last_checkpoint.has_value();
  const int64_t reported = std::max(options_.last_reported_step, StepsBefore(job()));
  if (knows_reports && saved_step_ >= 0 && state_.step > reported) {
    return reporter_->Log(v1::LogLine::WARNING,
                          absl::StrCat(resumed, "; steps ", reported + 1, " to ", state_.step, " have no reports"));
  }
  return saved_step_ < 0 ? absl::OkStatus() : reporter_->Log(v1::LogLine::INFO, resumed);
}

absl::Status TrainerImpl::DropHeldCheckpoint() {
  return saved_step_ == state_.step ? checkpoints_->DropHeld(state_) : absl::OkStatus();
}

absl::Status TrainerImpl::LeaveCheckpoint() {
  if (saved_step_ < 0 || saved_step_ != state_.step) return absl::OkStatus();
  return checkpoints_->Leave(options_.attempt, saved_.name);
}

absl::StatusOr<Outcome> TrainerImpl::Loop() {
  if (AtEnd()) {
    // The attempt before came this far, but its last events may not have got out.
    AMPD_RETURN_IF_ERROR(EvaluateIfDue());
    AMPD_RETURN_IF_ERROR(SampleIfDue());
    AMPD_RETURN_IF_ERROR(EmitCheckpoint(std::nullopt));
    AMPD_RETURN_IF_ERROR(CheckWhatWasApplied());
    return Outcome::kCompleted;
  }
  while (!AtEnd()) {
    AMPD_ASSIGN_OR_RETURN(const optim::ScalerDecision decision, Step());
    // It wrote the checkpoint it stands at, and ends no epoch.
    if (decision == optim::ScalerDecision::kRollBack) continue;
    // The model is steps ahead of what was reported.
    if (captured_ != nullptr && !captured_->idle()) continue;
    const bool stop = stop_requested_.load();
    const bool asked = checkpoint_requested_.exchange(false) || stop;
    AMPD_RETURN_IF_ERROR(EvaluateIfDue());
    AMPD_RETURN_IF_ERROR(SampleIfDue());
    AMPD_RETURN_IF_ERROR(CheckpointIfDue(std::exchange(evaluation_due_to_save_, false) || asked));
    if (stop && !AtEnd()) return Outcome::kStopped;
  }
  AMPD_RETURN_IF_ERROR(CheckWhatWasApplied());
  return Outcome::kCompleted;
}

// Nobody should have to look for it: a job that ends well has trained.
absl::Status TrainerImpl::CheckWhatWasApplied() {
  for (size_t p = 0; p < state_.phases.size(); ++p) {
    const PhaseState& state = state_.phases[p];
    const std::string of = state_.phases.size() == 1 ? "" : absl::StrCat("phase ", state.name, ": ");
    const int64_t applied = state.own_applied(), skipped = state.own_skipped();
    const absl::Status checked =
        CheckApplied(skip_limits_[p], applied, skipped, state.inherited_applied > 0, state.skips);
    if (!checked.ok()) return of.empty() ? checked : Annotate(checked, "phase " + state.name);
    if (skipped <= applied) continue;
    AMPD_RETURN_IF_ERROR(reporter_->Log(
        v1::LogLine::WARNING,
        absl::StrCat(
            of, skipped, " of ", applied + skipped,
            " steps were skipped, since their loss or a gradient was not finite: their batches were not learnt "
            "from")));
  }
  return absl::OkStatus();
}

absl::StatusOr<optim::ScalerDecision> TrainerImpl::Step() {
  StartProfile();
  const double start = SteadySeconds();
  if (profiler_ != nullptr && profiler_->kind() == ProfiledSteps::kWhole) profiler_->Start();
  AMPD_ASSIGN_OR_RETURN(data::Batch * batch, TakeStep());
  if (profiler_ != nullptr) profiler_->Settle();
  const double seconds = SteadySeconds() - start;
  AMPD_RETURN_IF_ERROR(ReportCorrupt());
  ++state_.step;
  step_.store(state_.step, std::memory_order_relaxed);
  for (const PhaseResult& result : results_) {
    if (std::isfinite(result.step.loss)) state_.phases[result.phase].loss = result.step.loss;
  }
  AMPD_RETURN_IF_ERROR(ReportStep(*batch, seconds));
  AMPD_RETURN_IF_ERROR(ProfileStep(*batch, seconds));
  for (const PhaseResult& result : results_) {
    if (!result.step.applied()) AMPD_RETURN_IF_ERROR(ReportSkip(*batch, result));
    AMPD_RETURN_IF_ERROR(ReportScale(result.phase, result.step.scale_before, result.step.scale_after));
  }
  for (v1::JobEvent& event : diagnosed_) AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  loader_->Release(batch);
  return CheckSkips();
}

absl::StatusOr<data::Batch*> TrainerImpl::TakeStep() {
  diagnosed_.clear();
  const bool in_parts = profiler_ != nullptr && profiler_->kind() == ProfiledSteps::kParts;
  if (captured_ != nullptr && !DiagnosticsDue(state_.step + 1) && !in_parts) {
    return captured_->Next(state_.step, StepsAhead(), loader_.get(), &state_.phases, &results_);
  }
  if (TakesStepsWhole()) {
    // The host's kernels would add up in another order, and the training would not be the one without a look.
    AMPD_ASSIGN_OR_RETURN(const data::Batch* const looked_at,
                          captured_->Peek(state_.step, loader_.get(), state_.phases));
    AMPD_RETURN_IF_ERROR(Diagnose(*looked_at, 0));
    return captured_->Next(state_.step, 1, loader_.get(), &state_.phases, &results_);
  }
  absl::StatusOr<data::Batch*> batch = loader_->Next();
  if (!batch.ok()) return DataError(batch.status(), "data.train");
  AMPD_RETURN_IF_ERROR(RunPhases(**batch));
  if (captured_ != nullptr) captured_->Interrupt();
  return *batch;
}

bool TrainerImpl::DiagnosticsDue(int64_t step) const {
  return diagnostics_ != nullptr && step % job().report().diagnostics_every_steps() == 0;
}

int64_t TrainerImpl::StepsAhead() const {
  const v1::CheckpointSpec& checkpoint = job().checkpoint();
  const auto until = [this](int64_t every) { return every - state_.step % every; };
  const bool due_by_time =
      checkpoint.every_seconds() > 0 && SteadySeconds() - saved_at_ >= static_cast<double>(checkpoint.every_seconds());
  if (due_by_time || checkpoint_requested_.load() || stop_requested_.load()) return 1;
  if (asked_profile_.Get().steps > 0 && profiler_ == nullptr) return 1;
  int64_t steps = total_steps_ - state_.step;
  if (profiler_ != nullptr) steps = std::min(steps, profiler_->left());
  if (data_->eval() != nullptr) {
    const bool by_step = job().train().has_eval_every_steps();
    steps = std::min(steps, until(by_step ? job().train().eval_every_steps() : batches_per_epoch_));
  }
  if (sampler_ != nullptr) steps = std::min(steps, until(job().report().samples().every_steps()));
  if (checkpoint.every_steps() > 0) steps = std::min(steps, until(checkpoint.every_steps()));
  if (diagnostics_ != nullptr) steps = std::min(steps, until(job().report().diagnostics_every_steps()) - 1);
  return steps;
}

absl::StatusOr<StepResult> TrainerImpl::RunPhase(const data::Batch& batch, size_t phase) {
  StepRunner* runner = runners_[phase].get();
  optim::LossScalerState* scaler = &state_.phases[phase].scaler;
  if (replicas_ == nullptr) return runner->Run(batch, scaler);
  absl::StatusOr<StepResult> result = replicas_->Run(phase, batch, scaler, runner);
  if (result.ok() && options_.compare_replicas) AMPD_RETURN_IF_ERROR(replicas_->CheckEqual(model_.get()));
  return result;
}

absl::Status TrainerImpl::RunPhases(const data::Batch& batch) {
  results_.clear();
  for (size_t i = 0; i < runners_.size(); ++i) {
    if ((state_.step + 1) % plan_->phases[i].every != 0) continue;
    AMPD_RETURN_IF_ERROR(Diagnose(batch, i));
    runners_[i]->set_profiler(profiler_.get());
    absl::StatusOr<StepResult> result = RunPhase(batch, i);
    runners_[i]->set_profiler(nullptr);
    AMPD_RETURN_IF_ERROR(result.status());
    results_.push_back({i, *std::move(result)});
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::Diagnose(const data::Batch& batch, size_t phase) {
  if (!DiagnosticsDue(state_.step + 1)) return absl::OkStatus();
  const StepRunner& runner = *runners_[phase];
  const bool scaled = runner.loss_scale().kind != optim::LossScaleKind::kNone;
  const float scale = scaled ? state_.phases[phase].scaler.scale : kFp16FirstScale;
  v1::JobEvent event;
  AMPD_ASSIGN_OR_RETURN(*event.mutable_gradient_diagnostics(),
                        diagnostics_->Run(batch, runner.StateOf(batch), scale, &model_->memory, phase));
  event.mutable_gradient_diagnostics()->set_step(state_.step + 1);
  event.mutable_gradient_diagnostics()->set_phase(state_.phases[phase].name);
  diagnosed_.push_back(std::move(event));
  return absl::OkStatus();
}

absl::Status TrainerImpl::ReportStep(const data::Batch& batch, double seconds) {
  records_.clear();
  for (const PhaseResult& result : results_) {
    const PhaseState& phase = state_.phases[result.phase];
    const optim::LossScalerState& scaler = phase.scaler;
    records_.push_back({.phase = result.phase,
                        .loss = result.step.loss,
                        .applied = result.step.applied(),
                        .learning_rate = result.step.learning_rate,
                        .gradient_norm = result.step.gradient_norm,
                        .loss_scale = static_cast<double>(scaler.scale),
                        .steps_applied = phase.own_applied(),
                        .steps_skipped = phase.own_skipped()});
  }
  return reporter_->AddStep({.step = state_.step,
                             .epoch = batch.epoch,
                             .phases = records_,
                             .samples = batch.valid,
                             .seconds = seconds,
                             .wait_seconds = batch.wait_seconds});
}

absl::Status TrainerImpl::ReportCorrupt() {
  for (v1::CorruptSample& sample : data_->TakeCorrupt()) {
    v1::JobEvent event;
    *event.mutable_corrupt_sample() = std::move(sample);
    AMPD_RETURN_IF_ERROR(reporter_->Emit(std::move(event)));
  }
  return absl::OkStatus();
}

absl::Status TrainerImpl::ReportSkip(const data::Batch& batch, const PhaseResult& result) {
  v1::JobEvent event;
  v1::OverflowSkip* skip = event.mutable_overflow_skip();
  skip->set_step(state_.step);
  skip->set_phase(state_.phases[result.phase].name);
  skip->set_scale_before(result.step.scale_before);
  skip->set_scale_after(result.step.scale_after);
  skip->set_stage(result.step.first_non_finite.stage);
  skip->set_first_tensor(result.step.first_non_finite.tensor);
  skip->set_kind(result.step.first_non_finite.kind);
  skip->set_epoch(batch.epoch);
  skip->set_batch(batch.batch);
  skip->set_calibration(result.step.calibration);
  return reporter_->Emit(std::move(event));
}

absl::Status TrainerImpl::ReportScale(size_t phase, double before, double after) {
  if (before == after) return absl::OkStatus();
  v1::JobEvent event;
  v1::LossScaleChange* change = event.mutable_loss_scale_change();
  change->set_step(state_.step);
  change->set_phase(state_.phases[phase].name);
  change->set_scale_before(before);
  change->set_scale_after(after);
  return reporter_->Emit(std::move(event));
}

absl::StatusOr<optim::ScalerDecision> TrainerImpl::CheckSkips() {
  for (const PhaseResult& result : results_) {
    const StepResult& step = result.step;
    if (step.decision == optim::ScalerDecision::kFail) return Diverged(result);
    if (step.decision == optim::ScalerDecision::kRollBack) {
      AMPD_RETURN_IF_ERROR(FinishProfile());
      // It undoes what the other phases did too.
      AMPD_RETURN_IF_ERROR(RollBack(result));
      return step.decision;
    }
    const bool scale_moved = step.scale_after != step.scale_before;
    PhaseState& state = state_.phases[result.phase];
    const absl::Status counted =
        CountStep(skip_limits_[result.phase], state_.step, step.applied(), step.calibration, scale_moved, &state.skips);
    if (!counted.ok()) return state_.phases.size() == 1 ? counted : Annotate(counted, "phase " + state.name);
    if (step.decision != optim::ScalerDecision::kFallBack) continue;
    AMPD_RETURN_IF_ERROR(FinishProfile());
    AMPD_RETURN_IF_ERROR(FallBack(result));
  }
  return optim::ScalerDecision::kApply;
}

absl::Status TrainerImpl::CheckpointIfDue(bool asked) {
  const v1::CheckpointSpec& spec = job().checkpoint();
  const double now = SteadySeconds();
  const bool by_step = spec.every_steps() > 0 && state_.step % spec.every_steps() == 0;
  const bool by_time = spec.every_seconds() > 0 && now - saved_at_ >= static_cast<double>(spec.every_seconds());
  if (!asked && !by_step && !by_time && !AtEnd()) return absl::OkStatus();
  return WriteCheckpoint();
}

absl::Status TrainerImpl::WriteCheckpoint() {
  const double start = SteadySeconds();
  AMPD_RETURN_IF_ERROR(reporter_->Flush());
  if (replicas_ != nullptr) AMPD_RETURN_IF_ERROR(replicas_->CheckEqual(model_.get()));
  HoldPublished();
  const std::vector<PhaseMoments> moments = MomentsOf(*plan_, model_->moments);
  std::set<std::string> trained;
  for (const PhaseMoments& phase : moments) {
    for (const int32_t i : phase.parameters) trained.insert(model_->memory.layout().parameters()[i].name);
  }
  const auto is_trained = [&](const std::string& name) {
    return trained.count(name) > 0 && infinite_in_file_.count(name) == 0;
  };
  const auto all = [](const std::string&) { return true; };
  AMPD_ASSIGN_OR_RETURN(saved_,
                        checkpoints_->Save(state_, MustBeFinite(ModelTensors(&model_->memory), is_trained),
                                           MustBeFinite(OptimizerTensors(&model_->memory, moments), all),
                                           MustBeFinite(AverageTensors(&model_->memory, model_->average), is_trained)));
  // Once it is told the daemon may know of it, and die before it says so.
  if (options_.published_checkpoint && !checkpoints_->holds()) checkpoints_->Hold(saved_.name);
  saved_step_ = state_.step;
  saved_at_ = SteadySeconds();
  return EmitCheckpoint(saved_at_ - start);
}

void TrainerImpl::HoldPublished() {
  if (!options_.last_checkpoint.has_value() || !options_.published_checkpoint) return;
  std::string published = options_.published_checkpoint();
  if (published.empty()) return;
  checkpoints_->Hold(std::move(published));
  checkpoints_->ForgetLeft();
}

absl::Status TrainerImpl::EmitCheckpoint(std::optional<double> write_seconds) {
  v1::JobEvent event;
  v1::CheckpointSaved* checkpoint = event.mutable_checkpoint();
  checkpoint->set_step(saved_step_);
  checkpoint->set_checkpoint(saved_.name);
  checkpoint->set_size_bytes(saved_.size_bytes);
  checkpoint->set_write_seconds(write_seconds.value_or(0));
  checkpoint->set_already_written(!write_seconds.has_value());
  checkpoint->set_mirror_error(saved_.mirror_error);
  if (state_.best && state_.best->step == saved_step_) {
    checkpoint->set_best(true);
    checkpoint->set_metric(state_.best->metric);
  }
  checkpoint->set_epoch(state_.step == 0 ? 0 : (state_.step - 1) / batches_per_epoch_ + 1);
  checkpoint->set_total_steps(total_steps_);
  for (const PhaseState& state : state_.phases) {
    v1::CheckpointSaved::Phase* phase = checkpoint->add_phases();
    phase->set_name(state.name);
    if (state.loss) phase->set_loss(*state.loss);
    phase->set_loss_scale(static_cast<double>(state.scaler.scale));
    phase->set_steps_applied(state.own_applied());
    phase->set_steps_skipped(state.own_skipped());
  }
  return reporter_->Emit(std::move(event));
}

}  // namespace ampd::train
