// Whole trainings on a backend whose memory the host cannot touch: the same bits as on the CPU's own, and what is said
// when it has too little.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/train/checkpoint.h"
#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/far_memory.h"
#include "tests/unit/engine/train/device_jobs.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

class FarMemory : public ::testing::TestWithParam<Job> {
 protected:
  static TrainerOptions Near(const ScratchFolder& folder) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.make_backend = [padding = GetParam().padding] { return MakeCpuBackend(1, padding); };
    return options;
  }
  static TrainerOptions Far(const ScratchFolder& folder) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.make_backend = [padding = GetParam().padding] {
      return testing::MakeFarMemoryBackend(1, {.padding = padding});
    };
    return options;
  }
};

TEST_P(FarMemory, GivesTheBitsOfTheHosts) {
  const ScratchFolder near_folder, far_folder;
  Recorder near, far;
  const auto on_host = Train(Spec(GetParam().parts), Near(near_folder), &near);
  ASSERT_TRUE(on_host.ok()) << on_host.status();
  const auto on_device = Train(Spec(GetParam().parts), Far(far_folder), &far);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  EXPECT_EQ(Told(far), Told(near));
  EXPECT_EQ(ManifestOf(far_folder), ManifestOf(near_folder));
  EXPECT_NE(ManifestOf(far_folder), "none");
  const auto count = [&near](const auto& is) { return std::count_if(near.events.begin(), near.events.end(), is); };
  using Event = v1::JobEvent;
  EXPECT_GE(count([](const Event& e) { return e.has_overflow_skip() && !e.overflow_skip().calibration(); }),
            GetParam().replays);
  EXPECT_GE(count([](const Event& e) { return e.has_gradient_diagnostics(); }), GetParam().diagnostics);
  EXPECT_GE(count([](const Event& e) { return e.has_precision_change(); }), GetParam().fall_backs);
}

TEST_P(FarMemory, ResumesFromTheCheckpointOfTheHosts) {
  const ScratchFolder whole_folder, parts_folder;
  Recorder whole, parts;
  ASSERT_TRUE(Train(Spec(GetParam().parts), Near(whole_folder), &whole).ok());
  auto outcome = Train(Spec(GetParam().parts), Near(parts_folder), &parts, 7);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  outcome = Train(Spec(GetParam().parts), Far(parts_folder), &parts);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(ManifestOf(parts_folder), ManifestOf(whole_folder));
}

INSTANTIATE_TEST_SUITE_P(Jobs, FarMemory, ::testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

ResolvedJobSpec MlpSpec() { return Spec(MlpParts()); }

std::unique_ptr<PlannedModel> PlanMlp(testing::FarMemoryOptions options) {
  return PlanModel(MlpSpec(), {.input_shape = {28, 28, 1}, .classes = 10}, testing::MakeFarMemoryBackend(1, options), 1)
      .value();
}

TEST(FarMemoryDeathTest, TheHostCannotReadIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto plan = PlanMlp({});
  const auto model = LoadedModel::Create(*plan);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_DEATH(
      {
        volatile float sink = *(*model)->memory.masters();
        (void)sink;
      },
      "");
}

TEST(TooLittleMemory, WhatFailsIsToldWithWhatThePlanPredicted) {
  int failures = 0;
  for (int nth = 1;; ++nth) {
    const auto plan = PlanMlp({.fail_allocation = nth});
    const auto model = LoadedModel::Create(*plan);
    if (model.ok()) break;
    ++failures;
    EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
    const std::string message(model.status().message());
    EXPECT_THAT(message, HasSubstr(absl::StrCat("(", plan->parameter_bytes(), " bytes for parameters, ",
                                                plan->activation_bytes(), " bytes for activations, ",
                                                plan->input_bytes(), " bytes for batches and constants)")));
    EXPECT_THAT(message, HasSubstr(": asked for "));
    EXPECT_THAT(message, HasSubstr(", 0 are free"));
  }
  // Masters, gradients, copies, state twice, moments, average, arena and more.
  EXPECT_GE(failures, 10);
}

TEST(TooLittleMemory, APlanBeyondTheDeviceIsRefusedWithBothFigures) {
  const auto plan = PlanMlp({.total_bytes = 4096});
  const auto model = LoadedModel::Create(*plan);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("the cpu device has 4096 bytes"));
}

TEST(TooLittleMemory, EndsATrainingWithItsStatus) {
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = [] { return testing::MakeFarMemoryBackend(1, {.fail_allocation = 2}); };
  Recorder recorder;
  const auto outcome = Train(MlpSpec(), options, &recorder);
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kResourceExhausted) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("gradients: asked for "));
}

TEST(MakeBackendOption, ItsErrorsAreTheTrainers) {
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = []() -> absl::StatusOr<std::unique_ptr<runtime::Backend>> {
    return absl::UnavailableError("no such device");
  };
  Recorder recorder;
  EXPECT_EQ(Train(MlpSpec(), options, &recorder).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ampd::train
