// How steps are handed to a device that takes them by itself: in windows, so that launches are few, and never so that
// anybody waits for a step that was not launched.
#include "engine/train/captured_steps.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/forwarding_backend.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::Each;
using ::testing::Le;

constexpr int64_t kSlots = 16;

// What the device was asked to do.
struct Log {
  std::vector<int64_t> windows;
  int64_t most_in_flight = 0;
};

// Applies every step as soon as it is asked for the record.
class FakeLoop : public runtime::StepLoop {
 public:
  explicit FakeLoop(Log* log) : log_(log) {}
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
    launched_ += steps;
    log_->windows.push_back(steps);
    log_->most_in_flight = std::max(log_->most_in_flight, launched_ - next_);
    return absl::OkStatus();
  }
  absl::StatusOr<absl::optional<runtime::StepRecord>> Next() override {
    if (next_ == launched_) return absl::InternalError("a step is waited for that was not launched");
    runtime::StepRecord record;
    record.attempted_step = static_cast<uint64_t>(next_++);
    record.loss = 1;
    record.scaler.steps_applied = next_;
    return record;
  }

 private:
  Log* const log_;
  int64_t fed_ = 0, launched_ = 0, next_ = 0;
};

class LoopBackend : public testing::ForwardingBackend {
 public:
  explicit LoopBackend(Log* log) : ForwardingBackend(MakeCpuBackend(1)), log_(log) {}
  absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(const runtime::StepLoopConfig&) override {
    return std::make_unique<FakeLoop>(log_);
  }

 private:
  Log* const log_;
};

// Takes `steps`, each of which seems to last `step_seconds`, where the host must look at the model every `every` steps.
Log Take(int64_t steps, double step_seconds, int64_t every) {
  Log log;
  const ScratchFolder folder;
  const ResolvedJobSpec spec =
      Spec({"model { layers { flatten {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
            "data { train { glyphs { samples: 32 } } } train { batch_size: 8 steps: 1000 } seed: 1"});
  const auto data = TrainingData::Open(spec, {}, folder.path(), 1).value();
  const auto plan = PlanModel(spec, data->sample(), std::make_unique<LoopBackend>(&log), 1).value();
  const auto model = LoadedModel::Create(*plan).value();
  EXPECT_TRUE(model->memory.Initialize(1).ok());
  std::vector<std::unique_ptr<StepRunner>> runners;
  runners.push_back(std::make_unique<StepRunner>(1000, plan.get(), model.get(), 0));
  EXPECT_TRUE(runners[0]->Prepare().ok());
  double now = 0;
  const auto clock = [&] { return now += step_seconds; };
  const auto captured =
      CapturedSteps::Create(*plan, model.get(), &runners, runtime::StepLaunch::kCaptured, nullptr, clock).value();
  const auto loader = data->TrainLoader(plan->outputs, 0, captured->most_batches() + 1).value();
  std::vector<PhaseState> phases(1);
  phases[0].scaler = optim::InitialScalerState(runners[0]->loss_scale());
  std::vector<PhaseResult> results;
  for (int64_t step = 0; step < steps; ++step) {
    const auto batch = captured->Next(step, every - step % every, loader.get(), &phases, &results);
    EXPECT_TRUE(batch.ok()) << batch.status() << ", step " << step;
    if (!batch.ok()) return log;
    EXPECT_EQ((*batch)->step, step);
    EXPECT_EQ(phases[0].scaler.steps_applied, step + 1);
    loader->Release(*batch);
    EXPECT_EQ(captured->idle(), (step + 1) % every == 0) << step;
  }
  EXPECT_EQ(std::accumulate(log.windows.begin(), log.windows.end(), int64_t{0}), steps);
  EXPECT_LE(log.most_in_flight, kSlots);
  return log;
}

TEST(CapturedSteps, QuickStepsAreLaunchedManyAtOnce) {
  const Log log = Take(400, 1e-5, 400);
  // The first window is of one step, so that the device begins, and the last ones are of what is left.
  const auto halves = std::count(log.windows.begin(), log.windows.end(), kSlots / 2);
  EXPECT_GE(halves, 400 / (kSlots / 2) - 4);
  EXPECT_LE(log.windows.size(), static_cast<size_t>(400 / (kSlots / 2) + 6));
}

TEST(CapturedSteps, SlowStepsAreNotAheadOfWhatIsReported) {
  const Log log = Take(40, 1.0, 40);
  EXPECT_LE(log.most_in_flight, 2);
  EXPECT_THAT(log.windows, Each(Le(2)));
}

TEST(CapturedSteps, NothingIsUnderWayWhereTheHostMustLook) {
  for (const int64_t every : {1, 2, 3, 5, 16, 17, 33}) {
    for (const double seconds : {1e-5, 0.02, 1.0}) {
      SCOPED_TRACE(std::to_string(every) + " steps of " + std::to_string(seconds));
      Take(every * 3, seconds, every);
    }
  }
}

}  // namespace
}  // namespace ampd::train
