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

// What `op` computes of `convolution`, against the reference.
void ExpectReference(const runtime::KernelTable& table, OpKind op, const Convolution& convolution, DType dtype,
                     Random* random) {
  const NodeDesc desc = ConvolutionNode(op, convolution, dtype);
  SCOPED_TRACE(DescribeWindows(desc));
  std::vector<RefTensor> inputs;
  for (const TensorType& t : desc.inputs) inputs.push_back(RandomTensor(random, t.shape, t.dtype));
  const auto outputs = RunKernel(table, desc, inputs, {});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
  const std::vector<RefTensor> bound = ErrorBound(desc, inputs, expected, {});
  EXPECT_EQ(Compare(FromTensor((*outputs)[0].view()), expected[0], bound[0], desc.outputs[0].dtype), "");
}

class RandomWindows : public ::testing::TestWithParam<DType> {};

TEST_P(RandomWindows, ConvolutionsAgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(17);
  for (int i = 0; i < kCases; ++i) {
    const Convolution c = RandomConvolution(&random);
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      ExpectReference(backend->kernels(), op, c, GetParam(), &random);
    }
  }
}

// oneDNN has kernels by counts of channels and filters, and by what fills none of their registers or tiles.
TEST_P(RandomWindows, AnyCountOfChannelsAgreesWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(19);
  for (int i = 0; i < 150; ++i) {
    const int64_t channels = 1 + random.Below(100), filters = 1 + random.Below(70);
    const int64_t kernel = 1 + random.Below(3), stride = 1 + random.Below(2), dilation = 1 + random.Below(3);
    const int64_t span = (kernel - 1) * dilation + 1, output = 1 + random.Below(4),
                  extent = span + (output - 1) * stride;
    const std::vector<int64_t> strides(2, stride), dilations(2, dilation), pads(4, 0);
    const Convolution c = {{2, extent, extent, channels},
                           {filters, kernel, kernel, channels},
                           {2, output, output, filters},
                           {{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", int64_t{1}}}};
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      ExpectReference(backend->kernels(), op, c, GetParam(), &random);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RandomWindows, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
