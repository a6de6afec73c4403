// Every attention of the workloads has a plan of cuDNN's on the devices that cuDNN serves, forward and backward; none
// is there. Linked to a CUDA driver without a device.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "engine/backend/cuda/fused_attention.h"

namespace ampd::cuda {
namespace {

DeviceProperties Device(int capability) {
  DeviceProperties p;
  p.name = "device";
  p.major = capability / 10;
  p.minor = capability % 10;
  if (capability < 90) {
    p.shared_bytes_per_block = (capability == 80 ? 163 : 99) << 10;
    p.sm_count = 108;
    p.memory_bytes = int64_t{40} << 30;
  }
  return p;
}

// [batch, heads, time, head size], packed, causal and cut out of one tensor, as GPT's.
FusedAttentionDesc Gpt(bool gradient, DType dtype, std::array<int64_t, 4> d) {
  FusedAttentionDesc desc;
  desc.gradient = gradient;
  desc.dtype = dtype;
  desc.dims.batch = d[0];
  desc.dims.heads = desc.dims.kv_heads = d[1];
  desc.dims.q_length = desc.dims.kv_length = d[2];
  desc.dims.head_size = desc.dims.value_size = d[3];
  desc.dims.packed = desc.dims.causal = true;
  desc.dims.row = 3 * d[1] * d[3];
  desc.dims.scale = 0.125;
  return desc;
}

bool HasCudnn() {
  Context context{Device(90)};
  // Refused in any case.
  const auto made = FusedAttention::Create(Gpt(false, DType::kF32, {8, 12, 1024, 64}), &context);
  return made.status().message().find("no cuDNN") == absl::string_view::npos;
}

class CudnnAttention : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!HasCudnn()) GTEST_SKIP() << "built without cuDNN";
  }
};

// GPT-2, a wide GPT, and one whose length is no multiple of a tile.
TEST_P(CudnnAttention, HasPlansForTheWorkloads) {
  Context context{Device(GetParam())};
  for (const std::array<int64_t, 4>& d :
       std::vector<std::array<int64_t, 4>>{{8, 12, 1024, 64}, {4, 16, 1024, 128}, {3, 2, 333, 64}}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      // Each takes a second.
      if (dtype == DType::kF16 && d[1] != 12) continue;
      for (bool gradient : {false, true}) {
        const auto made = FusedAttention::Create(Gpt(gradient, dtype, d), &context);
        ASSERT_TRUE(made.ok()) << made.status();
        RecordProperty(absl::StrCat("sm_", GetParam(), gradient ? "_grad_" : "_", DTypeName(dtype), "_", d[0], "_",
                                    d[1], "_", d[2], "_", d[3]),
                       absl::StrCat((*made)->algorithm(), ", workspace ", (*made)->workspace_bytes()));
        const int64_t scores = d[0] * d[1] * (d[2] + 128) * (d[2] + 128);
        EXPECT_LE((*made)->workspace_bytes(), (gradient ? 2 * scores : 0) + (1 << 20));
      }
    }
  }
}

// A network's layers share what takes seconds to build.
TEST_P(CudnnAttention, IsMadeOnceForEqualUses) {
  Context context{Device(GetParam())};
  const FusedAttentionDesc desc = Gpt(false, DType::kBF16, {3, 2, 333, 64});
  const auto first = FusedAttention::Create(desc, &context), second = FusedAttention::Create(desc, &context);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status();
  EXPECT_EQ(*first, *second);
  FusedAttentionDesc other = desc;
  other.dims.causal = false;
  const auto third = FusedAttention::Create(other, &context);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_NE(*first, *third);
  other = desc, other.dims.row = 0;
  const auto apart = FusedAttention::Create(other, &context);
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_NE(*first, *apart);
}

INSTANTIATE_TEST_SUITE_P(Capability, CudnnAttention, ::testing::Values(80, 89, 90, 100));

TEST(CudnnAttention, LeavesTheRestToTheBackendsOwnKernels) {
  if (!HasCudnn()) GTEST_SKIP() << "built without cuDNN";
  const auto refuses = [](int capability, const FusedAttentionDesc& desc, const std::string& why) {
    Context context{Device(capability)};
    const absl::Status status = FusedAttention::Create(desc, &context).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_NE(status.message().find(why), absl::string_view::npos) << status;
  };
  const FusedAttentionDesc plain = Gpt(true, DType::kF16, {8, 12, 1024, 64});
  refuses(75, plain, "8.0");
  FusedAttentionDesc other = plain;
  other.dtype = DType::kF32;
  refuses(90, other, "16 bits");
  other = plain, other.dims.softcap = 1;
  refuses(90, other, "softcap");
  other = plain, other.dims.causal_offset = 3;
  refuses(90, other, "causal_offset");
  other = plain, other.dims.head_size = 60;
  refuses(90, other, "multiples of 8");
  other = plain, other.dims.value_size = 256;
  refuses(90, other, "128");
  other = plain, other.dims.kv_heads = 4;
  refuses(90, other, "grouped");
  refuses(90, Gpt(false, DType::kF16, {2, 2, 64, 64}), "too small");
  for (const double scale : {0.0, -0.125, 1e-60, std::nan("")}) {
    for (const bool gradient : {false, true}) {
      other = plain, other.gradient = gradient, other.dims.scale = scale;
      refuses(90, other, "scale");
    }
  }
}

// Its gradient gives NaN there for scores that are far below 0; its forward pass serves the own gradient as well.
TEST(CudnnAttention, LeavesGradientsWithUnmaskedKeysBehindTheLastToTheOwnKernels) {
  if (!HasCudnn()) GTEST_SKIP() << "built without cuDNN";
  struct Use {
    int64_t queries, keys;
    bool causal;
  };
  Context context{Device(90)};
  const auto status = [&](const Use& use, bool gradient) {
    FusedAttentionDesc desc = Gpt(gradient, DType::kBF16, {8, 12, use.queries, 64});
    desc.dims.kv_length = use.keys;
    desc.dims.causal = use.causal;
    desc.dims.row = 0;
    return FusedAttention::Create(desc, &context).status();
  };
  for (const Use& use : {Use{192, 192, false}, {320, 320, false}, {1000, 1000, false}, {256, 192, true}}) {
    EXPECT_TRUE(absl::IsUnimplemented(status(use, true))) << use.queries << " " << use.keys;
    EXPECT_NE(status(use, true).message().find("128"), absl::string_view::npos) << status(use, true);
    EXPECT_TRUE(status(use, false).ok()) << status(use, false);
  }
  for (const bool causal : {false, true}) {
    EXPECT_NE(status({1, 4096, causal}, true).message().find("one query"), absl::string_view::npos) << causal;
  }
  for (const Use& use : {Use{192, 256, false}, {192, 192, true}, {1024, 1024, true}}) {
    EXPECT_TRUE(status(use, true).ok()) << status(use, true);
  }
}

}  // namespace
}  // namespace ampd::cuda
