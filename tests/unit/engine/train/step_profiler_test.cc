// What a profile says of a training's steps, and that the training is the one that it would have been.
#include "engine/train/step_profiler.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/forwarding_backend.h"
#include "tests/unit/engine/train/device_jobs.h"
#include "tests/unit/engine/train/profiled_run.h"

namespace ampd::train {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::SizeIs;

double SumOf(const v1::StepProfile& profile) {
  double sum = 0;
  for (const v1::ProfilePart& part : profile.parts()) sum += part.seconds();
  return sum;
}

const v1::ProfilePart* Find(const v1::StepProfile& profile, const std::string& name) {
  for (const v1::ProfilePart& part : profile.parts()) {
    if (part.name() == name) return &part;
  }
  ADD_FAILURE() << "no " << name << " in " << profile.DebugString();
  return &v1::ProfilePart::default_instance();
}

class Profiled : public ::testing::TestWithParam<Job> {};

TEST_P(Profiled, ATrainingIsTheOneThatItWouldHaveBeen) {
  const ScratchFolder plain_folder, folder;
  Recorder plain, recorder;
  WriteSequences(plain_folder.path());
  WriteSequences(folder.path());
  ASSERT_TRUE(Train(Spec(GetParam().parts), Options(plain_folder.path()), &plain).ok());
  const auto outcome = TrainProfiled(Spec(GetParam().parts), Options(folder.path()), &recorder, 1, 5);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
  ASSERT_THAT(profiles, SizeIs(1));
  EXPECT_EQ(Told(recorder), Told(plain));
  EXPECT_EQ(ManifestOf(folder), ManifestOf(plain_folder));
  const v1::StepProfile& profile = profiles[0];
  EXPECT_EQ(profile.timing(), v1::StepProfile::HOST_CLOCK);
  EXPECT_EQ(profile.first_step(), 2);
  // One that changes its model begins again with another profile, if it is asked to.
  if (GetParam().fall_backs == 0) {
    EXPECT_EQ(profile.last_step(), 6);
  }
  const auto steps = static_cast<double>(profile.last_step() - profile.first_step() + 1);
  EXPECT_GT(SumOf(profile), 0);
  EXPECT_LE(SumOf(profile), steps * profile.step_seconds());
  EXPECT_GT(profile.usual_step_seconds(), 0);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Profiled, ::testing::ValuesIn(Jobs()), [](const auto& info) { return info.param.name; });

const std::string kNetwork =
    "model { layers { name: 'conv' conv2d { filters: 6 kernel: 3 padding: VALID } } layers { name: 'bn' batch_norm {} }"
    "        layers { name: 'pool' global_avg_pool {} } layers { name: 'head' dense { units: 10 } }"
    "        loss { softmax_cross_entropy {} } }"
    "data { train { glyphs { samples: 96 } } } optimizer { adam {} }"
    "train { batch_size: 16 micro_batch_size: 4 epochs: 2 } report { every_steps: 1 } seed: 5";

v1::StepProfile ProfileOf(const std::vector<std::string>& parts, int64_t at, int64_t steps) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = TrainProfiled(Spec(parts), Options(folder.path()), &recorder, at, steps);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
  EXPECT_THAT(profiles, SizeIs(1));
  return profiles.empty() ? v1::StepProfile() : profiles[0];
}

TEST(StepProfiler, CountsCallsAndOperations) {
  const v1::StepProfile profile = ProfileOf({kNetwork, "precision { mode: BF16 }"}, 0, 3);
  EXPECT_EQ(profile.first_step(), 1);
  EXPECT_EQ(profile.last_step(), 3);
  EXPECT_FALSE(profile.has_usual_step_seconds()) << "no step came before";
  const v1::ProfilePart* conv = Find(profile, "conv.conv2d");
  EXPECT_EQ(conv->layer(), "conv");
  EXPECT_EQ(conv->op(), "conv2d");
  EXPECT_EQ(conv->dtype(), "bf16");
  EXPECT_EQ(conv->stage(), v1::ProfilePart::FORWARD);
  // 3 steps of 4 micro-batches of 4 samples; 26 x 26 places of 6 filters of 3 x 3 x 1 multiplications and additions.
  EXPECT_EQ(conv->calls(), 3 * 4);
  EXPECT_EQ(conv->flops(), 3.0 * 16 * 26 * 26 * 6 * 9 * 2);
  EXPECT_GT(conv->bytes(), 0);
  EXPECT_EQ(Find(profile, "pool.global_avg_pool")->stage(), v1::ProfilePart::FORWARD);
  for (const v1::ProfilePart& part : profile.parts()) {
    if (part.name().find("grad") == std::string::npos || part.op().empty()) continue;
    EXPECT_EQ(part.stage(), v1::ProfilePart::BACKWARD) << part.name();
  }
  EXPECT_EQ(Find(profile, "update")->calls(), 3);
  EXPECT_EQ(Find(profile, "check gradients")->calls(), 3);
  EXPECT_EQ(Find(profile, "inputs")->calls(), 3 * 4);
  EXPECT_THAT(profile.kernels(), IsEmpty());
  for (int i = 1; i < profile.parts_size(); ++i) EXPECT_GE(profile.parts(i - 1).seconds(), profile.parts(i).seconds());
}

TEST(StepProfiler, ATrainingThatEndsFirstTellsOfWhatThereWas) {
  const v1::StepProfile profile = ProfileOf({kNetwork}, 9, 100);
  EXPECT_EQ(profile.first_step(), 10);
  EXPECT_EQ(profile.last_step(), 12);
  EXPECT_EQ(Find(profile, "update")->calls(), 3);
}

TEST(StepProfiler, TellsPhasesApart) {
  for (const Job& job : Jobs()) {
    if (job.name != "Phases") continue;
    const v1::StepProfile profile = ProfileOf(job.parts, 2, 4);
    std::map<std::string, int64_t> updates;
    for (const v1::ProfilePart& part : profile.parts()) {
      if (part.name() == "update") updates[part.phase()] = part.calls();
    }
    // Steps 3 to 6; the artist's is every other one.
    EXPECT_EQ(updates, (std::map<std::string, int64_t>{{"critic", 4}, {"artist", 2}}));
  }
}

TEST(StepProfiler, AChangeOfModeEndsAProfileAndTheNextIsOfTheNewPlan) {
  for (const Job& job : Jobs()) {
    if (job.name != "FallsBack") continue;
    const ScratchFolder folder;
    Recorder recorder;
    auto trainer = Trainer::Create(Spec(job.parts), Options(folder.path()), &recorder);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    (*trainer)->Profile({50});
    recorder.on_event = [&](const v1::JobEvent& event) {
      if (event.has_precision_change()) (*trainer)->Profile({50});
      return absl::OkStatus();
    };
    ASSERT_TRUE((*trainer)->Run().ok());
    recorder.on_event = nullptr;
    const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
    ASSERT_THAT(profiles, SizeIs(2));
    EXPECT_EQ(profiles[0].first_step(), 1);
    EXPECT_EQ(profiles[1].first_step(), profiles[0].last_step() + 1);
    EXPECT_EQ(profiles[1].last_step(), kSteps);
    const auto dtypes = [](const v1::StepProfile& profile) {
      std::vector<std::string> all;
      for (const v1::ProfilePart& part : profile.parts()) all.push_back(part.dtype());
      return all;
    };
    EXPECT_THAT(dtypes(profiles[0]), Contains("f16"));
    EXPECT_THAT(dtypes(profiles[1]), ::testing::AllOf(Contains("bf16"), ::testing::Not(Contains("f16"))));
  }
}

TEST(StepProfiler, OfAJobThatChoosesItsModeItIsOfTheTraining) {
  const v1::StepProfile profile =
      ProfileOf({kNetwork, "precision { mode: AUTO auto { steps: 10 modes: BF16 } }"}, 0, 2);
  EXPECT_EQ(profile.last_step(), 2);
  EXPECT_EQ(Find(profile, "update")->calls(), 2);
}

TEST(StepProfiler, SumsUpWhatDoesNotFit) {
  std::string layers;
  for (int i = 0; i < 80; ++i) layers += "layers { dense { units: 10 } } layers { batch_norm {} }";
  const v1::StepProfile profile = ProfileOf(
      {"model { layers { flatten {} } " + layers +
       " loss { softmax_cross_entropy {} } }"
       "data { train { glyphs { samples: 32 } } } train { batch_size: 16 epochs: 2 } report { every_steps: 1 }"},
      0, 1);
  ASSERT_EQ(profile.parts_size(), 257);
  const v1::ProfilePart& rest = profile.parts(256);
  EXPECT_TRUE(rest.name().find(" others") != std::string::npos) << rest.name();
  EXPECT_GT(rest.calls(), 0);
  EXPECT_LE(SumOf(profile), profile.step_seconds());
}

// Gives parts and kernels that it is told to, whatever runs.
class FakeTimer : public runtime::LapTimer {
 public:
  explicit FakeTimer(int laps_before_failure) : left_(laps_before_failure) {}

  runtime::LapTiming timing() const override { return runtime::LapTiming::kKernelActivity; }
  absl::Status Start() override { return absl::OkStatus(); }
  absl::Status Lap(size_t part) override {
    last_ = part;
    return left_-- == 0 ? absl::UnavailableError("the timer broke") : absl::OkStatus();
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status Collect(absl::Span<double> seconds) override {
    seconds[last_] += 1;
    return absl::OkStatus();
  }
  std::vector<runtime::KernelTime> Kernels() const override {
    std::vector<runtime::KernelTime> kernels;
    // The longest of 300, from two parts; the later one launched more of it.
    for (int i = 0; i < 300; ++i) kernels.push_back({absl::StrCat("k", i), 0, 2, 1 + i * 0.01});
    kernels.push_back({"k7", last_, 3, 50});
    return kernels;
  }
  std::string note() const override { return "by a fake"; }

 private:
  int left_;
  size_t last_ = 0;
};

// The CPU's, but for its timer.
class TimedBackend : public testing::ForwardingBackend {
 public:
  explicit TimedBackend(int laps_before_failure) : ForwardingBackend(MakeCpuBackend(1)), laps_(laps_before_failure) {}

  absl::StatusOr<std::unique_ptr<runtime::LapTimer>> MakeLapTimer(bool kernels) override {
    if (!kernels) return to()->MakeLapTimer(kernels);
    return std::make_unique<FakeTimer>(laps_);
  }

 private:
  const int laps_;
};

v1::StepProfile KernelsOf(int laps_before_failure) {
  const ScratchFolder folder;
  Recorder recorder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = [&] { return std::make_unique<TimedBackend>(laps_before_failure); };
  auto trainer = Trainer::Create(Spec({kNetwork}), options, &recorder);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  (*trainer)->Profile({.steps = 2, .kernels = true});
  const auto outcome = (*trainer)->Run();
  EXPECT_TRUE(outcome.ok()) << "the training goes on: " << outcome.status();
  const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
  EXPECT_THAT(profiles, SizeIs(1));
  return profiles.at(0);
}

TEST(StepProfiler, SumsUpKernelsByName) {
  const v1::StepProfile profile = KernelsOf(-1);
  EXPECT_EQ(profile.timing(), v1::StepProfile::KERNEL_ACTIVITY);
  EXPECT_EQ(profile.note(), "by a fake");
  EXPECT_EQ(Find(profile, "publish parameters")->seconds(), 2);
  ASSERT_EQ(profile.kernels_size(), 257);
  EXPECT_EQ(profile.kernels(0).name(), "k7");
  EXPECT_EQ(profile.kernels(0).calls(), 5);
  EXPECT_NEAR(profile.kernels(0).seconds(), 51.07, 1e-9);
  EXPECT_EQ(profile.kernels(1).name(), "k299");
  EXPECT_EQ(profile.kernels(255).name(), "k45");
  EXPECT_EQ(profile.kernels(256).name(), "44 others");
  EXPECT_EQ(profile.kernels(256).calls(), 88);
}

TEST(StepProfiler, WhereTimingFailsTheTrainingGoesOnAndTheProfileSaysSo) {
  const v1::StepProfile profile = KernelsOf(30);
  EXPECT_EQ(profile.last_step(), 1) << "there is no more of it";
  EXPECT_EQ(profile.parts_size() + profile.kernels_size(), 0);
  EXPECT_EQ(profile.note(), "by a fake; timing failed: the timer broke");
}

}  // namespace
}  // namespace ampd::train
