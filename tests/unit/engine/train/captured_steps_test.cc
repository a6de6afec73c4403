// How steps are handed to a device that takes them by itself: in windows, so that launches are few, and never so that
// anybody waits for a step that was not launched.
#include "engine/train/captured_steps.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "gtest/gtest.h"
#include "tests/support/forwarding_backend.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kSlots = 128;
// What the host takes for each step.
constexpr double kHostSeconds = 2e-6;

// What the device was asked to do, and how it fared.
struct Log {
  std::vector<int64_t> windows;
  int64_t most_in_flight = 0;
  // Seconds for which it had nothing to do, but for the first window and those behind a look of the host's.
  double idle = 0;
};

// One window of steps after the other, and a window's records at its end.
class FakeLoop : public runtime::StepLoop {
 public:
  FakeLoop(Log* log, double* now, double step_seconds) : log_(log), now_(now), step_seconds_(step_seconds) {}
  runtime::StepLaunch launch() const override { return runtime::StepLaunch::kCaptured; }
  int64_t slots() const override { return kSlots; }
  absl::Status Start(uint64_t attempted_step, absl::Span<const optim::LossScalerState>) override {
    next_ = launched_ = static_cast<int64_t>(attempted_step);
    fed_ = std::max(fed_, next_);
    return absl::OkStatus();
  }
  absl::Status Feed(size_t, absl::Span<const runtime::FedInput>, absl::Span<const runtime::MicroBatchWeight>) override {
    if (fed_ - next_ >= kSlots) return absl::FailedPreconditionError("no slot is free");
    ++fed_;
    return absl::OkStatus();
  }
  absl::Status Launch(size_t, uint64_t, int64_t steps) override {
    if (launched_ + steps > fed_) return absl::FailedPreconditionError("not so many are fed");
    if (launched_ > next_) log_->idle += std::max(0.0, *now_ - free_at_);
    free_at_ = std::max(free_at_, *now_) + static_cast<double>(steps) * step_seconds_;
    launched_ += steps;
    ends_.push_back({launched_, free_at_});
    log_->windows.push_back(steps);
    log_->most_in_flight = std::max(log_->most_in_flight, launched_ - next_);
    return absl::OkStatus();
  }
  absl::StatusOr<absl::optional<runtime::StepRecord>> Next() override {
    if (next_ == launched_) return absl::InternalError("a step is waited for that was not launched");
    while (ends_.front().first <= next_) ends_.pop_front();
    *now_ = std::max(*now_, ends_.front().second) + kHostSeconds;
    runtime::StepRecord record;
    record.attempted_step = static_cast<uint64_t>(next_++);
    record.loss = 1;
    record.scaler.steps_applied = next_;
    return record;
  }

 private:
  Log* const log_;
  double* const now_;
  const double step_seconds_;
  int64_t fed_ = 0, launched_ = 0, next_ = 0;
  double free_at_ = 0;
  std::deque<std::pair<int64_t, double>> ends_;  // of windows: the step behind, and when
};

class LoopBackend : public testing::ForwardingBackend {
 public:
  LoopBackend(Log* log, double* now, double step_seconds)
      : ForwardingBackend(MakeCpuBackend(1)), log_(log), now_(now), step_seconds_(step_seconds) {}
  absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(const runtime::StepLoopConfig&) override {
    return std::make_unique<FakeLoop>(log_, now_, step_seconds_);
  }

 private:
  Log* const log_;
  double* const now_;
  const double step_seconds_;
};

// Takes `steps`, each of which lasts `step_seconds`, where the host must look at the model every `every` steps, and at
// once from step `hurry` until nothing is under way.
Log Take(int64_t steps, double step_seconds, int64_t every, int64_t hurry = -1) {
  Log log;
  double now = 1;
  const ScratchFolder folder;
  const ResolvedJobSpec spec =
      Spec({"model { layers { flatten {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
            "data { train { glyphs { samples: 32 } } } train { batch_size: 8 steps: 1000 } seed: 1"});
  const auto data = TrainingData::Open(spec, {}, folder.path(), 1).value();
  const auto plan = PlanModel(spec, data->sample(), std::make_unique<LoopBackend>(&log, &now, step_seconds), 1).value();
  const auto model = LoadedModel::Create(*plan).value();
  EXPECT_TRUE(model->memory.Initialize(1).ok());
  std::vector<std::unique_ptr<StepRunner>> runners;
  runners.push_back(std::make_unique<StepRunner>(1000, plan.get(), model.get(), 0));
  EXPECT_TRUE(runners[0]->Prepare().ok());
  const auto clock = [&] { return now; };
  const auto captured =
      CapturedSteps::Create(*plan, model.get(), &runners, runtime::StepLaunch::kCaptured, nullptr, clock).value();
  const auto loader = data->TrainLoader(plan->outputs, 0, captured->most_batches() + 1).value();
  std::vector<PhaseState> phases(1);
  phases[0].scaler = optim::InitialScalerState(runners[0]->loss_scale());
  std::vector<PhaseResult> results;
  bool hurries = false;
  for (int64_t step = 0; step < steps; ++step) {
    hurries = step == hurry || (hurries && !captured->idle());
    const auto batch = captured->Next(step, hurries ? 1 : every - step % every, loader.get(), &phases, &results);
    EXPECT_TRUE(batch.ok()) << batch.status() << ", step " << step;
    if (!batch.ok()) return log;
    EXPECT_EQ((*batch)->step, step);
    EXPECT_EQ(phases[0].scaler.steps_applied, step + 1);
    loader->Release(*batch);
    if (hurry < 0) {
      EXPECT_EQ(captured->idle(), (step + 1) % every == 0) << step;
    }
  }
  EXPECT_EQ(std::accumulate(log.windows.begin(), log.windows.end(), int64_t{0}), steps);
  EXPECT_LE(log.most_in_flight, kSlots);
  return log;
}

TEST(CapturedSteps, QuickStepsAreLaunchedManyAtOnce) {
  const Log log = Take(3000, 1e-5, 3000);
  EXPECT_LE(log.windows.size(), static_cast<size_t>(3000 / (kSlots / 2) + 20));
  EXPECT_LE(log.most_in_flight, kSlots);
  EXPECT_LT(log.idle, 1e-4);
}

// What a stop has to wait for.
TEST(CapturedSteps, NoMoreThanATenthOfASecondIsUnderWay) {
  for (const double seconds : {0.001, 0.003, 0.005, 0.008, 0.013, 0.02, 0.021, 0.03, 0.05, 0.3, 1.0}) {
    SCOPED_TRACE(seconds);
    const Log log = Take(600, seconds, 600);
    EXPECT_LE(static_cast<double>(log.most_in_flight) * seconds, std::max(0.11, 2 * seconds));
    // The device had the next window before it was through.
    EXPECT_LT(log.idle, 1e-4);
    EXPECT_LE(log.windows.size(), static_cast<size_t>(20 + 600 / std::max(1.0, 0.04 / seconds)));
  }
}

TEST(CapturedSteps, NothingIsUnderWayWhereTheHostMustLook) {
  for (const int64_t every : {1, 2, 3, 5, 16, 17, 33, 300}) {
    for (const double seconds : {1e-5, 0.02, 1.0}) {
      SCOPED_TRACE(absl::StrCat(every, " steps of ", seconds));
      Take(every * 3, seconds, every);
    }
  }
}

TEST(CapturedSteps, WhoeverIsInAHurryGetsWhatWasFed) {
  for (const int64_t hurry : {1, 2, 63, 64, 65, 100, 191}) {
    SCOPED_TRACE(hurry);
    Take(400, 1e-5, 400, hurry);
  }
}

}  // namespace
}  // namespace ampd::train
