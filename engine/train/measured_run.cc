#include "engine/train/measured_run.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/available_memory.h"
#include "engine/train/failure.h"
#include "engine/train/gradient_diagnostics.h"
#include "engine/train/spec_configs.h"
#include "engine/train/start_weights.h"

namespace ampd::train {
namespace {

using v1::PrecisionSpec;

// Of a device that takes steps by itself, whose records come in bursts.
constexpr int64_t kStepsAtATime = 5;

void SetMode(PrecisionSpec::Mode mode, PrecisionSpec* precision) {
  const PrecisionSpec::Mode own = precision->mode();
  precision->clear_auto_();
  // A resolved spec says the kind that its own mode brings; AUTO's says what was asked for.
  const v1::LossScaleSpec::Kind brought =
      own == PrecisionSpec::FP16 ? v1::LossScaleSpec::DYNAMIC : v1::LossScaleSpec::NONE;
  if (mode != own && own != PrecisionSpec::AUTO && precision->loss_scale().kind() == brought) {
    precision->mutable_loss_scale()->clear_kind();
  }
  ChangeMode(mode, precision);
}

}  // namespace

absl::StatusOr<ResolvedJobSpec> InMode(const ResolvedJobSpec& spec, PrecisionSpec::Mode mode, int64_t batch_size) {
  v1::JobSpec changed = spec.proto();
  changed.clear_bench();
  changed.mutable_data()->clear_eval();
  changed.mutable_checkpoint()->clear_keep_best();
  changed.mutable_report()->clear_samples();
  if (changed.optimizer().has_ema()) {
    changed.mutable_optimizer()->mutable_ema()->clear_evaluate();
    changed.mutable_optimizer()->mutable_ema()->clear_samples();
  }
  v1::TrainSpec* train = changed.mutable_train();
  train->clear_eval_every_epochs();
  train->clear_eval_every_steps();
  train->clear_early_stopping();
  const bool whole = train->micro_batch_size() == train->batch_size();
  train->set_micro_batch_size(whole ? batch_size : std::min(train->micro_batch_size(), batch_size));
  train->set_batch_size(batch_size);
  SetMode(mode, changed.mutable_precision());
  AMPD_ASSIGN_OR_RETURN(ResolvedJobSpec resolved, ResolveJobSpec(std::move(changed)));
  return resolved;
}

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

MeasuredRun::MeasuredRun(ResolvedJobSpec spec, const TrainingData* data, const TrainerOptions& options)
    : spec_(std::move(spec)), data_(data), options_(options), clock_(options.clock ? options.clock : SteadySeconds) {}

absl::StatusOr<std::unique_ptr<runtime::Backend>> MeasuredRun::NewBackend() const {
  if (options_.make_backend) return options_.make_backend();
  return MakeBackend(options_.devices.empty() ? options_.device : options_.devices[0], options_.threads,
                     options_.autotune_dir);
}

absl::StatusOr<std::unique_ptr<MeasuredRun>> MeasuredRun::Plan(const ResolvedJobSpec& spec, const TrainingData* data,
                                                               const TrainerOptions& options) {
  std::unique_ptr<MeasuredRun> run(new MeasuredRun(spec, data, options));
  // The schedule runs as in the job's own training.
  run->total_steps_ = std::max<int64_t>(1, TotalSteps(run->train(), data->train().size()));
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, run->NewBackend());
  AMPD_ASSIGN_OR_RETURN(run->plan_, PlanModel(spec, data->sample(), std::move(backend), options.threads));
  const std::vector<PlannedPhase>& phases = run->plan_->phases;
  const auto oftener = [](const PlannedPhase& a, const PlannedPhase& b) { return a.every < b.every; };
  run->told_phase_ = static_cast<size_t>(std::min_element(phases.begin(), phases.end(), oftener) - phases.begin());
  return run;
}

int64_t MeasuredRun::bytes() const {
  return device_bytes() + (plan_->backend->memory()->on_host() ? batch_bytes() : 0);
}

int64_t MeasuredRun::device_bytes() const {
  return plan_->parameter_bytes() + plan_->activation_bytes() + plan_->input_bytes();
}

int64_t MeasuredRun::batch_bytes() const { return LoaderBytes(data_->sample(), train().batch_size()); }

absl::Status MeasuredRun::Load() {
  AMPD_RETURN_IF_ERROR(CheckAvailable(*plan_->backend->memory(), bytes()));
  AMPD_ASSIGN_OR_RETURN(model_, LoadedModel::Create(*plan_));
  for (size_t i = 0; i < plan_->phases.size(); ++i) {
    runners_.push_back(std::make_unique<StepRunner>(total_steps_, plan_.get(), model_.get(), static_cast<int>(i)));
    phases_.push_back({plan_->phases[i].name, optim::InitialScalerState(runners_[i]->loss_scale()), {}});
  }
  AMPD_RETURN_IF_ERROR(SetFirstWeights(spec_, options_, &model_->memory, nullptr));
  for (const auto& runner : runners_) AMPD_RETURN_IF_ERROR(runner->Prepare());
  AMPD_RETURN_IF_ERROR(model_->StartAverage());
  if (options_.steps != StepMode::kHost) {
    // Fed: samples that lie on the device for one mode and find no room for the next would decide which is faster.
    AMPD_ASSIGN_OR_RETURN(captured_, CapturedSteps::Create(*plan_, model_.get(), &runners_, LaunchOf(options_.steps)));
  }
  const int64_t batches = captured_ == nullptr ? 0 : captured_->most_batches() + 1;
  AMPD_ASSIGN_OR_RETURN(loader_, data_->TrainLoader(plan_->outputs, 0, batches, train().batch_size()));
  return absl::OkStatus();
}

void MeasuredRun::Unload() {
  loader_.reset();
  captured_.reset();
  runners_.clear();
  model_.reset();
  plan_.reset();
}

absl::StatusOr<data::Batch*> MeasuredRun::TakeStep(int64_t ahead) {
  if (captured_ != nullptr) return captured_->Next(step_, ahead, loader_.get(), &phases_, &results_);
  absl::StatusOr<data::Batch*> batch = loader_->Next();
  if (!batch.ok()) return DataError(batch.status(), "data.train");
  results_.clear();
  for (size_t i = 0; i < runners_.size(); ++i) {
    if ((step_ + 1) % plan_->phases[i].every != 0) continue;
    AMPD_ASSIGN_OR_RETURN(StepResult result, runners_[i]->Run(**batch, &phases_[i].scaler));
    results_.push_back({i, std::move(result)});
  }
  return *batch;
}

absl::Status MeasuredRun::Look(const data::Batch& batch, MeasuredStep* step) {
  if (captured_ == nullptr) step->seconds -= batch.wait_seconds;
  for (const PhaseResult& result : results_) {
    if (result.phase == told_phase_) step->loss = result.step.loss;
    step->applied = step->applied && result.step.applied();
    if (result.step.applied() || result.step.decision == optim::ScalerDecision::kSkip) continue;
    return WithFailureClass(
        absl::AbortedError(absl::StrCat("the loss scale reached its floor, ", result.step.scale_after, ", in step ",
                                        step_, ": ", result.step.first_non_finite.tensor, " is not finite")),
        v1::Failure::DIVERGED);
  }
  return absl::OkStatus();
}

absl::Status MeasuredRun::Advance(int64_t most) {
  const int64_t count = captured_ == nullptr ? 1 : std::min(most, kStepsAtATime);
  const size_t first = steps_.size();
  const double start = clock_(), cpu_start = ProcessorSeconds();
  for (int64_t i = 0; i < count; ++i) {
    AMPD_ASSIGN_OR_RETURN(data::Batch * batch, TakeStep(count - i));
    ++step_;
    steps_.emplace_back();
    AMPD_RETURN_IF_ERROR(Look(*batch, &steps_.back()));
    applied_ += steps_.back().applied ? 1 : 0;
    loader_->Release(batch);
  }
  const double seconds = (clock_() - start) / static_cast<double>(count);
  const double cpu_seconds = (ProcessorSeconds() - cpu_start) / static_cast<double>(count);
  for (size_t i = first; i < steps_.size(); ++i) {
    steps_[i].seconds = std::max(0.0, steps_[i].seconds + seconds);
    steps_[i].wall_seconds = seconds;
    steps_[i].cpu_seconds = cpu_seconds;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<double>> MeasuredRun::UnderflowShare() {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Backend> backend, NewBackend());
  const models::SampleInfo& sample = data_->sample();
  AMPD_ASSIGN_OR_RETURN(const auto planned,
                        GradientDiagnostics::Plan(spec_, sample, std::move(backend), options_.threads));
  AMPD_RETURN_IF_ERROR(CheckAvailable(
      *plan_->backend->memory(), planned->parameter_bytes() + planned->activation_bytes() + planned->input_bytes()));
  AMPD_ASSIGN_OR_RETURN(backend, NewBackend());
  AMPD_ASSIGN_OR_RETURN(const auto diagnostics,
                        GradientDiagnostics::Create(spec_, sample, std::move(backend), options_.threads));
  absl::StatusOr<data::Batch*> batch = loader_->Next();
  if (!batch.ok()) return DataError(batch.status(), "data.train");
  double nonzero = 0, flushed = 0;
  for (size_t p = 0; p < runners_.size(); ++p) {
    AMPD_ASSIGN_OR_RETURN(
        const v1::GradientDiagnostics found,
        diagnostics->Run(**batch, runners_[p]->StateOf(**batch), phases_[p].scaler.scale, &model_->memory, p));
    for (const v1::TensorDiagnostics& tensor : found.tensors()) {
      nonzero += static_cast<double>(tensor.nonzero());
      flushed += tensor.flushed_scaled() * static_cast<double>(tensor.nonzero());
    }
  }
  loader_->Release(*batch);
  return nonzero > 0 ? absl::optional<double>(flushed / nonzero) : absl::nullopt;
}

}  // namespace ampd::train
