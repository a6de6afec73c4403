#include "tests/bench/device_steps.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// So few that a window stays below a second for all but the largest steps.
constexpr int64_t kMostWindow = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSteps>> DeviceSteps::Create(
    const train::PlannedModel& plan, train::LoadedModel* model,
    const std::vector<std::unique_ptr<train::StepRunner>>* runners, data::Batch* batch, runtime::StepLaunch launch,
    std::function<absl::Status()> wait) {
  const v1::TrainSpec& train = plan.phases[0].spec.proto().train();
  runtime::StepLoopConfig config;
  config.memory = &model->memory;
  config.launch = launch;
  config.micro_batch_size = train.micro_batch_size();
  config.micro_batches = train.batch_size() / train.micro_batch_size();
  config.seed = plan.phases[0].spec.proto().seed();
  for (const auto& runner : *runners) config.phases.push_back(runner->LoopPhase());
  std::unique_ptr<DeviceSteps> steps(new DeviceSteps(plan, runners, batch, std::move(wait)));
  AMPD_ASSIGN_OR_RETURN(steps->loop_, plan.backend->MakeStepLoop(config));
  for (const auto& runner : *runners) {
    steps->scalers_.push_back(optim::InitialScalerState(runner->loss_scale()));
    runner->micro_batches().Describe(*batch, &steps->inputs_, &steps->weights_, &steps->shares_);
  }
  AMPD_RETURN_IF_ERROR(steps->Start());
  return steps;
}

uint64_t DeviceSteps::PhasesDue(int64_t step) const {
  uint64_t due = 0;
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    if ((step + 1) % plan_.phases[p].every == 0) due |= uint64_t{1} << p;
  }
  return due;
}

absl::Status DeviceSteps::Start() {
  launched_ = next_;
  return loop_->Start(static_cast<uint64_t>(next_), scalers_);
}

absl::Status DeviceSteps::Feed(DeviceTimes* times) {
  const auto start = Clock::now();
  AMPD_RETURN_IF_ERROR(loop_->Feed(0, inputs_, weights_));
  times->host += SecondsSince(start);
  ++fed_;
  return absl::OkStatus();
}

absl::Status DeviceSteps::LaunchFed(DeviceTimes* times) {
  const auto start = Clock::now();
  while (launched_ < fed_) {
    const uint64_t due = PhasesDue(launched_);
    int64_t end = launched_ + 1;
    while (end < fed_ && PhasesDue(end) == due) ++end;
    AMPD_RETURN_IF_ERROR(loop_->Launch(0, due, end - launched_));
    launched_ = end;
  }
  times->host += SecondsSince(start);
  return absl::OkStatus();
}

absl::Status DeviceSteps::Finish(DeviceTimes* times) {
  const uint64_t due = PhasesDue(next_);
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    if ((due >> p & 1) == 0) continue;
    AMPD_ASSIGN_OR_RETURN(const absl::optional<runtime::StepRecord> record, loop_->Next());
    if (!record.has_value() || static_cast<int64_t>(record->attempted_step) != next_ ||
        record->phase != static_cast<int32_t>(p)) {
      return absl::InternalError(absl::StrCat("step ", next_, ", phase ", p, ": not its record"));
    }
    times->loss = record->loss;
    if (!record->decided) return TakeOver(*record, times);
    if (record->decision != optim::ScalerDecision::kApply && record->decision != optim::ScalerDecision::kSkip) {
      return absl::FailedPreconditionError(absl::StrCat("the training ends at step ", next_, ": its loss is ",
                                                        record->loss, ", its scale ", record->scaler.scale));
    }
    times->applied += record->decision == optim::ScalerDecision::kApply ? 1 : 0;
    scalers_[p] = record->scaler;
  }
  ++next_;
  ++times->steps;
  return absl::OkStatus();
}

absl::Status DeviceSteps::TakeOver(const runtime::StepRecord& record, DeviceTimes* times) {
  AMPD_ASSIGN_OR_RETURN(const absl::optional<runtime::StepRecord> none, loop_->Next());
  if (none.has_value()) return absl::InternalError("a record behind an undecided step");
  batch_->step = next_;
  const uint64_t due = PhasesDue(next_);
  for (auto p = static_cast<size_t>(record.phase); p < plan_.phases.size(); ++p) {
    if ((due >> p & 1) == 0) continue;
    const bool first = p == static_cast<size_t>(record.phase);
    absl::StatusOr<train::StepResult> result =
        first ? runners_[p]->Resolve(*batch_, record, &scalers_[p]) : runners_[p]->Run(*batch_, &scalers_[p]);
    AMPD_RETURN_IF_ERROR(result.status());
    times->applied += result->applied() ? 1 : 0;
  }
  ++next_;
  ++times->steps;
  ++times->replayed;
  AMPD_RETURN_IF_ERROR(Start());
  return LaunchFed(times);
}

absl::StatusOr<DeviceTimes> DeviceSteps::Resident(int64_t steps) {
  DeviceTimes times;
  double host = 0;
  const int64_t window = std::min({steps, loop_->slots(), kMostWindow});
  // Replays can spoil windows, but not for ever.
  for (int64_t tries = 0; times.steps < steps || (times.windows.empty() && tries < 8); ++tries) {
    while (fed_ - next_ < window) AMPD_RETURN_IF_ERROR(Feed(&times));
    AMPD_RETURN_IF_ERROR(wait_());
    const int64_t replayed = times.replayed;
    times.host = 0;
    const auto start = Clock::now();
    AMPD_RETURN_IF_ERROR(LaunchFed(&times));
    while (next_ < fed_) AMPD_RETURN_IF_ERROR(Finish(&times));
    const double seconds = SecondsSince(start) / static_cast<double>(window);
    if (times.replayed == replayed) {
      times.windows.push_back(seconds);
      host += times.host / static_cast<double>(window);
    }
  }
  if (times.windows.empty()) return absl::FailedPreconditionError("steps were replayed in every window");
  times.host = host / static_cast<double>(times.windows.size());
  return times;
}

absl::StatusOr<DeviceTimes> DeviceSteps::Fed(int64_t steps) {
  DeviceTimes times;
  const auto start = Clock::now();
  const int64_t end = next_ + steps;
  while (next_ < end) {
    while (fed_ < end && fed_ - next_ < loop_->slots()) {
      AMPD_RETURN_IF_ERROR(Feed(&times));
      // A device that waits gets what there is; one at work is given many steps at once.
      if (launched_ == next_ || (fed_ - launched_) * 2 >= loop_->slots()) AMPD_RETURN_IF_ERROR(LaunchFed(&times));
    }
    AMPD_RETURN_IF_ERROR(LaunchFed(&times));
    AMPD_RETURN_IF_ERROR(Finish(&times));
  }
  times.windows = {SecondsSince(start) / static_cast<double>(steps)};
  times.host /= static_cast<double>(steps);
  return times;
}

}  // namespace ampd::bench
