// The backend's own convolution, which the rows of the kernel table use only where the library has no plan.
#include "engine/backend/cuda/conv_direct.h"

#include <gtest/gtest.h>

#include "engine/backend/cuda/conv2d.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/fused_attention.h"
#include "engine/core/status.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using Row = std::pair<OpKind, runtime::KernelTable::Signature>;

std::vector<Row> Rows() {
  std::vector<Row> rows;
  for (const Row& row : RequiredKernels()) {
    const OpKind op = row.first;
    if (op == OpKind::kConv2d || op == OpKind::kConv2dGradInput || op == OpKind::kConv2dGradFilter ||
        op == OpKind::kConvTranspose2d) {
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<Row> RowsOf8Bits() {
  std::vector<Row> rows;
  for (const Row& row : Rows()) {
    if (IsF8(row.second.first.front())) rows.push_back(row);
  }
  return rows;
}

class DirectConvRow : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = context->get();
    backend_ = std::make_unique<cuda::CudaBackend>(*std::move(context));
    cuda::RegisterConvolutions(&table_, context_, cuda::MakeDirectConv);
  }
  absl::StatusOr<std::vector<Tensor>> Run(const KernelCase& c) {
    return RunKernel(table_, c.desc, c.inputs, c.step, {}, backend_->memory());
  }

  cuda::Context* context_ = nullptr;
  std::unique_ptr<cuda::CudaBackend> backend_;
  runtime::KernelTable table_;
};

TEST_P(DirectConvRow, AgreesWithReferenceAndRepeatsItsBits) {
  for (const KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    const auto results = Run(c), again = Run(c);
    ASSERT_TRUE(results.ok() && again.ok()) << Describe(c.desc) << ": " << results.status();
    const std::vector<RefTensor> expected = ReferenceOp(c.desc, c.inputs, c.step);
    const std::vector<RefTensor> bounds = ErrorBound(c.desc, c.inputs, expected, c.step);
    EXPECT_EQ(Compare(FromTensor((*results)[0].view()), expected[0], bounds[0], ResultDTypes(c.desc)[0]), "")
        << Describe(c.desc);
    EXPECT_TRUE(SameBits((*results)[0], (*again)[0])) << Describe(c.desc);
  }
}

// In the place of a library that tries its algorithms.
enum class Tried {
  kOverOperands,  // one writes over both operands
  kInFront,       // one writes in front of its workspace
  kNoWorkspace,   // they need none
  kPastOperands,  // one reads what lies behind its operands, as far as the workspace or what is padded
};

class TryingConv : public cuda::Conv {
 public:
  TryingConv(std::unique_ptr<Conv> right, const cuda::ConvDesc& desc, cuda::Context* context, Tried tried)
      : right_(std::move(right)), desc_(desc), context_(context), tried_(tried) {}

  int64_t workspace_bytes() const override {
    return tried_ == Tried::kNoWorkspace ? 0 : kOwn + right_->workspace_bytes();
  }
  std::string algorithm() const override { return "trying"; }

  absl::Status Run(const cuda::ConvArgs& args) override {
    if (tried_ == Tried::kNoWorkspace) {
      return args.workspace == nullptr ? right_->Run(args) : absl::InternalError("the address of something else");
    }
    if (tried_ == Tried::kInFront) {
      Spoil(static_cast<char*>(args.workspace) - kOwn, kOwn);
      return right_->Run(args);
    }
    if (!args.renew) return absl::InternalError("operands that cannot be had again");
    const bool is_filter = desc_.kind == cuda::ConvKind::kGradFilter;
    const int64_t a_bytes = Bytes(desc_.kind == cuda::ConvKind::kForward ? desc_.image : desc_.output);
    const int64_t b_bytes = Bytes(is_filter ? desc_.image : desc_.filter);
    if (tried_ == Tried::kPastOperands) {
      AMPD_RETURN_IF_ERROR(ExpectZeros(args.a, a_bytes, args.b));
      AMPD_RETURN_IF_ERROR(ExpectZeros(args.b, b_bytes, args.workspace));
      return right_->Run(args);
    }
    Spoil(const_cast<void*>(args.a), a_bytes);
    Spoil(const_cast<void*>(args.b), b_bytes);
    AMPD_RETURN_IF_ERROR(args.renew());
    return right_->Run(args);
  }

 private:
  static constexpr int64_t kOwn = 256;

  static int64_t Bytes(const std::array<int64_t, 4>& e) { return e[0] * e[1] * e[2] * e[3] * SizeOf(DType::kF32); }
  void Spoil(void* p, int64_t bytes) {
    EXPECT_EQ(cudaMemsetAsync(p, 0xff, static_cast<size_t>(bytes), context_->stream()), cudaSuccess);
  }

  // From `bytes` behind `from` on.
  absl::Status ExpectZeros(const void* from, int64_t bytes, const void* to) {
    const char* const first = static_cast<const char*>(from) + bytes;
    EXPECT_GE(static_cast<const char*>(to), first);
    std::vector<char> found(static_cast<size_t>(static_cast<const char*>(to) - first));
    AMPD_RETURN_IF_ERROR(cuda::CudaMemory(context_).Download(first, static_cast<int64_t>(found.size()), found.data()));
    EXPECT_EQ(found, std::vector<char>(found.size()));
    return absl::OkStatus();
  }

  const std::unique_ptr<Conv> right_;
  const cuda::ConvDesc desc_;
  cuda::Context* const context_;
  const Tried tried_;
};

// Copies of 8-bit operands lie beside the workspace in which a library tries its algorithms.
class WidenedConvRow : public DirectConvRow {};

TEST_P(WidenedConvRow, AlgorithmsThatAreTriedSpoilNoOperand) {
  for (const Tried tried : {Tried::kOverOperands, Tried::kInFront, Tried::kNoWorkspace, Tried::kPastOperands}) {
    SCOPED_TRACE(static_cast<int>(tried));
    runtime::KernelTable table;
    const auto make = [&](std::string name, const cuda::ConvDesc& desc,
                          cuda::Context* context) -> absl::StatusOr<std::unique_ptr<cuda::Conv>> {
      AMPD_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Conv> right, cuda::MakeDirectConv(std::move(name), desc, context));
      if (tried == Tried::kNoWorkspace && right->workspace_bytes() > 0) return right;
      return std::unique_ptr<cuda::Conv>(std::make_unique<TryingConv>(std::move(right), desc, context, tried));
    };
    cuda::RegisterConvolutions(&table, context_, make);
    for (const KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
      const auto results = RunKernel(table, c.desc, c.inputs, c.step, {}, backend_->memory()), plain = Run(c);
      ASSERT_TRUE(results.ok() && plain.ok()) << Describe(c.desc) << ": " << results.status();
      EXPECT_TRUE(SameBits((*results)[0], (*plain)[0])) << Describe(c.desc);
    }
  }
}

std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, DirectConvRow, ::testing::ValuesIn(Rows()), RowName);
INSTANTIATE_TEST_SUITE_P(Rows, WidenedConvRow, ::testing::ValuesIn(RowsOf8Bits()), RowName);

// A library that fails at a convolution is no reason for a job to fail; a device that did is, and memory that is short.
TEST(DirectConv, StandsInForALibraryThatFails) {
  cuda::Context context{cuda::DeviceProperties()};
  const cuda::ConvDesc desc{.image = {1, 4, 4, 2}, .filter = {3, 1, 1, 2}, .output = {1, 4, 4, 3}};
  const auto made = [&](const std::string& name, const absl::Status& status) {
    return cuda::MakeConvOrOwn(name, desc, &context,
                               [&](std::string, const cuda::ConvDesc&,
                                   cuda::Context*) -> absl::StatusOr<std::unique_ptr<cuda::Conv>> { return status; });
  };
  for (const absl::Status& status : {absl::UnavailableError("gone"), absl::ResourceExhaustedError("none")}) {
    EXPECT_EQ(made("a", status).status(), status);
  }
  const auto own = made("a", absl::UnimplementedError("no plan"));
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->algorithm(), "direct");
  EXPECT_TRUE(cuda::AttentionNotes(&context).empty());
  for (const std::string name : {"b", "c"}) {
    const auto instead = made(name, absl::InternalError("an engine broke"));
    ASSERT_TRUE(instead.ok()) << instead.status();
    EXPECT_EQ((*instead)->algorithm(), "direct");
  }
  ASSERT_TRUE(made("d", absl::InvalidArgumentError("a bad parameter")).ok());
  const std::string own_kernel = "a convolution runs on the backend's own kernel, since cuDNN failed ";
  EXPECT_EQ(cuda::AttentionNotes(&context), (std::vector<std::string>{own_kernel + "(a bad parameter): d",
                                                                      own_kernel + "(an engine broke): b and 1 more"}));
}

TEST(DirectConv, RefusesWhatItCannotDo) {
  cuda::Context context{cuda::DeviceProperties()};
  cuda::ConvDesc desc{.image = {1, 4, 4, 2}, .filter = {3, 1, 1, 2}, .output = {1, 4, 4, 3}};
  ASSERT_TRUE(cuda::MakeDirectConv("a", desc, &context).ok());
  cuda::ConvDesc fused = desc;
  fused.fusion = cuda::ConvFusion::kBias;
  EXPECT_EQ(cuda::MakeDirectConv("a", fused, &context).status().code(), absl::StatusCode::kInvalidArgument);
  desc.image[1] = int64_t{1} << 31;
  EXPECT_EQ(cuda::MakeDirectConv("a", desc, &context).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd::testing
