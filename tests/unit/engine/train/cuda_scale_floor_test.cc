// What becomes of a job whose gradients overflow at the smallest loss scale when a CUDA device takes the steps: the
// same as when the host does, by every policy, wherever the samples lie, and however far the device had run ahead.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "engine/train/captured_steps.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/device_jobs.h"
#include "tests/unit/engine/train/floor_job.h"

namespace ampd::train {
namespace {

// One that a device can take whole, many steps in one kernel.
const std::string kSmallNetwork =
    "model { layers { dense { units: 8 activation: RELU } } layers { dropout { rate: 0.1 } }"
    "        layers { dense { units: 1 } } loss { mean_squared_error {} } }" +
    kFloorTraining;

struct Policy {
  std::string name;
  std::string floor;
  std::string rest;
  int rewound = 0;
  int changes = 0;
  bool diverges = false;
};

void PrintTo(const Policy& policy, std::ostream* out) { *out << policy.name; }

std::vector<Policy> Policies() {
  const std::string twice = "precision { loss_scale { max_rollbacks: 2 } }";
  return {
      {.name = "Fail", .floor = "FAIL", .diverges = true},
      {.name = "Hold", .floor = "HOLD"},
      {.name = "FallBack", .floor = "FALLBACK_BF16", .changes = 1},
      {.name = "ToTheStart", .floor = "ROLLBACK", .rest = twice, .rewound = 2, .diverges = true},
      {.name = "ToACheckpoint",
       .floor = "ROLLBACK",
       .rest = twice + "checkpoint { every_steps: 2 keep_last: 9 }",
       .rewound = 2,
       .diverges = true},
  };
}

struct Attempt {
  absl::Status outcome;
  Recorder recorder;
};

class CudaScaleFloor : public ::testing::TestWithParam<Policy> {
 protected:
  void SetUp() override {
    const auto backend = MakeCudaBackend("");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
  }

  static Attempt Take(const std::string& network, StepMode steps, const std::string& extra = "") {
    const ScratchFolder folder;
    WriteFloorData(folder.path());
    TrainerOptions options = Options(folder.path());
    options.steps = steps;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    Attempt attempt;
    attempt.outcome =
        Train(Spec({network, FloorScale(GetParam().floor), GetParam().rest, extra}), options, &attempt.recorder)
            .status();
    return attempt;
  }

  static void ExpectWhatThePolicySays(const Attempt& attempt) {
    EXPECT_EQ(!attempt.outcome.ok(), GetParam().diverges) << attempt.outcome;
    EXPECT_EQ(attempt.recorder.rewound().size(), static_cast<size_t>(GetParam().rewound));
    int changes = 0;
    for (const v1::JobEvent& event : attempt.recorder.events) changes += event.has_precision_change() ? 1 : 0;
    EXPECT_EQ(changes, GetParam().changes);
    EXPECT_GE(attempt.recorder.skips().size(), static_cast<size_t>(3 * (1 + GetParam().rewound)));
  }
};

TEST_P(CudaScaleFloor, IsTheSameWhoeverDecides) {
  const Attempt host = Take(kFloorNetwork, StepMode::kHost);
  ExpectWhatThePolicySays(host);
  for (const StepMode steps : {StepMode::kEnqueued, StepMode::kCaptured}) {
    for (const std::string& where : {std::string(), kFed}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(steps), where));
      const Attempt device = Take(kFloorNetwork, steps, where);
      EXPECT_EQ(LieOnDevice(device.recorder), where.empty());
      EXPECT_EQ(Told(device.recorder), Told(host.recorder));
      EXPECT_EQ(device.outcome.message(), host.outcome.message());
    }
  }
}

TEST_P(CudaScaleFloor, TheSmallNetworkIsTakenWhole) {
  const ResolvedJobSpec spec = Spec({kSmallNetwork, FloorScale(GetParam().floor)});
  const auto plan =
      PlanModel(spec, {.input_shape = {16}, .target_features = 1}, MakeCudaBackend("").value(), 1).value();
  const auto model = LoadedModel::Create(*plan).value();
  std::vector<std::unique_ptr<StepRunner>> runners;
  runners.push_back(std::make_unique<StepRunner>(5 * kStepsAnEpoch, plan.get(), model.get(), 0));
  ASSERT_TRUE(model->memory.Initialize(1).ok());
  ASSERT_TRUE(runners[0]->Prepare().ok());
  const auto steps = CapturedSteps::Create(*plan, model.get(), &runners, runtime::StepLaunch::kResident);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ((*steps)->launch(), runtime::StepLaunch::kInterpreted);
}

// Its sums have another order than the host's, so that losses are near and decisions alike.
TEST_P(CudaScaleFloor, IsAlikeWhereStepsAreTakenWhole) {
  const Attempt host = Take(kSmallNetwork, StepMode::kHost), device = Take(kSmallNetwork, StepMode::kResident),
                fed = Take(kSmallNetwork, StepMode::kResident, kFed);
  ExpectWhatThePolicySays(device);
  EXPECT_EQ(Told(fed.recorder), Told(device.recorder));
  EXPECT_FALSE(LieOnDevice(fed.recorder));
  EXPECT_TRUE(LieOnDevice(device.recorder));
  EXPECT_EQ(device.outcome.message(), host.outcome.message());
  const std::vector<v1::StepReport> found = device.recorder.steps(), expected = host.recorder.steps();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(i);
    const v1::PhaseReport &a = found[i].phases(0), &b = expected[i].phases(0);
    EXPECT_EQ(found[i].last_step(), expected[i].last_step());
    EXPECT_NEAR(a.loss(), b.loss(), 1e-2 * std::max(1.0, std::abs(b.loss())));
    EXPECT_EQ(a.loss_scale(), b.loss_scale());
    EXPECT_EQ(a.steps_applied(), b.steps_applied());
    EXPECT_EQ(a.learning_rate(), b.learning_rate());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, CudaScaleFloor, ::testing::ValuesIn(Policies()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::train
