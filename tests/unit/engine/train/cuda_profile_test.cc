// Profiles of trainings on the CUDA backend, whoever takes the steps: with the bits of those that are not profiled.
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/cuda_job_test.h"
#include "tests/unit/engine/train/profiled_run.h"

namespace ampd::train {
namespace {

double SumOf(const v1::StepProfile& profile) {
  double sum = 0;
  for (const v1::ProfilePart& part : profile.parts()) sum += part.seconds();
  return sum;
}

class CudaProfile : public CudaJobTest {
 protected:
  // Of three steps, asked for when the report of step 2 is there and the device is steps ahead of it; the device runs
  // no further than to the checkpoint after step 6.
  static v1::StepProfile ProfileOf(StepMode steps, std::vector<std::string> parts) {
    parts.emplace_back("checkpoint { every_steps: 6 }");
    const ScratchFolder plain_folder, folder;
    Recorder plain, recorder;
    EXPECT_TRUE(Train(Spec(parts), On(plain_folder, steps), &plain).ok());
    const auto outcome = TrainProfiled(Spec(parts), On(folder, steps), &recorder, 2, 3);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
    EXPECT_EQ(profiles.size(), 1u);
    EXPECT_EQ(Told(recorder), Told(plain));
    EXPECT_EQ(ManifestOf(folder), ManifestOf(plain_folder));
    return profiles.empty() ? v1::StepProfile() : profiles[0];
  }
};

TEST_P(CudaProfile, ChangesNothingInStepsThatTheDeviceTakes) {
  const v1::StepProfile profile = ProfileOf(StepMode::kCaptured, GetParam().parts);
  EXPECT_GT(profile.first_step(), 2);
  EXPECT_EQ(profile.timing(), v1::StepProfile::DEVICE_EVENTS);
  const double sum = SumOf(profile);
  const auto steps = static_cast<double>(profile.last_step() - profile.first_step() + 1);
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, steps * profile.step_seconds());
  EXPECT_GT(profile.parts_size(), 8);
}

// Jobs of which, without micro-batches, one kernel takes the steps.
class CudaWholeProfile : public CudaProfile {};

TEST_P(CudaWholeProfile, ChangesNothing) {
  std::vector<std::string> parts = GetParam().parts;
  parts.emplace_back("train { micro_batch_size: 16 }");
  const v1::StepProfile profile = ProfileOf(StepMode::kResident, parts);
  EXPECT_GT(profile.first_step(), 2);
  EXPECT_EQ(profile.last_step(), profile.first_step() + 2);
  EXPECT_THAT(profile.note(), testing::HasSubstr("one kernel"));
  ASSERT_EQ(profile.parts_size(), 1);
  EXPECT_EQ(profile.parts(0).calls(), 3);
  EXPECT_GT(profile.parts(0).seconds(), 0);
  EXPECT_LE(profile.parts(0).seconds(), 3 * profile.step_seconds());
}

// What the device took is in the steps' time, whichever of them it was waited for in, and no other step's is.
TEST(CudaProfileSteps, OfOneKernelHoldWhatItTookHoweverManyAreProfiled) {
  const auto backend = MakeCudaBackend("");
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  for (const int64_t steps : {1, 20}) {
    const ScratchFolder folder;
    Recorder recorder;
    TrainerOptions options = Options(folder.path());
    options.steps = StepMode::kResident;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    const auto spec =
        Spec({"model { layers { flatten {} } layers { dense { units: 12 } } layers { dense { units: 10 } }"
              "        loss { softmax_cross_entropy {} } }"
              "data { train { glyphs { samples: 960 } } } optimizer { adam {} }"
              "train { batch_size: 16 epochs: 1 } report { every_steps: 1 } seed: 5"});
    const auto outcome = TrainProfiled(spec, options, &recorder, 0, steps);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const std::vector<v1::StepProfile> profiles = TakeProfiles(&recorder);
    ASSERT_EQ(profiles.size(), 1u);
    ASSERT_EQ(profiles[0].parts_size(), 1) << profiles[0].DebugString();
    EXPECT_LE(profiles[0].parts(0).seconds(), static_cast<double>(steps) * profiles[0].step_seconds());
  }
}

std::vector<Job> WholeJobs() {
  std::vector<Job> whole;
  for (const Job& job : Jobs()) {
    if (job.name == "Adagrad" || job.name == "OneHot") whole.push_back(job);
  }
  return whole;
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Jobs, CudaProfile, testing::ValuesIn(Jobs()), kName);
INSTANTIATE_TEST_SUITE_P(Jobs, CudaWholeProfile, testing::ValuesIn(WholeJobs()), kName);

}  // namespace
}  // namespace ampd::train
