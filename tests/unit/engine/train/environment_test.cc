#include "engine/train/environment.h"

#include <oneapi/dnnl/dnnl.hpp>

#include "engine/backend/cuda_build.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

using testing::MatchesRegex;

TEST(EnvironmentTest, OfCpuDevicesOneDnnAndItsInstructions) {
  const v1::AttemptEnvironment environment = EnvironmentOf({"cpu-0", "cpu-1"}, 3);
  EXPECT_EQ(environment.cpu_threads(), 3);
  ASSERT_EQ(environment.libraries().size(), 1u);
  EXPECT_THAT(environment.libraries().at("onednn"), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(environment.instruction_set(), MatchesRegex("[A-Z0-9_]+"));
  if (dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx2) {
    EXPECT_EQ(environment.instruction_set(), "AVX2");
  }
}

TEST(EnvironmentTest, OfGpusTheLibrariesOfTheBuild) {
  const v1::AttemptEnvironment one = EnvironmentOf({"GPU-1"}, 3), two = EnvironmentOf({"GPU-1", "GPU-2"}, 3);
  EXPECT_EQ(one.instruction_set(), "");
  EXPECT_FALSE(one.libraries().contains("nccl")) << "nothing is summed over devices";
  const int cuda = ThisCudaBuild().version;
  if (cuda == 0) GTEST_SKIP() << "built without CUDA";
  EXPECT_EQ(one.libraries().at("cuda"), std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10));
  EXPECT_THAT(one.libraries().at("cublas"), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  if (two.libraries().contains("nccl")) {
    EXPECT_THAT(two.libraries().at("nccl"), MatchesRegex("2\\.[0-9]+\\.[0-9]+"));
  }
}

}  // namespace
}  // namespace ampd::train
