// The backend's own convolution, which the rows of the kernel table use only where the library has no plan.
#include "engine/backend/cuda/conv_direct.h"

#include <gtest/gtest.h>

#include "engine/backend/cuda/conv2d.h"
#include "engine/backend/cuda/cuda_backend_impl.h"
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

class DirectConvRow : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open("");
    ASSERT_TRUE(context.ok()) << context.status();
    cuda::Context* const raw = context->get();
    backend_ = std::make_unique<cuda::CudaBackend>(*std::move(context));
    cuda::RegisterConvolutions(&table_, raw, cuda::MakeDirectConv);
  }
  absl::StatusOr<std::vector<Tensor>> Run(const KernelCase& c) {
    return RunKernel(table_, c.desc, c.inputs, c.step, {}, backend_->memory());
  }

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

std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, DirectConvRow, ::testing::ValuesIn(Rows()), RowName);

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
