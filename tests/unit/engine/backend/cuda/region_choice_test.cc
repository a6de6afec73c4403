// Which way regions run, on the emulated device: what was measured, a call that is wrong, and where nothing can be
// measured.
#include <algorithm>

#include "engine/backend/cuda/autotune_cache.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/unit/engine/backend/cuda/region_cases.h"

namespace ampd::cuda {
namespace {

class RegionChoice : public RegionTest {
 protected:
  void SetUp() override {
    cuda_on_host::Reset();
    RegionTest::SetUp();
  }
  void TearDown() override {
    context_.reset();
    cuda_on_host::Reset();
  }
};

// What is joined is not rounded on the way, so the two differ in their bits.
bool HasBitsOf(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), ampd::testing::SameBits);
}

TEST_F(RegionChoice, WhatWasMeasuredIsRemembered) {
  const NodeDesc desc = Dense(DType::kF16, {33, 40}, {{OpKind::kBiasAdd, {}}, {OpKind::kGelu, kTanh}}, {1, 2});
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto joined = Run(desc, inputs, RegionWay::kJoined), parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(joined.ok() && parts.ok());
  ASSERT_FALSE(HasBitsOf(*joined, *parts));
  const int64_t before = cuda_on_host::DeviceBytes(), handles = cuda_on_host::Handles();
  const auto first = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(context_->autotune()->size(), 1);
  EXPECT_EQ(cuda_on_host::DeviceBytes(), before);
  EXPECT_EQ(cuda_on_host::Handles(), handles);
  cuda_on_host::ClearCalls();
  const auto again = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(again.ok()) << again.status();
  const std::vector<std::string> calls = cuda_on_host::Calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "gemm"), 1);
  EXPECT_TRUE(HasBitsOf(*again, *first));
}

// One that adds a little to every result, and one that leaves the last as it found it.
class WrongConv : public Conv {
 public:
  WrongConv(std::unique_ptr<Conv> right, const ConvDesc& desc, Context* context, bool skips)
      : right_(std::move(right)), desc_(desc), context_(context), skips_(skips) {}
  int64_t workspace_bytes() const override { return right_->workspace_bytes(); }
  std::string algorithm() const override { return "wrong"; }
  absl::Status Run(const ConvArgs& args) override {
    const auto size = static_cast<size_t>(desc_.output[0] * desc_.output[1] * desc_.output[2] * desc_.output[3]);
    auto* const last = static_cast<float*>(args.result) + size - 1;
    const auto found = std::make_shared<float>();
    static_cast<void>(cuda_on_host::Enqueue(context_->stream(), "look", [last, found] { *found = *last; }));
    if (auto status = right_->Run(args); !status.ok()) return status;
    static_cast<void>(cuda_on_host::Enqueue(context_->stream(), "wrong", [args, size, last, found, skips = skips_] {
      if (skips) *last = *found;
      for (size_t i = 0; !skips && i < size; ++i) static_cast<float*>(args.result)[i] += 0.01f;
    }));
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Conv> right_;
  const ConvDesc desc_;
  Context* const context_;
  const bool skips_;
};

TEST_F(RegionChoice, ACallWhoseResultsDifferIsNotUsed) {
  const NodeDesc desc = Convolution(DType::kF32, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}});
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (bool skips : {false, true}) {
    context_->set_autotune(std::make_unique<AutotuneCache>());
    int made = 0;
    const auto make = [&](std::string name, const ConvDesc& conv,
                          Context* context) -> absl::StatusOr<std::unique_ptr<Conv>> {
      ++made;
      auto right = Conv::Create(std::move(name), conv, context);
      if (!right.ok()) return right.status();
      return std::unique_ptr<Conv>(std::make_unique<WrongConv>(*std::move(right), conv, context, skips));
    };
    const auto joined = Run(desc, inputs, RegionWay::kJoined, make);
    ASSERT_TRUE(joined.ok()) << joined.status();
    cuda_on_host::ClearCalls();
    const auto measured = Run(desc, inputs, RegionWay::kMeasured, make);
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(made, 2);
    const std::vector<std::string> calls = cuda_on_host::Calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "wrong"), 1) << skips;
    EXPECT_TRUE(HasBitsOf(*measured, *parts)) << skips;
    EXPECT_EQ(context_->autotune()->size(), 1);
  }
}

TEST_F(RegionChoice, RunsItsPartsWhereNothingCanBeMeasured) {
  const NodeDesc desc = Dense(DType::kF16, {33, 40}, {{OpKind::kBiasAdd, {}}}, {1});
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  // Memory for the node, but none for a second set of operands.
  cuda_on_host::ClearCalls();
  ASSERT_TRUE(Run(desc, inputs, RegionWay::kParts).ok());
  const std::vector<std::string> calls = cuda_on_host::Calls();
  const auto allocations = std::count(calls.begin(), calls.end(), "cudaMalloc");
  cuda_on_host::Fail("cudaMalloc", cudaErrorMemoryAllocation, static_cast<int>(allocations));
  const auto crowded = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(crowded.ok()) << crowded.status();
  EXPECT_TRUE(HasBitsOf(*crowded, *parts));
  EXPECT_EQ(context_->autotune()->size(), 0);
  context_->set_autotune(nullptr);
  const auto plain = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(HasBitsOf(*plain, *parts));
}

TEST_F(RegionChoice, WithoutACallThereAreTheParts) {
  // gelu's argument cannot be kept: its rows do not lie a multiple of 8 apart.
  const NodeDesc odd = Dense(DType::kF16, {5, 8}, {{OpKind::kGeluGrad, kTanh}}, {1}, 7);
  EXPECT_TRUE(absl::IsUnimplemented(Run(odd, Inputs(odd), RegionWay::kJoined).status()));
  // cuBLASLt's relu is not asked for.
  const NodeDesc relu = Dense(DType::kF16, {5, 8}, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}}, {2});
  EXPECT_TRUE(absl::IsUnimplemented(Run(relu, Inputs(relu), RegionWay::kJoined).status()));
  for (const NodeDesc& desc : {odd, relu}) {
    const auto results = Run(desc, Inputs(desc), RegionWay::kMeasured);
    ASSERT_TRUE(results.ok()) << results.status();
    ExpectRight(desc, Inputs(desc), *results);
    EXPECT_EQ(context_->autotune()->size(), 0);
  }
}

}  // namespace
}  // namespace ampd::cuda
