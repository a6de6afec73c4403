// The chains of elementwise steps that the passes make of networks have kernels of their own on CUDA devices: what such
// a kernel looks for is written down beside it, and what passes make may change.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/backend/cuda/fused_chains.h"
#include "engine/backend/cuda_backend.h"
#include "engine/train/planned_model.h"
#include "tests/bench/bench_job.h"

namespace ampd::train {
namespace {

struct Chains {
  int own = 0;
  std::vector<std::string> interpreted;
};

// Of those whose results are all of 16 bits, without products' regions.
Chains ChainsOf(const std::string& workload, const std::string& mode, const std::string& input,
                const std::string& target) {
  const auto spec = bench::ReadSpec("tests/bench/workloads/" + workload + ".yaml", mode, {"train.batch_size=2"});
  EXPECT_TRUE(spec.ok()) << spec.status();
  const bench::Sample sample = bench::ParseSample(input, target).value();
  const auto plan = PlanModel(*spec, sample.info, MakeCudaBackend("").value(), 1, Fusion::kChains);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Chains chains;
  const cuda::Context context{cuda::DeviceProperties()};
  for (const PlannedPhase& phase : (*plan)->phases) {
    for (const runtime::PlanStep& step : phase.plans[0].steps) {
      if (step.op != ir::OpKind::kFused) continue;
      runtime::NodeDesc desc{.op = step.op, .name = step.name, .steps = step.fused, .results = step.fused_results};
      for (const runtime::PlannedTensor& tensor : step.inputs) desc.inputs.push_back(tensor.type);
      bool narrow = true;
      for (const runtime::PlannedTensor& tensor : step.outputs) {
        desc.outputs.push_back(tensor.type);
        narrow = narrow && SizeOf(tensor.type.dtype) == 2;
      }
      if (!narrow) continue;
      const auto compiled = cuda::CompileFused(desc);
      EXPECT_TRUE(compiled.ok()) << compiled.status();
      if (cuda::PrepareChain(&context, desc, *compiled) != nullptr) {
        ++chains.own;
      } else {
        chains.interpreted.push_back(step.name);
      }
    }
  }
  return chains;
}

TEST(CudaChains, OfAConvnetHaveKernels) {
  const Chains chains = ChainsOf("convnet", "FP16", "32,32,3", "classes=10");
  EXPECT_EQ(chains.own, 3);
  EXPECT_TRUE(chains.interpreted.empty()) << chains.interpreted[0];
}

TEST(CudaChains, OfAResNetHaveKernels) {
  const Chains chains = ChainsOf("resnet50", "BF16", "64,64,3", "classes=1000");
  // 33 norms with a relu, 16 ends of blocks, as many gradients' sums less one.
  EXPECT_GE(chains.own, 33 + 16 + 15);
  EXPECT_TRUE(chains.interpreted.empty()) << chains.interpreted[0];
}

TEST(CudaChains, OfATransformerHaveKernels) {
  const Chains chains = ChainsOf("transformer", "BF16", "ids=1000:16", "classes=1000:16");
  EXPECT_GE(chains.own, 4 * 2);
  EXPECT_TRUE(chains.interpreted.empty()) << chains.interpreted[0];
}

// All but those of f32 operands and with a condition.
TEST(CudaChains, OfAnAcganHaveKernels) {
  const Chains chains = ChainsOf("acgan", "FP16", "32,32,3", "classes=10");
  EXPECT_GE(chains.own, 15);
  EXPECT_LE(chains.interpreted.size(), 3u);
}

}  // namespace
}  // namespace ampd::train
