// Whole trainings on the CUDA backend: decided by the host, by the device kernel after kernel, and by the device in
// captured steps, all with the same bits; and near the CPU backend's, whose numerics are the reference.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/train/step_flops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/cuda_job_test.h"

namespace ampd::train {
namespace {

class CudaTraining : public CudaJobTest {
 protected:
  static TrainerOptions OnCpu(const ScratchFolder& folder) {
    TrainerOptions options = On(folder, StepMode::kHost);
    options.make_backend = [] { return MakeCpuBackend(1, passes::kTensorCorePadding); };
    return options;
  }
};

TEST_P(CudaTraining, HasTheSameBitsWhoeverDecides) {
  const ScratchFolder host_folder;
  Recorder host;
  auto outcome = Train(Spec(GetParam().parts), On(host_folder, StepMode::kHost), &host);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_NE(ManifestOf(host_folder), "none");
  for (StepMode steps : {StepMode::kEnqueued, StepMode::kCaptured}) {
    const ScratchFolder folder;
    Recorder recorder;
    outcome = Train(Spec(GetParam().parts), On(folder, steps), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(Told(recorder), Told(host)) << static_cast<int>(steps);
    EXPECT_EQ(ManifestOf(folder), ManifestOf(host_folder)) << static_cast<int>(steps);
    EXPECT_EQ(LieOnDevice(recorder), !GetParam().fed);
  }
}

TEST_P(CudaTraining, HasTheSameBitsWhereverTheSamplesLie) {
  const ScratchFolder device_folder, fed_folder;
  Recorder device, fed;
  ASSERT_TRUE(Train(Spec(GetParam().parts), On(device_folder, StepMode::kCaptured), &device).ok());
  std::vector<std::string> job = GetParam().parts;
  job.push_back(kFed);
  const auto outcome = Train(Spec(job), On(fed_folder, StepMode::kCaptured), &fed);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_FALSE(LieOnDevice(fed));
  EXPECT_EQ(Told(fed), Told(device));
  EXPECT_NE(ManifestOf(fed_folder), "none");
  EXPECT_EQ(ManifestOf(fed_folder), ManifestOf(device_folder));
}

TEST_P(CudaTraining, ResumesWithTheSameBits) {
  const ScratchFolder whole_folder, parts_folder;
  Recorder whole, parts;
  // The device does not run ahead past a checkpoint, so a stop asked for there finds it there.
  std::vector<std::string> job = GetParam().parts;
  job.push_back("checkpoint { every_steps: 5 }");
  ASSERT_TRUE(Train(Spec(job), On(whole_folder, StepMode::kCaptured), &whole).ok());
  auto outcome = Train(Spec(job), On(parts_folder, StepMode::kCaptured), &parts, 5);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  // Where samples lie is no part of what a checkpoint is of.
  job.push_back(kFed);
  outcome = Train(Spec(job), On(parts_folder, StepMode::kCaptured), &parts);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(ManifestOf(parts_folder), ManifestOf(whole_folder));
}

TEST_P(CudaTraining, StaysNearTheCpus) {
  const ScratchFolder cpu_folder, cuda_folder;
  Recorder cpu, cuda;
  ASSERT_TRUE(Train(Spec(GetParam().parts), OnCpu(cpu_folder), &cpu).ok());
  const auto outcome = Train(Spec(GetParam().parts), On(cuda_folder, StepMode::kCaptured), &cuda);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto losses = [](const Recorder& recorder) {
    std::vector<double> all;
    for (const v1::JobEvent& event : recorder.events) {
      for (const v1::PhaseReport& phase : event.step().phases()) all.push_back(phase.loss());
    }
    return all;
  };
  const std::vector<double> expected = losses(cpu), found = losses(cuda);
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_FALSE(found.empty());
  for (size_t i = 0; i < found.size(); ++i) {
    // A report of a phase that was not due.
    EXPECT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << "step " << i;
    if (std::isnan(expected[i])) continue;
    // The first steps differ by roundings alone; later ones by what training makes of them.
    EXPECT_NEAR(found[i], expected[i], (i == 0 ? 2e-3 : 5e-2) * std::max(1.0, std::abs(expected[i]))) << "step " << i;
  }
}

TEST(CudaPlan, JoinsWhatIsLargeEnough) {
  if (const auto backend = MakeCudaBackend(""); !backend.ok()) GTEST_SKIP() << backend.status();
  const std::vector<Job> jobs = Jobs();
  const auto job = std::find_if(jobs.begin(), jobs.end(), [](const Job& j) { return j.name == "Joined"; });
  const ResolvedJobSpec spec = Spec(job->parts);
  const auto plan = [&](Fusion fusion) {
    return PlanModel(spec, {.input_shape = {28, 28, 1}, .classes = 10}, MakeCudaBackend("").value(), 1, fusion).value();
  };
  const auto regions = [](const PlannedModel& planned) {
    const std::vector<runtime::PlanStep>& steps = planned.phases[0].plans[0].steps;
    return std::count_if(steps.begin(), steps.end(),
                         [](const runtime::PlanStep& step) { return step.op == ir::OpKind::kRegion; });
  };
  const auto joined = plan(Fusion::kAll), chains = plan(Fusion::kChains);
  EXPECT_EQ(regions(*joined), 1);
  EXPECT_EQ(regions(*chains), 0);
  // The model's products are what they were.
  EXPECT_EQ(StepFlops(*joined, spec.proto().train()), StepFlops(*chains, spec.proto().train()));
}

INSTANTIATE_TEST_SUITE_P(Jobs, CudaTraining, ::testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::train
