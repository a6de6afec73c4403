// How steps are handed to a device that takes them by itself: in windows, so that launches are few, and never so that
// anybody waits for a step that was not launched.
#include "engine/train/captured_steps.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/train/png.h"
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
  // Steps that it leaves to the host, which undoes what was launched behind them.
  std::set<int64_t> undecided;
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
    ends_.clear();
    stopped_ = false;
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
    if (stopped_) return absl::nullopt;
    if (next_ == launched_) return absl::InternalError("a step is waited for that was not launched");
    while (ends_.front().first <= next_) ends_.pop_front();
    *now_ = std::max(*now_, ends_.front().second) + kHostSeconds;
    runtime::StepRecord record;
    record.loss = 1;
    record.attempted_step = static_cast<uint64_t>(next_);
    if (log_->undecided.count(next_) > 0) {
      record.decided = false;
      record.scaler.steps_applied = next_;
      stopped_ = true;
      return record;
    }
    ++next_;
    record.scaler.steps_applied = next_;
    return record;
  }

 private:
  Log* const log_;
  double* const now_;
  const double step_seconds_;
  int64_t fed_ = 0, launched_ = 0, next_ = 0;
  bool stopped_ = false;
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

constexpr char kNetwork[] =
    "model { layers { flatten {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }"
    "data { train { glyphs { samples: 32 } } } train { batch_size: 8 steps: 1000 } seed: 1";

// A training whose steps the fake device takes.
class Training {
 public:
  Training(const ResolvedJobSpec& spec, const std::string& folder, double step_seconds,
           std::set<int64_t> undecided = {}) {
    log.undecided = std::move(undecided);
    data_ = TrainingData::Open(spec, {folder}, folder, 1).value();
    plan_ = PlanModel(spec, data_->sample(), std::make_unique<LoopBackend>(&log, &now_, step_seconds), 1).value();
    model_ = LoadedModel::Create(*plan_).value();
    EXPECT_TRUE(model_->memory.Initialize(1).ok());
    runners_.push_back(std::make_unique<StepRunner>(1000, plan_.get(), model_.get(), 0));
    EXPECT_TRUE(runners_[0]->Prepare().ok());
    const auto clock = [this] { return now_; };
    steps =
        CapturedSteps::Create(*plan_, model_.get(), &runners_, runtime::StepLaunch::kCaptured, nullptr, clock).value();
    loader = data_->TrainLoader(plan_->outputs, 0, steps->most_batches() + 1).value();
    phases[0].scaler = optim::InitialScalerState(runners_[0]->loss_scale());
  }

  // The next step, which is `step`.
  absl::Status Take(int64_t step, int64_t ahead) {
    const auto batch = steps->Next(step, ahead, loader.get(), &phases, &results_);
    if (!batch.ok()) return batch.status();
    EXPECT_EQ((*batch)->step, step);
    EXPECT_EQ(phases[0].scaler.steps_applied, step + 1);
    EXPECT_EQ(results_.size(), 1u);
    loader->Release(*batch);
    return absl::OkStatus();
  }

  Log log;

 private:
  double now_ = 1;
  std::unique_ptr<TrainingData> data_;
  std::unique_ptr<PlannedModel> plan_;
  std::unique_ptr<LoadedModel> model_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<PhaseResult> results_;

 public:
  // Behind what they borrow.
  std::vector<PhaseState> phases{1};
  std::unique_ptr<CapturedSteps> steps;
  std::unique_ptr<data::Loader> loader;
};

// Takes `steps`, each of which lasts `step_seconds`, where the host must look at the model every `every` steps, and at
// once from step `hurry` until nothing is under way.
Log Take(int64_t steps, double step_seconds, int64_t every, int64_t hurry = -1) {
  const ScratchFolder folder;
  Training training(Spec({kNetwork}), folder.path(), step_seconds);
  bool hurries = false;
  for (int64_t step = 0; step < steps; ++step) {
    hurries = step == hurry || (hurries && !training.steps->idle());
    const absl::Status status = training.Take(step, hurries ? 1 : every - step % every);
    EXPECT_TRUE(status.ok()) << status << ", step " << step;
    if (!status.ok()) return training.log;
    if (hurry < 0) {
      EXPECT_EQ(training.steps->idle(), (step + 1) % every == 0) << step;
    }
  }
  const Log& log = training.log;
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

// Steps that were fed, launched or not, when the host takes one over are taken behind it, once each.
TEST(CapturedSteps, AfterAStepOfTheHostsTheOthersFollow) {
  for (const double seconds : {1e-5, 0.004}) {
    for (const std::set<int64_t>& undecided :
         {std::set<int64_t>{0}, {1}, {2, 3}, {50}, {63, 64, 65}, {100, 299}, {299}}) {
      SCOPED_TRACE(absl::StrCat(*undecided.begin(), ", steps of ", seconds));
      const ScratchFolder folder;
      Training training(Spec({kNetwork}), folder.path(), seconds, undecided);
      for (int64_t step = 0; step < 300; ++step) {
        const absl::Status status = training.Take(step, 300 - step);
        ASSERT_TRUE(status.ok()) << status << ", step " << step;
      }
      EXPECT_TRUE(training.steps->idle());
      EXPECT_LE(training.log.most_in_flight, kSlots);
    }
  }
}

// A batch that cannot be read ends the training behind the steps before it, and not before they are told of.
TEST(CapturedSteps, StepsBeforeADataErrorAreReturnedFirst) {
  constexpr int64_t kSamples = 300;
  const std::string pixel = EncodePng({.width = 1, .height = 1, .channels = 3, .pixels = "abc"}).value();
  for (const int64_t bad : {0, 1, 2, 40, 64, 130, 200}) {
    for (const std::set<int64_t>& undecided : {std::set<int64_t>{}, {bad - 1}, {bad - 3}}) {
      SCOPED_TRACE(absl::StrCat("step ", bad));
      const ScratchFolder folder;
      // Images are looked at when they are read, and not before.
      const int64_t damaged = data::EpochOrder(kSamples, 1, 1)[static_cast<size_t>(bad)];
      for (int64_t i = 0; i < kSamples; ++i) {
        const std::string of_class = folder.path() + (2 * i < kSamples ? "/set/a" : "/set/b");
        std::filesystem::create_directories(of_class);
        std::ofstream(absl::StrCat(of_class, "/", 1000 + i, ".png"), std::ios::binary)
            << (i == damaged ? "no image" : pixel);
      }
      Training training(
          Spec({"model { layers { flatten {} } layers { dense { units: 2 } } loss { "
                "softmax_cross_entropy {} } } data { train { image_folder { path: 'set' } } image { size: "
                "1 } max_corrupt_ratio: 0 } train { batch_size: 1 steps: 300 } seed: 1"}),
          folder.path(), 1e-5, undecided);
      absl::Status status;
      int64_t taken = 0;
      while (status.ok() && taken < 300) {
        status = training.Take(taken, 300 - taken);
        if (status.ok()) ++taken;
      }
      EXPECT_EQ(taken, bad);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_TRUE(training.steps->idle());
    }
  }
}

}  // namespace
}  // namespace ampd::train
