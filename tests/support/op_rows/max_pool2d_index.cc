#include <cmath>

#include "tests/support/op_rows/rows.h"
#include "tests/support/reference.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

// By search, pixel by pixel: the first of the window, row by row, that holds the maximum.
RefTensors Reference(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const Shape &x = in[0].shape, &y = in[1].shape;
  const Ints size = desc.attributes.Ints("size"), strides = desc.attributes.Ints("strides"),
             pads = desc.attributes.Ints("pads");
  Ints dilations = desc.attributes.Ints("dilations");
  if (dilations.empty()) dilations = {1, 1};
  const auto sees = [&](int axis, int64_t out, int64_t pixel) {
    const int64_t from_start = pixel - (out * strides[axis] - pads[axis]);
    return from_start >= 0 && from_start % dilations[axis] == 0 && from_start / dilations[axis] < size[axis];
  };
  RefTensor index = Filled(y, -1);
  for (int64_t i = 0; i < index.size(); ++i) {
    const int64_t c = i % y[3], q = i / y[3] % y[2], p = i / y[3] / y[2] % y[1], n = i / y[3] / y[2] / y[1];
    for (int64_t pixel = x[1] * x[2] - 1; pixel >= 0; --pixel) {
      if (!sees(0, p, pixel / x[2]) || !sees(1, q, pixel % x[2])) continue;
      if (in[0].data[(n * x[1] * x[2] + pixel) * x[3] + c] == in[1].data[i]) index.data[i] = static_cast<double>(pixel);
    }
  }
  return {index};
}

// Maxima of the drawn image.
void AdjustInputs(const NodeDesc& desc, RefTensors* inputs) {
  NodeDesc forward = desc;
  forward.op = OpKind::kMaxPool2d;
  forward.outputs = {desc.inputs[1]};
  (*inputs)[1] = ReferenceOp(forward, {(*inputs)[0]}, {})[0];
}

RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  RefTensor drawn;
  if (desc.inputs[i].dtype != DType::kU8) return drawn;
  drawn = Filled(desc.inputs[i].shape);
  for (double& v : drawn.data) v = static_cast<double>(random->Below(6));
  return drawn;
}

ir::Attributes Window(Ints size, Ints strides, Ints pads, Ints dilations) {
  ir::Attributes a{{"size", size}, {"strides", strides}, {"pads", pads}};
  if (!dilations.empty()) a.Set("dilations", dilations);
  return a;
}

}  // namespace

std::vector<OpRow> MaxPool2dIndexRows() {
  OpRow row{.op = OpKind::kMaxPool2dIndex,
            .cases = {{Window({2, 2}, {2, 2}, {0, 0, 0, 0}, {}), {{2, 4, 6, 3}, {2, 2, 3, 3}}},
                      {Window({3, 2}, {1, 2}, {1, 0, 2, 1}, {2, 1}), {{2, 6, 5, 2}, {2, 5, 3, 2}}},
                      {Window({1, 1}, {1, 1}, {0, 0, 0, 0}, {}), {{1, 1, 1, 1}, {1, 1, 1, 1}}}},
            .reference = Reference,
            .input = Input,
            .adjust_inputs = AdjustInputs};
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16, DType::kU8})
    row.signatures.push_back({{t, t}, {DType::kI32}});
  return {row};
}

}  // namespace ampd::testing
