// How many steps a graph takes, on the emulated device: windows that lie there before they are launched.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/backend/cuda_backend.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/device_steps.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kWindow = 16;

// Launches of graphs for a window of steps of the model, whose images are of `size` by `size`.
int64_t GraphsOfAWindow(const std::string& layers, int64_t size) {
  cuda_on_host::Reset();
  const ResolvedJobSpec spec =
      Spec({absl::StrCat("model { ", layers, " loss { softmax_cross_entropy {} } }"),
            "data { train { glyphs { samples: 96 } } } optimizer { sgd {} } train { batch_size: 2 steps: 100 }"});
  const bench::Sample sample = bench::ParseSample(absl::StrCat(size, ",", size, ",1"), "classes=10").value();
  const auto plan = PlanModel(spec, sample.info, MakeCudaBackend("").value(), 1, Fusion::kAll).value();
  const auto model = LoadedModel::Create(*plan).value();
  std::vector<std::unique_ptr<StepRunner>> runners;
  runners.push_back(std::make_unique<StepRunner>(100, plan.get(), model.get(), 0));
  data::Batch batch = bench::DrawBatch(sample, 2);
  EXPECT_TRUE(model->memory.Initialize(5).ok());
  EXPECT_TRUE(runners[0]->Prepare().ok());
  auto steps = bench::DeviceSteps::Create(*plan, model.get(), &runners, &batch, runtime::StepLaunch::kCaptured, [] {
    cuda_on_host::ClearCalls();
    return absl::OkStatus();
  });
  EXPECT_TRUE(steps.ok()) << steps.status();
  const auto times = (*steps)->Resident(kWindow);
  EXPECT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->applied, kWindow);
  const std::vector<std::string> calls = cuda_on_host::Calls();
  return std::count(calls.begin(), calls.end(), "cudaGraphLaunch");
}

TEST(CudaGraphs, TakeManyStepsOfFewKernels) {
  EXPECT_EQ(GraphsOfAWindow("layers { flatten {} } layers { dense { units: 10 } }", 8), 1);
}

// Two plan steps, and four kernels a time step in each.
TEST(CudaGraphs, TakeOneStepOfManyKernelsThoughThePlanIsShort) {
  EXPECT_EQ(GraphsOfAWindow("layers { lstm { units: 2 } } layers { lstm { units: 2 output: LAST_STEP } }"
                            "layers { dense { units: 10 } }",
                            48),
            kWindow);
}

}  // namespace
}  // namespace ampd::train
