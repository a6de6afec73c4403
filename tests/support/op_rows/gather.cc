#include <cmath>
#include <limits>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

size_t AxisOf(const NodeDesc& desc, size_t rank) {
  const int64_t axis = desc.attributes.Int("axis");
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// The element of `data` behind element `i` of the output [data before the axis, indices, data behind it]; -1: none.
int64_t Source(const NodeDesc& desc, const Shape& data, const RefTensor& indices, const Shape& output, int64_t i) {
  const size_t axis = AxisOf(desc, data.size()), picks = indices.shape.size();
  const Shape at = IndexOf(output, i);
  const Shape pick(at.begin() + axis, at.begin() + axis + picks);
  double index = indices.data[ElementAt(indices.shape, pick)];
  if (index < 0) index += static_cast<double>(data[axis]);
  if (index < 0 || index >= static_cast<double>(data[axis])) return -1;
  Shape from(at.begin(), at.begin() + axis);
  from.push_back(static_cast<int64_t>(index));
  from.insert(from.end(), at.begin() + axis + picks, at.end());
  return ElementAt(data, from);
}

double Missing(DType dtype) { return IsFloat(dtype) ? std::numeric_limits<double>::quiet_NaN() : 0; }

RefTensors Gather(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t from = Source(desc, in[0].shape, in[1], y.shape, i);
    y.data[i] = from < 0 ? Missing(desc.outputs[0].dtype) : in[0].data[from];
  }
  return {y};
}

// Sums, or with `magnitudes` what bounds their error.
RefTensor Scatter(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const int64_t to = Source(desc, dx.shape, in[1], in[0].shape, i);
    if (to >= 0) dx.data[to] += magnitudes ? std::fabs(in[0].data[i]) : in[0].data[i];
  }
  return dx;
}

RefTensors GatherGrad(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  return {Scatter(desc, in, false)};
}

RefTensors GatherGradError(const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
  RefTensor bound = Scatter(desc, in, true);
  for (double& v : bound.data) v *= Gamma(static_cast<double>(in[1].size()));
  return {bound};
}

// Of either sign, and one too far on either side.
RefTensor Indices(const ir::TensorType& type, int64_t extent, Random* random) {
  return SmallIntegers(type, random, -extent - 1, extent);
}

struct Case {
  Shape data;
  Shape indices;
  int64_t axis;
};

}  // namespace

std::vector<OpRow> GatherRows() {
  OpRow forward{.op = OpKind::kGather, .reference = Gather};
  OpRow grad{.op = OpKind::kGatherGrad, .reference = GatherGrad, .error = GatherGradError};
  for (DType t : kEveryType) forward.signatures.push_back({{t, DType::kI32}, {t}});
  for (DType t : kFloatTypes) grad.signatures.push_back({{t, DType::kI32}, {t}});
  for (const Case& c : {Case{{5}, {}, 0},
                        {{5}, {7}, 0},
                        {{5, 3}, {2, 4}, 0},
                        {{5, 3}, {2, 4}, 1},
                        {{5, 3}, {4}, -1},
                        {{2, 3, 5}, {6}, 1},
                        {{1, 1}, {1}, 0},
                        {{40, 1100}, {70}, 0},
                        {{3, 7, 1500}, {20}, 1}}) {
    forward.cases.push_back({{{"axis", c.axis}}, {c.data, c.indices}});
    const size_t axis = static_cast<size_t>(c.axis < 0 ? c.axis + static_cast<int64_t>(c.data.size()) : c.axis);
    Shape output(c.data.begin(), c.data.begin() + axis);
    output.insert(output.end(), c.indices.begin(), c.indices.end());
    output.insert(output.end(), c.data.begin() + axis + 1, c.data.end());
    grad.cases.push_back({{{"axis", c.axis}, {"shape", Ints(c.data.begin(), c.data.end())}}, {output, c.indices}});
  }
  forward.input = [](const NodeDesc& desc, int i, Random* random) {
    if (i == 0) return SmallIntegers(desc.inputs[0], random);
    const Shape& data = desc.inputs[0].shape;
    // Finite differences need numbers: the gradient check's data are f32 of few elements.
    const bool inside = NumElements(data) == 12;
    const int64_t extent = data[AxisOf(desc, data.size())];
    return inside ? SmallIntegers(desc.inputs[1], random, -extent, extent - 1)
                  : Indices(desc.inputs[1], extent, random);
  };
  grad.input = [](const NodeDesc& desc, int i, Random* random) {
    const Shape& data = desc.outputs[0].shape;
    return i == 0 ? RefTensor{} : Indices(desc.inputs[1], data[AxisOf(desc, data.size())], random);
  };
  forward.gradient_cases = {{{{"axis", int64_t{0}}}, {{4, 3}, {2, 3}}}, {{{"axis", int64_t{1}}}, {{4, 3}, {5}}}};
  return {forward, grad};
}

}  // namespace ampd::testing
