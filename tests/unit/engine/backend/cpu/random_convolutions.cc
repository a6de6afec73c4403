#include "tests/unit/engine/backend/cpu/random_convolutions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/ops/op_def.h"
#include "tests/unit/engine/backend/kernel_cases.h"

namespace ampd::testing {

using ir::OpKind;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

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

NodeDesc ConvolutionNode(OpKind op, const Convolution& c, DType dtype) {
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

std::string DescribeWindows(const NodeDesc& desc) {
  const auto list = [&](const char* name) { return ShapeString(desc.attributes.Ints(name)); };
  return absl::StrCat(Describe(desc), " strides ", list("strides"), " pads ", list("pads"), " dilations ",
                      list("dilations"), " groups ", desc.attributes.Int("groups"));
}

}  // namespace ampd::testing
