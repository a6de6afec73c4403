// The passes over flat arenas against the CPU backend's, which are tested against float64: the rules are one source,
// so the bits are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/optim/update_scalars.h"
#include "tests/support/ref_tensor.h"

namespace ampd::cuda {
namespace {

using optim::OptimizerConfig;
using optim::OptimizerKind;
using runtime::ArenaSlot;
using runtime::Buffer;
using runtime::UpdateArgs;
using runtime::UpdateRange;

constexpr int64_t kSize = 30011;

std::vector<float> Draw(testing::Random* random, double low, double high) {
  std::vector<float> values(kSize);
  for (float& v : values) v = static_cast<float>(random->Uniform(low, high));
  return values;
}

class CudaArenaPasses : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<runtime::Backend>> backend = MakeCudaBackend("");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
    backend_ = *std::move(backend);
  }

  Buffer Upload(const std::vector<float>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    Buffer buffer = std::move(Buffer::Allocate(backend_->memory(), bytes, "a test's arena")).value();
    EXPECT_TRUE(backend_->memory()->Upload(values.data(), bytes, buffer.data()).ok());
    return buffer;
  }
  std::vector<float> Download(const Buffer& buffer) {
    std::vector<float> values(kSize);
    EXPECT_TRUE(backend_->memory()->Download(buffer.data(), kSize * 4, values.data()).ok());
    return values;
  }

  void ExpectSameCheck(const std::vector<float>& gradients, const std::vector<ArenaSlot>& slots, float factor) {
    runtime::GradientCheck expected, check;
    ASSERT_TRUE(MakeCpuBackend(1)->CheckGradients(gradients.data(), slots, factor, &expected).ok());
    const Buffer arena = Upload(gradients);
    const auto* device = reinterpret_cast<const float*>(arena.data());
    ASSERT_TRUE(backend_->CheckGradients(device, slots, factor, &check).ok());
    EXPECT_EQ(check.finite, expected.finite);
    EXPECT_EQ(check.first_bad_slot, expected.first_bad_slot);
    EXPECT_EQ(check.first_bad_is_nan, expected.first_bad_is_nan);
    EXPECT_EQ(check.zeros, expected.zeros);
    if (expected.finite) {
      EXPECT_NEAR(check.sum_of_squares, expected.sum_of_squares, 1e-12 * expected.sum_of_squares);
    }
  }

  void ExpectSameUpdates(const OptimizerConfig& config, DType round_to, bool averaged) {
    testing::Random random(5);
    const std::vector<UpdateRange> ranges = {{{0, 20001}, 1.0f, 0.01f}, {{20016, 9000}, 0.5f, 0.0f}};
    std::vector<float> arenas[6] = {Draw(&random, -1, 1),      Draw(&random, -1, 1),      std::vector<float>(kSize),
                                    std::vector<float>(kSize), std::vector<float>(kSize), Draw(&random, -1, 1)};
    Buffer device[6];
    for (int i = 0; i < 6; ++i) device[i] = Upload(arenas[i]);
    const auto args_of = [&](float* at[6]) {
      UpdateArgs args{.config = config, .masters = at[0], .gradients = at[1]};
      args.moment1 = config.moments() > 0 ? at[2] : nullptr;
      args.moment2 = config.moments() > 1 ? at[3] : nullptr;
      args.moment3 = config.moments() > 2 ? at[4] : nullptr;
      args.ranges = ranges;
      args.round_to = round_to;
      args.average = averaged ? at[5] : nullptr;
      args.average_weight = 0.125f;
      return args;
    };
    float *host[6], *far[6];
    for (int i = 0; i < 6; ++i) {
      host[i] = arenas[i].data();
      far[i] = reinterpret_cast<float*>(device[i].data());
    }
    UpdateArgs expected = args_of(host), args = args_of(far);
    for (int64_t step = 0; step < 3; ++step) {
      args.scalars = expected.scalars = optim::ComputeUpdateScalars(config, 0.01, step, 0.5, 1024);
      ASSERT_TRUE(MakeCpuBackend(1)->Update(expected).ok());
      ASSERT_TRUE(backend_->Update(args).ok());
    }
    for (int i = 0; i < 6; ++i) EXPECT_EQ(Download(device[i]), arenas[i]) << "arena " << i;
  }

  std::unique_ptr<runtime::Backend> backend_;
};

TEST_F(CudaArenaPasses, ChecksGradients) {
  testing::Random random(1);
  std::vector<float> gradients = Draw(&random, -1, 1);
  gradients[3] = 0.0f;
  gradients[20005] = std::numeric_limits<float>::quiet_NaN();  // between slots
  const std::vector<ArenaSlot> slots = {{20016, 9000}, {0, 20001}, {29952, 1}};
  ExpectSameCheck(gradients, slots, 0.125f);
  gradients[17000] = -std::numeric_limits<float>::infinity();
  ExpectSameCheck(gradients, slots, 0.125f);
  gradients[16999] = std::numeric_limits<float>::quiet_NaN();
  ExpectSameCheck(gradients, slots, 0.125f);
  gradients[29952] = std::numeric_limits<float>::infinity();
  ExpectSameCheck(gradients, slots, 1.0f);
  ExpectSameCheck(std::vector<float>(kSize, 1e30f), slots, 1.0f);
}

TEST_F(CudaArenaPasses, UpdatesByEveryRule) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kRmsProp,
                             OptimizerKind::kAdagrad, OptimizerKind::kLamb}) {
    for (float momentum : {0.0f, 0.9f}) {
      for (bool flag : {false, true}) {
        SCOPED_TRACE(static_cast<int>(kind));
        OptimizerConfig config{.kind = kind, .momentum = momentum, .nesterov = flag && momentum > 0, .centered = flag};
        config.rate_decay = 0.1;
        if (flag) config.clip_value = 1e-4f;
        ExpectSameUpdates(config, DType::kF32, flag);
      }
    }
  }
}

TEST_F(CudaArenaPasses, RoundsMasters) {
  for (DType t : {DType::kF16, DType::kBF16}) ExpectSameUpdates({.kind = OptimizerKind::kAdamW}, t, true);
}

TEST_F(CudaArenaPasses, FindsTheFirstNonFinite) {
  std::vector<float> values(kSize, 1.0f);
  bool found = true, is_nan = true;
  Buffer buffer = Upload(values);
  const TensorView tensor{buffer.data(), DType::kF32, {kSize}};
  ASSERT_TRUE(backend_->FindNonFinite(tensor, &found, &is_nan).ok());
  EXPECT_FALSE(found);
  values[20000] = std::numeric_limits<float>::quiet_NaN();
  values[30000] = std::numeric_limits<float>::infinity();
  buffer = Upload(values);
  ASSERT_TRUE(backend_->FindNonFinite({buffer.data(), DType::kF32, {kSize}}, &found, &is_nan).ok());
  EXPECT_TRUE(found && is_nan);
  values[19999] = -std::numeric_limits<float>::infinity();
  buffer = Upload(values);
  ASSERT_TRUE(backend_->FindNonFinite({buffer.data(), DType::kF32, {kSize}}, &found, &is_nan).ok());
  EXPECT_TRUE(found && !is_nan);
}

TEST_F(CudaArenaPasses, PadsInto) {
  std::vector<float> from(2 * 3 * 5);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i + 1);
  std::vector<float> expected(2 * 4 * 8, -1);
  ASSERT_TRUE(MakeCpuBackend(1)->PadInto(from.data(), {2, 3, 5}, {2, 4, 8}, expected.data()).ok());
  const Buffer source = Upload(from), target = Upload(std::vector<float>(kSize, -1));
  ASSERT_TRUE(backend_
                  ->PadInto(reinterpret_cast<const float*>(source.data()), {2, 3, 5}, {2, 4, 8},
                            reinterpret_cast<float*>(target.data()))
                  .ok());
  std::vector<float> padded = Download(target);
  padded.resize(expected.size());
  EXPECT_EQ(padded, expected);
}

}  // namespace
}  // namespace ampd::cuda
