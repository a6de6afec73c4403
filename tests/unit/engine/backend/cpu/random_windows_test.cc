// Convolutions and pools on random windows, among them ones that reach far past the image.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/types/optional.h"
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

// Wider ones than RandomConvolution draws: images of up to a hundred pixels, strides beyond the filter, much padding.
// nullopt where the filter fits nowhere or the reference would take long.
absl::optional<Convolution> WideConvolution(Random* random) {
  const auto between = [&](int64_t low, int64_t high) { return low + random->Below(high - low + 1); };
  const int64_t channels = between(1, random->Below(2) == 0 ? 150 : 20);
  const int64_t filters = between(1, random->Below(2) == 0 ? 150 : 20);
  std::vector<int64_t> strides, dilations, kernel, image, output, pads(4, 0);
  for (int axis = 0; axis < 2; ++axis) {
    kernel.push_back(between(1, random->Below(3) == 0 ? 11 : 4));
    strides.push_back(between(1, 3));
    dilations.push_back(random->Below(3) == 0 ? between(1, 3) : 1);
    const int64_t span = (kernel[axis] - 1) * dilations[axis] + 1;
    const int64_t most = random->Below(4) == 0 ? 2 * span : span;
    pads[axis] = random->Below(most);
    pads[axis + 2] = random->Below(most);
    const int64_t places = between(1, random->Below(3) == 0 ? 40 : 8);
    const int64_t padded = (places - 1) * strides[axis] + span + random->Below(strides[axis]);
    image.push_back(std::max<int64_t>(padded - pads[axis] - pads[axis + 2], 1));
    const int64_t left = image[axis] + pads[axis] + pads[axis + 2] - span;
    if (left < 0) return absl::nullopt;
    output.push_back(left / strides[axis] + 1);
  }
  const int64_t images = between(1, random->Below(3) == 0 ? 40 : 4);
  const double products = static_cast<double>(images * output[0] * output[1]) *
                          static_cast<double>(kernel[0] * kernel[1]) * static_cast<double>(channels * filters);
  if (products > 3e6) return absl::nullopt;
  return Convolution{{images, image[0], image[1], channels},
                     {filters, kernel[0], kernel[1], channels},
                     {images, output[0], output[1], filters},
                     {{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", int64_t{1}}}};
}

TEST_P(RandomWindows, WideConvolutionsAgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(43);
  for (int i = 0; i < 300;) {
    const absl::optional<Convolution> c = WideConvolution(&random);
    if (!c) continue;
    ++i;
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      ExpectReference(backend->kernels(), op, *c, GetParam(), &random);
    }
  }
}

// oneDNN 2.6's kernels read past the image, or give another gradient altogether.
TEST_P(RandomWindows, WindowsThatOneDnnGetsWrongAgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(47);
  using Ints = std::vector<int64_t>;
  const auto attributes = [](const Ints& strides, const Ints& pads, const Ints& dilations) {
    return ir::Attributes{{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", int64_t{1}}};
  };
  const Convolution cases[] = {
      {{7, 108, 53, 5}, {11, 1, 2, 5}, {7, 36, 18, 11}, attributes({3, 3}, {0, 0, 0, 0}, {1, 1})},
      {{1, 26, 13, 130}, {67, 1, 3, 130}, {1, 13, 7, 67}, attributes({2, 2}, {0, 2, 0, 1}, {1, 1})},
      {{4, 39, 3, 125}, {2, 4, 4, 125}, {4, 39, 2, 2}, attributes({1, 3}, {2, 2, 1, 3}, {1, 1})},
      {{5, 4, 68, 5}, {5, 2, 9, 5}, {5, 4, 37, 5}, attributes({1, 2}, {0, 16, 1, 14}, {1, 3})},
      {{3, 14, 10, 32}, {16, 8, 3, 32}, {3, 7, 7, 16}, attributes({3, 2}, {3, 4, 9, 2}, {1, 1})},
      {{3, 12, 19, 15}, {19, 3, 2, 15}, {3, 7, 19, 19}, attributes({2, 1}, {0, 0, 3, 1}, {1, 1})},
      {{2, 3, 8, 34}, {32, 1, 1, 34}, {2, 3, 10, 32}, attributes({2, 1}, {0, 2, 3, 0}, {1, 1})},
      {{2, 30, 78, 17}, {7, 5, 7, 17}, {2, 10, 29, 7}, attributes({3, 3}, {0, 15, 4, 10}, {1, 3})},
  };
  for (const Convolution& c : cases) {
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      ExpectReference(backend->kernels(), op, c, GetParam(), &random);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RandomWindows, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace ampd::testing
