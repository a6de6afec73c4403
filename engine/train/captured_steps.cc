#include "engine/train/captured_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/status.h"
#include "engine/train/report.h"
#include "engine/train/training_data.h"

namespace ampd::train {
namespace {

absl::Status ReadBatch(data::Loader* loader, data::Batch* batch) {
  const absl::Status status = loader->Read(batch);
  return status.ok() ? status : DataError(status, "data.train");
}

// How far the device may be ahead of what was reported: a stop must not take longer to be heeded.
constexpr double kMostSecondsAhead = 0.1;

}  // namespace

runtime::StepLaunch LaunchOf(StepMode mode) {
  if (mode == StepMode::kFastest) return runtime::StepLaunch::kFastest;
  if (mode == StepMode::kResident) return runtime::StepLaunch::kResident;
  if (mode == StepMode::kInterpreted) return runtime::StepLaunch::kInterpreted;
  return mode == StepMode::kCaptured ? runtime::StepLaunch::kCaptured : runtime::StepLaunch::kEnqueued;
}

absl::StatusOr<std::unique_ptr<CapturedSteps>> CapturedSteps::Create(
    const PlannedModel& plan, LoadedModel* model, const std::vector<std::unique_ptr<StepRunner>>* runners,
    runtime::StepLaunch launch, const TrainingData* data, Clock clock) {
  runtime::StepLoopConfig config;
  config.memory = &model->memory;
  config.launch = launch;
  const v1::TrainSpec& train = plan.phases[0].spec.proto().train();
  config.micro_batch_size = train.micro_batch_size();
  config.micro_batches = train.batch_size() / train.micro_batch_size();
  config.seed = plan.phases[0].spec.proto().seed();
  for (const std::unique_ptr<StepRunner>& runner : *runners) config.phases.push_back(runner->LoopPhase());
  absl::StatusOr<runtime::StoredSamples> samples = absl::UnimplementedError("none are to be kept on the device");
  if (data != nullptr) samples = data->Stored(plan.outputs);
  if (samples.ok()) config.samples = &*samples;
  std::unique_ptr<CapturedSteps> steps(new CapturedSteps(plan, runners, std::move(clock)));
  absl::StatusOr<std::unique_ptr<runtime::StepLoop>> loop = plan.backend->MakeStepLoop(config);
  if (absl::IsUnimplemented(loop.status())) return nullptr;
  AMPD_RETURN_IF_ERROR(loop.status());
  steps->loop_ = *std::move(loop);
  steps->samples_ = samples.ok() ? steps->loop_->samples() : samples.status();
  return steps;
}

data::ReadAhead CapturedSteps::read_ahead() const {
  if (!samples_.ok()) return data::ReadAhead::kSamples;
  const bool weighed = std::any_of(runners_->begin(), runners_->end(),
                                   [](const auto& runner) { return runner->micro_batches().weighs_labels(); });
  return weighed ? data::ReadAhead::kLabels : data::ReadAhead::kNothing;
}

uint64_t CapturedSteps::PhasesDue(int64_t step) const {
  uint64_t due = 0;
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    if ((step + 1) % plan_.phases[p].every == 0) due |= uint64_t{1} << p;
  }
  return due;
}

absl::Status CapturedSteps::Start(int64_t step, const std::vector<PhaseState>& phases) {
  std::vector<optim::LossScalerState> scalers;
  for (const PhaseState& phase : phases) scalers.push_back(phase.scaler);
  AMPD_RETURN_IF_ERROR(loop_->Start(static_cast<uint64_t>(step), scalers));
  // Those that were launched behind the step at which the device stopped have done nothing.
  unlaunched_ = static_cast<int64_t>(queue_.size());
  windows_.clear();
  measured_from_ = clock_();
  running_ = true;
  return absl::OkStatus();
}

absl::StatusOr<data::Batch*> CapturedSteps::Peek(int64_t step, data::Loader* loader,
                                                 const std::vector<PhaseState>& phases) {
  if (!idle()) return absl::FailedPreconditionError("[captured steps] steps are under way");
  absl::StatusOr<data::Batch*> batch = loader->Next();
  if (!batch.ok()) return DataError(batch.status(), "data.train");
  if (!running_) AMPD_RETURN_IF_ERROR(Start(step, phases));
  measured_from_ = clock_();
  AMPD_RETURN_IF_ERROR(Feed(**batch));
  queue_.push_back({*batch, PhasesDue(step)});
  ++unlaunched_;
  return *batch;
}

absl::StatusOr<data::Batch*> CapturedSteps::Next(int64_t step, int64_t ahead, data::Loader* loader,
                                                 std::vector<PhaseState>* phases, std::vector<PhaseResult>* results) {
  results->clear();
  if (!running_) AMPD_RETURN_IF_ERROR(Start(step, *phases));
  if (idle()) measured_from_ = clock_();
  AMPD_RETURN_IF_ERROR(RunAhead(step, ahead, loader));
  if (queue_.empty()) return std::exchange(data_error_, absl::OkStatus());
  const Fed fed = queue_.front();
  queue_.pop_front();
  AMPD_RETURN_IF_ERROR(Finish(fed, loader, phases, results));
  Measure();
  return fed.batch;
}

absl::Status CapturedSteps::RunAhead(int64_t step, int64_t ahead, data::Loader* loader) {
  const int64_t target = std::max<int64_t>(1, std::min(ahead, InFlightTarget()));
  while (data_error_.ok() && static_cast<int64_t>(queue_.size()) < target) {
    const int64_t at = step + static_cast<int64_t>(queue_.size());
    absl::StatusOr<data::Batch*> batch = samples_.ok() ? loader->NextUnread() : loader->Next();
    if (!batch.ok()) {
      data_error_ = DataError(batch.status(), "data.train");
      break;
    }
    AMPD_RETURN_IF_ERROR(Feed(**batch));
    queue_.push_back({*batch, PhasesDue(at)});
    ++unlaunched_;
    // A device that waits gets what there is; one at work is given many steps at once.
    const bool waits = unlaunched_ == static_cast<int64_t>(queue_.size());
    if (waits || unlaunched_ * 2 >= target) AMPD_RETURN_IF_ERROR(LaunchFed());
  }
  // Half of what may be under way makes a window, so that the device works on one half while the other is fed. Less is
  // launched where nothing more can come to it, and as soon as the device has no more to do than its last window.
  const auto fed = static_cast<int64_t>(queue_.size());
  const bool last = !data_error_.ok() || fed >= ahead;
  const int64_t last_window = windows_.empty() ? 0 : windows_.back().steps;
  return last || fed - unlaunched_ <= std::max(target / 2, last_window) ? LaunchFed() : absl::OkStatus();
}

absl::Status CapturedSteps::Feed(const data::Batch& batch) {
  inputs_.clear();
  weights_.clear();
  shares_.clear();
  if (samples_.ok()) {
    for (const auto& runner : *runners_) runner->micro_batches().AppendWeights(batch, &weights_);
    return loop_->FeedSamples(batch.samples, weights_);
  }
  for (const std::unique_ptr<StepRunner>& runner : *runners_) {
    runner->micro_batches().Describe(batch, &inputs_, &weights_, &shares_);
  }
  return loop_->Feed(batch.bucket, inputs_, weights_);
}

absl::Status CapturedSteps::LaunchFed() {
  while (unlaunched_ > 0) {
    const auto first = queue_.end() - unlaunched_;
    const auto end = std::find_if(first, queue_.end(), [&](const Fed& fed) {
      return fed.phases != first->phases || fed.batch->bucket != first->batch->bucket;
    });
    const auto steps = static_cast<int64_t>(end - first);
    AMPD_RETURN_IF_ERROR(loop_->Launch(first->batch->bucket, first->phases, steps));
    unlaunched_ -= steps;
    windows_.push_back({steps, 0});
  }
  return absl::OkStatus();
}

absl::Status CapturedSteps::Finish(const Fed& fed, data::Loader* loader, std::vector<PhaseState>* phases,
                                   std::vector<PhaseResult>* results) {
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    if ((fed.phases >> p & 1) == 0) continue;
    AMPD_ASSIGN_OR_RETURN(const absl::optional<runtime::StepRecord> record, loop_->Next());
    if (!record.has_value() || static_cast<size_t>(record->phase) != p ||
        record->attempted_step != static_cast<uint64_t>(fed.batch->step)) {
      return absl::InternalError(absl::StrCat("[captured steps] step ", fed.batch->step, ", phase ", p,
                                              record.has_value() ? ": the record is another's" : ": no record"));
    }
    if (!record->decided) return TakeOver(fed, *record, loader, phases, results);
    results->push_back({p, (*runners_)[p]->ResultOf(*record)});
    (*phases)[p].scaler = record->scaler;
    // The device has stopped: whoever reads the result goes on with another model, or not at all.
    if (!results->back().step.applied() && record->decision != optim::ScalerDecision::kSkip) {
      running_ = false;
      return TakePhases(fed, p + 1, loader, phases, results);
    }
  }
  return absl::OkStatus();
}

absl::Status CapturedSteps::TakePhases(const Fed& fed, size_t first, data::Loader* loader,
                                       std::vector<PhaseState>* phases, std::vector<PhaseResult>* results) {
  for (size_t p = first; p < plan_.phases.size(); ++p) {
    if ((fed.phases >> p & 1) == 0) continue;
    AMPD_RETURN_IF_ERROR(ReadBatch(loader, fed.batch));
    AMPD_ASSIGN_OR_RETURN(StepResult result, (*runners_)[p]->Run(*fed.batch, &(*phases)[p].scaler));
    results->push_back({p, std::move(result)});
  }
  return absl::OkStatus();
}

absl::Status CapturedSteps::TakeOver(const Fed& fed, const runtime::StepRecord& record, data::Loader* loader,
                                     std::vector<PhaseState>* phases, std::vector<PhaseResult>* results) {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<runtime::StepRecord> none, loop_->Next());
  if (none.has_value()) return absl::InternalError("[captured steps] a record behind an undecided step");
  AMPD_RETURN_IF_ERROR(ReadBatch(loader, fed.batch));
  const auto p = static_cast<size_t>(record.phase);
  AMPD_ASSIGN_OR_RETURN(StepResult result, (*runners_)[p]->Resolve(*fed.batch, record, &(*phases)[p].scaler));
  results->push_back({p, std::move(result)});
  AMPD_RETURN_IF_ERROR(TakePhases(fed, p + 1, loader, phases, results));
  return Start(fed.batch->step + 1, *phases);
}

// Records may come in bursts, a window's at its end, so that only whole windows tell what a step takes.
void CapturedSteps::Measure() {
  // The host took the step's end, and the device begins anew behind it.
  if (windows_.empty()) return;
  Window& window = windows_.front();
  if (++window.returned < window.steps) return;
  const double now = clock_(), steps = static_cast<double>(window.steps);
  const double old = step_seconds_ == 0 ? 0 : std::pow(0.9, steps);
  step_seconds_ = old * step_seconds_ + (1 - old) * (now - measured_from_) / steps;
  measured_from_ = now;
  windows_.pop_front();
}

int64_t CapturedSteps::InFlightTarget() const {
  if (step_seconds_ == 0) return 2;
  const double steps = kMostSecondsAhead / step_seconds_;
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(steps, 1e6)), 2, loop_->slots());
}

}  // namespace ampd::train
