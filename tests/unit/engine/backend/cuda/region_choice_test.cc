// Which way regions run, on the emulated device: what was measured, a call that is wrong, and where nothing can be
// measured.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "engine/backend/cuda/autotune_cache.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/region_trial.h"
#include "engine/core/half.h"
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

// A product that takes no time beside what follows it.
NodeDesc Quick() { return Dense(DType::kF16, {256, 8}, {{OpKind::kBiasAdd, {}}, {OpKind::kGelu, kTanh}}, {1, 2}, 512); }

int64_t Count(const std::string& call) {
  const std::vector<std::string> calls = cuda_on_host::Calls();
  return std::count(calls.begin(), calls.end(), call);
}

TEST_F(RegionChoice, TheFasterWayIsTakenAndRemembered) {
  const NodeDesc desc = Quick();
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto joined = Run(desc, inputs, RegionWay::kJoined), parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(joined.ok() && parts.ok());
  ASSERT_FALSE(HasBitsOf(*joined, *parts));
  const int64_t before = cuda_on_host::DeviceBytes(), handles = cuda_on_host::Handles();
  const auto first = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(HasBitsOf(*first, *joined));
  EXPECT_EQ(context_->autotune()->size(), 1);
  EXPECT_EQ(cuda_on_host::DeviceBytes(), before);
  EXPECT_EQ(cuda_on_host::Handles(), handles);
  cuda_on_host::ClearCalls();
  const auto again = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Count("gemm"), 1);
  EXPECT_TRUE(HasBitsOf(*again, *joined));
}

// Another process compares again, and measures nothing.
TEST_F(RegionChoice, AnotherProcessComparesAgain) {
  char folder[] = "/tmp/ampd_region_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const NodeDesc desc = Quick();
  const std::vector<RefTensor> inputs = Inputs(desc);
  for (const bool first : {true, false}) {
    auto context = Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    context_->set_autotune(std::make_unique<AutotuneCache>(folder));
    EXPECT_EQ(context_->autotune()->size(), first ? 0 : 1);
    cuda_on_host::ClearCalls();
    const auto results = Run(desc, inputs, RegionWay::kMeasured);
    ASSERT_TRUE(results.ok()) << results.status();
    // Once each to begin with, in both comparisons, and the run itself.
    if (!first) {
      EXPECT_EQ(Count("gemm"), 2 + 2 * 2 + 1);
    }
    EXPECT_EQ(context_->autotune()->size(), 1);
  }
  std::filesystem::remove_all(folder);
}

enum class Wrong {
  kAdds,      // a little to every result
  kSkips,     // leaves the last as it found it
  kLosesNan,  // has 0 in place of what is not finite
  kIsSlow,    // and right
  kFails,
  kHasNoMemory,
  kLosesDevice,  // and says something else
};

class WrongConv : public Conv {
 public:
  WrongConv(std::unique_ptr<Conv> right, const ConvDesc& desc, Context* context, Wrong wrong)
      : right_(std::move(right)), desc_(desc), context_(context), wrong_(wrong) {}
  int64_t workspace_bytes() const override { return right_->workspace_bytes(); }
  std::string algorithm() const override { return "wrong"; }
  absl::Status Run(const ConvArgs& args) override {
    if (wrong_ == Wrong::kLosesDevice) cuda_on_host::Fail("cudaStreamSynchronize", cudaErrorContained);
    if (wrong_ == Wrong::kHasNoMemory) return absl::ResourceExhaustedError("no memory");
    if (wrong_ == Wrong::kFails || wrong_ == Wrong::kLosesDevice) return absl::InternalError("no such engine");
    const auto size = static_cast<size_t>(desc_.output[0] * desc_.output[1] * desc_.output[2] * desc_.output[3]);
    auto* const last = static_cast<float*>(args.result) + size - 1;
    const auto found = std::make_shared<float>();
    static_cast<void>(cuda_on_host::Enqueue(context_->stream(), "look", [last, found] { *found = *last; }));
    if (auto status = right_->Run(args); !status.ok()) return status;
    static_cast<void>(cuda_on_host::Enqueue(context_->stream(), "wrong", [args, size, last, found, wrong = wrong_] {
      auto* const y = static_cast<float*>(args.result);
      if (wrong == Wrong::kSkips) *last = *found;
      if (wrong == Wrong::kIsSlow) cuda_on_host::Delay(100);
      for (size_t i = 0; i < size; ++i) {
        if (wrong == Wrong::kAdds) y[i] += 0.01f;
        if (wrong == Wrong::kLosesNan && !std::isfinite(y[i])) y[i] = 0;
      }
    }));
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Conv> right_;
  const ConvDesc desc_;
  Context* const context_;
  const Wrong wrong_;
};

TEST_F(RegionChoice, ACallWhoseResultsDifferIsNotUsed) {
  const NodeDesc desc = Convolution(DType::kF32, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}});
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (Wrong wrong : {Wrong::kAdds, Wrong::kSkips, Wrong::kLosesNan, Wrong::kIsSlow, Wrong::kFails}) {
    SCOPED_TRACE(static_cast<int>(wrong));
    context_->set_autotune(std::make_unique<AutotuneCache>());
    context_->library(Library::kRegions) = nullptr;
    const auto make = [&](std::string name, const ConvDesc& conv,
                          Context* context) -> absl::StatusOr<std::unique_ptr<Conv>> {
      auto right = Conv::Create(std::move(name), conv, context);
      if (!right.ok()) return right.status();
      return std::unique_ptr<Conv>(std::make_unique<WrongConv>(*std::move(right), conv, context, wrong));
    };
    const auto measured = Run(desc, inputs, RegionWay::kMeasured, make);
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_TRUE(HasBitsOf(*measured, *parts));
    EXPECT_EQ(context_->autotune()->size(), 1);
    cuda_on_host::ClearCalls();
    const auto again = Run(desc, inputs, RegionWay::kMeasured, make);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Count("wrong"), 0);
  }
}

// What failed with its device may be the right choice of the next process.
TEST_F(RegionChoice, ADeviceThatFailsIsNothingToRemember) {
  const NodeDesc desc = Convolution(DType::kF32, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}});
  const auto make = [](std::string name, const ConvDesc& conv,
                       Context* context) -> absl::StatusOr<std::unique_ptr<Conv>> {
    auto right = Conv::Create(std::move(name), conv, context);
    if (!right.ok()) return right.status();
    return std::unique_ptr<Conv>(std::make_unique<WrongConv>(*std::move(right), conv, context, Wrong::kLosesDevice));
  };
  const auto results = Run(desc, Inputs(desc), RegionWay::kMeasured, make);
  EXPECT_TRUE(absl::IsUnavailable(results.status())) << results.status();
  EXPECT_EQ(context_->autotune()->size(), 0);
}

// Nor is memory that was short.
TEST_F(RegionChoice, ACallThatGotNoMemoryIsNothingToRemember) {
  const NodeDesc desc = Convolution(DType::kF32, {{OpKind::kBiasAdd, {}}, {OpKind::kRelu, {}}});
  const std::vector<RefTensor> inputs = Inputs(desc);
  const auto parts = Run(desc, inputs, RegionWay::kParts);
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (const bool is_made : {true, false}) {
    SCOPED_TRACE(is_made);
    const auto make = [is_made](std::string name, const ConvDesc& conv,
                                Context* context) -> absl::StatusOr<std::unique_ptr<Conv>> {
      if (!is_made) return absl::ResourceExhaustedError("no memory");
      auto right = Conv::Create(std::move(name), conv, context);
      if (!right.ok()) return right.status();
      return std::unique_ptr<Conv>(std::make_unique<WrongConv>(*std::move(right), conv, context, Wrong::kHasNoMemory));
    };
    const auto measured = Run(desc, inputs, RegionWay::kMeasured, make);
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_TRUE(HasBitsOf(*measured, *parts));
    EXPECT_EQ(context_->autotune()->size(), 0);
  }
}

// What refuses to be made is no reason for a job to fail.
TEST_F(RegionChoice, ACallThatCannotBeMadeIsNotUsed) {
  const NodeDesc desc = Convolution(DType::kF32, {{OpKind::kBiasAdd, {}}});
  const auto make = [](const std::string&, const ConvDesc&, Context*) -> absl::StatusOr<std::unique_ptr<Conv>> {
    return absl::InvalidArgumentError("bad parameter");
  };
  EXPECT_TRUE(absl::IsInvalidArgument(Run(desc, Inputs(desc), RegionWay::kJoined, make).status()));
  const auto results = Run(desc, Inputs(desc), RegionWay::kMeasured, make);
  ASSERT_TRUE(results.ok()) << results.status();
  ExpectRight(desc, Inputs(desc), *results);
}

// A captured graph has the parts; the launch after it settles the way.
TEST_F(RegionChoice, NothingIsSettledWhileAGraphIsCaptured) {
  const NodeDesc desc = Quick();
  runtime::KernelTable table;
  RegisterCudaKernels(&table, context_.get());
  const auto kernel = table.Prepare(desc);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  std::vector<DeviceArray> memory;
  std::vector<TensorView> inputs, outputs;
  for (const bool is_input : {true, false}) {
    for (const ir::TensorType& type : is_input ? desc.inputs : desc.outputs) {
      memory.push_back(DeviceArray::Allocate(NumElements(type.shape) * SizeOf(type.dtype), "a test").value());
      (is_input ? inputs : outputs).push_back({memory.back().as<void>(), type.dtype, type.shape});
    }
  }
  memory.push_back(DeviceArray::Allocate((*kernel)->workspace_bytes(), "a test").value());
  const runtime::KernelArgs args{.inputs = inputs, .outputs = outputs, .workspace = memory.back().as<void>()};
  ASSERT_EQ(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_TRUE((*kernel)->Launch(args).ok());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(context_->stream(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(context_->autotune()->size(), 0);
  ASSERT_TRUE((*kernel)->Launch(args).ok());
  EXPECT_EQ(context_->autotune()->size(), 1);
  EXPECT_TRUE(context_->Wait().ok());
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
  // In this process, which does not try again, and in no other.
  EXPECT_EQ(context_->autotune()->size(), 0);
  cuda_on_host::ClearCalls();
  const auto again = Run(desc, inputs, RegionWay::kMeasured);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(HasBitsOf(*again, *parts));
  EXPECT_EQ(Count("cudaMalloc"), allocations);
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

TEST_F(RegionChoice, TrialsAreDrawnOnceAndSampledInPieces) {
  constexpr int64_t kPrime = 1'048'573, kElements = 5'000'000;
  const ir::TensorType type{DType::kF16, {kElements}};
  const auto trial = RegionTrial::Create(context_.get(), {type, type}, {1, 3}, {type});
  ASSERT_TRUE(trial.ok()) << trial.status();
  const auto values = [&](int input) { return static_cast<const Half*>(trial->inputs()[input].data); };
  float largest[2] = {};
  for (int input : {0, 1}) {
    for (int64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(values(input)[i].bits, values(input)[i % kPrime].bits);
      largest[input] = std::max(largest[input], std::fabs(ToFloat(values(input)[i])));
    }
  }
  EXPECT_NEAR(largest[0], 1, 1e-3);
  EXPECT_NEAR(largest[1], 3, 3e-3);
  EXPECT_NE(3 * ToFloat(values(0)[0]), ToFloat(values(1)[0]));
  const auto samples = SampleOf(context_.get(), trial->inputs()[0]);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->size(), size_t{1} << 22);
  EXPECT_EQ(samples->front(), ToFloat(values(0)[0]));
  EXPECT_EQ(samples->back(), ToFloat(values(0)[kElements - 1]));
}

TEST(RegionDifference, IsWhatRoundingsDoNotExplain) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const auto differs = [](float product, float parts, float joined, DType dtype, SumsOf sums) {
    return !DifferenceOf({1, product}, {1, parts}, {1, joined}, dtype, sums).empty();
  };
  EXPECT_FALSE(differs(1, 1, 1 + 0x1p-9f, DType::kF16, SumsOf::k16BitOperands));
  EXPECT_TRUE(differs(1, 1, 1 + 0x1p-7f, DType::kF16, SumsOf::k16BitOperands));
  EXPECT_FALSE(differs(1, 1, 1 + 0x1p-7f, DType::kBF16, SumsOf::k16BitOperands));
  EXPECT_TRUE(differs(1, 1, 1 + 0x1p-12f, DType::kF32, SumsOf::kF32Operands));
  EXPECT_FALSE(differs(1, 1, 1 + 0x1p-12f, DType::kF32, SumsOf::kTf32Operands));
  for (float bad : {kNan, kInf, -kInf}) {
    EXPECT_TRUE(differs(1, 1, bad, DType::kF16, SumsOf::k16BitOperands)) << bad;
    EXPECT_TRUE(differs(kNan, bad, 1, DType::kF16, SumsOf::k16BitOperands)) << bad;
    EXPECT_TRUE(differs(kInf, bad, 1, DType::kF16, SumsOf::k16BitOperands)) << bad;
    EXPECT_FALSE(differs(-kInf, bad, 0, DType::kF16, SumsOf::k16BitOperands)) << bad;
    EXPECT_FALSE(differs(kNan, bad, kNan, DType::kF16, SumsOf::k16BitOperands)) << bad;
  }
}

}  // namespace
}  // namespace ampd::cuda
