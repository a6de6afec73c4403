// Convolutions and pools on random windows, among them ones that reach far past the image.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ops/op_def.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using ir::TensorType;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

constexpr int kCases = 500;

struct Convolution {
  Shape image, filter, output;
  ir::Attributes attributes;
};

// A third are pointwise. Else kernels may be larger than the image, and whole rows and columns of them may see nothing
// but padding.
Convolution RandomConvolution(Random* random) {
  const auto between = [&](int64_t low, int64_t high) { return low + random->Below(high - low + 1); };
  const int64_t groups = random->Below(3) == 0 ? between(1, 3) : 1;
  const int64_t channels = groups * between(1, random->Below(4) == 0 ? 40 : random->Below(3) == 0 ? 1 : 5);
  const int64_t filters = groups * between(1, random->Below(4) == 0 ? 40 : 9);
  Convolution c{.image = {between(1, 4)}, .filter = {filters}, .output = {}};
  Ints strides, dilations, pads(4, 0);
  const bool pointwise = random->Below(3) == 0;
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t extent = between(1, pointwise ? 16 : random->Below(3) == 0 ? 1 : 9);
    const int64_t kernel = pointwise ? 1 : between(1, 5);
    strides.push_back(between(1, 3));
    dilations.push_back(between(1, 2));
    const int64_t span = (kernel - 1) * dilations[axis] + 1;
    pads[axis] = random->Below(span);
    pads[axis + 2] = std::max(random->Below(span), span - extent - pads[axis]);
    c.image.push_back(extent);
    c.filter.push_back(kernel);
  }
  c.image.push_back(channels);
  c.filter.push_back(channels / groups);
  c.attributes = {{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", groups}};
  c.output = {c.image[0]};
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t span = (c.filter[axis + 1] - 1) * dilations[axis] + 1;
    c.output.push_back((c.image[axis + 1] + pads[axis] + pads[axis + 2] - span) / strides[axis] + 1);
  }
  c.output.push_back(filters);
  return c;
}

NodeDesc MakeDesc(OpKind op, const Convolution& c, DType dtype) {
  NodeDesc desc{.op = op, .name = "node", .attributes = c.attributes, .threads = 2};
  const Ints image(c.image.begin(), c.image.end()), filter(c.filter.begin(), c.filter.end());
  if (op == OpKind::kConv2dGradInput) desc.attributes.Set("input_shape", image);
  if (op == OpKind::kConv2dGradFilter) desc.attributes.Set("filter_shape", filter);
  const Shape& first = op == OpKind::kConv2d ? c.image : c.output;
  const Shape& second = op == OpKind::kConv2dGradFilter ? c.image : c.filter;
  desc.inputs = {{dtype, first}, {dtype, second}};
  const auto types = ops::InferTypes(op, {.name = desc.name, .attributes = desc.attributes, .inputs = desc.inputs});
  EXPECT_TRUE(types.ok()) << types.status();
  if (types.ok()) desc.outputs = *types;
  return desc;
}

class RandomWindows : public ::testing::TestWithParam<DType> {};

TEST_P(RandomWindows, ConvolutionsAgreeWithTheReference) {
  const auto backend = MakeCpuBackend(2);
  Random random(17);
  for (int i = 0; i < kCases; ++i) {
    const Convolution c = RandomConvolution(&random);
    for (OpKind op : {OpKind::kConv2d, OpKind::kConv2dGradInput, OpKind::kConv2dGradFilter}) {
      const NodeDesc desc = MakeDesc(op, c, GetParam());
      const auto list = [&](const char* name) { return ShapeString(c.attributes.Ints(name)); };
      SCOPED_TRACE(absl::StrCat(testing::Describe(desc), " strides ", list("strides"), " pads ", list("pads"),
                                " dilations ", list("dilations"), " groups ", c.attributes.Int("groups")));
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
