// The backend's own convolution, which the rows of the kernel table use only where the library has no plan.
#include "engine/backend/cuda/conv_direct.h"

#include <gtest/gtest.h>

#include "engine/backend/cuda/conv2d.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
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
    Spoil(const_cast<void*>(args.a), Bytes(desc_.kind == cuda::ConvKind::kForward ? desc_.image : desc_.output));
    Spoil(const_cast<void*>(args.b), Bytes(is_filter ? desc_.image : desc_.filter));
    AMPD_RETURN_IF_ERROR(args.renew());
    return right_->Run(args);
  }

 private:
  static constexpr int64_t kOwn = 256;

  static int64_t Bytes(const std::array<int64_t, 4>& e) { return e[0] * e[1] * e[2] * e[3] * SizeOf(DType::kF32); }
  void Spoil(void* p, int64_t bytes) {
    EXPECT_EQ(cudaMemsetAsync(p, 0xff, static_cast<size_t>(bytes), context_->stream()), cudaSuccess);
  }

  const std::unique_ptr<Conv> right_;
  const cuda::ConvDesc desc_;
  cuda::Context* const context_;
  const Tried tried_;
};

// Copies of 8-bit operands lie beside the workspace in which a library tries its algorithms.
class WidenedConvRow : public DirectConvRow {};

TEST_P(WidenedConvRow, AlgorithmsThatAreTriedSpoilNoOperand) {
  for (const Tried tried : {Tried::kOverOperands, Tried::kInFront, Tried::kNoWorkspace}) {
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
