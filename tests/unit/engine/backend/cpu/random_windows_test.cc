// Convolutions and pools on random windows, among them ones that reach far past the image.
#include <gtest/gtest.h>

#include "engine/backend/cpu/cpu_backend.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/cpu/random_convolutions.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using ir::TensorType;
using runtime::NodeDesc;

constexpr int kCases = 500;

class RandomWindows : public ::testing::TestWithParam<DType> {};

TEST_P(RandomWindows, ConvolutionsAgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(17);
  for (int i = 0; i < kCases; ++i) {
    const Convolution c = RandomConvolution(&random);
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      const NodeDesc desc = ConvolutionNode(op, c, GetParam());
      SCOPED_TRACE(DescribeWindows(desc));
      std::vector<RefTensor> inputs;
      for (const TensorType& t : desc.inputs) inputs.push_back(RandomTensor(&random, t.shape, t.dtype));
      const auto outputs = RunKernel(backend->kernels(), desc, inputs, {});
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
      const std::vector<RefTensor> bound = ErrorBound(desc, inputs, expected, {});
      EXPECT_EQ(Compare(FromTensor((*outputs)[0].view()), expected[0], bound[0], desc.outputs[0].dtype), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RandomWindows, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
