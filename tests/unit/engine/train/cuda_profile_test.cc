// Profiles of trainings on the CUDA backend, whoever takes the steps: with the bits of those that are not profiled.
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/device_jobs.h"
#include "tests/unit/engine/train/profiled_run.h"

namespace ampd::train {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class CudaProfile : public testing::TestWithParam<Job> {
 protected:
  void SetUp() override {
    const auto backend = MakeCudaBackend("");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
  }
  static TrainerOptions On(const ScratchFolder& folder, StepMode steps) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.steps = steps;
    options.make_backend = [] { return MakeCudaBackend(""); };
    return options;
  }
  // The profile of steps 4 to 6.
  static v1::StepProfile ProfileOf(StepMode steps) {
    const ScratchFolder plain_folder, folder;
    Recorder plain, recorder;
    EXPECT_TRUE(Train(Spec(GetParam().parts), On(plain_folder, steps), &plain).ok());
    const auto outcome = TrainProfiled(Spec(GetParam().parts), On(folder, steps), &recorder, 0, 3);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
    EXPECT_THAT(profiles, SizeIs(1));
    EXPECT_EQ(Told(recorder), Told(plain));
    EXPECT_EQ(ManifestOf(folder), ManifestOf(plain_folder));
    return profiles.empty() ? v1::StepProfile() : profiles[0];
  }
};

TEST_P(CudaProfile, ChangesNothingInStepsThatTheDeviceTakes) {
  const v1::StepProfile profile = ProfileOf(StepMode::kCaptured);
  EXPECT_EQ(profile.first_step(), 1);
  EXPECT_NE(profile.timing(), v1::StepProfile::HOST_CLOCK);
  double sum = 0;
  for (const v1::ProfilePart& part : profile.parts()) sum += part.seconds();
  EXPECT_GT(sum, 0);
  EXPECT_EQ(profile.note(), "");
}

TEST_P(CudaProfile, ChangesNothingInStepsOfOneKernel) {
  const v1::StepProfile profile = ProfileOf(StepMode::kResident);
  EXPECT_GT(profile.step_seconds(), 0);
  // A network that does not fit is taken apart as any other.
  EXPECT_EQ(profile.parts().empty(), !profile.note().empty());
}

INSTANTIATE_TEST_SUITE_P(Jobs, CudaProfile, testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::train
