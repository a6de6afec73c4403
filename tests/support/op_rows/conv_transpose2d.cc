#include <cmath>

#include "tests/support/op_rows/rows.h"
#include "tests/support/reference_internal.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

// Every product x[n, p, q, k] w[k, r, s, c] is added to pixel (p, q) * stride + (r, s) * dilation - pad.
RefTensors Reference(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  return {Conv2dGradInputReference(desc, in)};
}

RefTensors Error(const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
  RefTensors magnitudes = in;
  for (RefTensor& t : magnitudes) {
    for (double& v : t.data) v = std::fabs(v);
  }
  RefTensors error = {Conv2dGradInputReference(desc, magnitudes)};
  const Shape& w = in[1].shape;
  for (double& v : error[0].data) v *= Gamma(static_cast<double>(w[0] * w[1] * w[2] + 2));
  return error;
}

Attributes Window(Ints strides, Ints pads, Ints dilations, Ints output_padding, int64_t groups) {
  Attributes a{{"strides", strides}, {"pads", pads}, {"groups", groups}};
  if (!dilations.empty()) a.Set("dilations", dilations);
  if (!output_padding.empty()) a.Set("output_padding", output_padding);
  return a;
}

std::vector<OpShapes> Cases() {
  return {{Window({1, 1}, {0, 0, 0, 0}, {}, {}, 1), {{2, 3, 4, 5}, {5, 3, 2, 7}}},
          {Window({2, 3}, {1, 0, 1, 2}, {}, {1, 2}, 1), {{2, 4, 3, 3}, {3, 3, 4, 5}}},
          {Window({2, 2}, {1, 1, 1, 1}, {}, {}, 1), {{2, 5, 5, 32}, {32, 4, 4, 16}}},
          {Window({1, 2}, {0, 2, 1, 1}, {2, 3}, {0, 1}, 2), {{1, 4, 5, 6}, {6, 3, 2, 4}}},
          {Window({2, 1}, {0, 0, 0, 0}, {}, {}, 4), {{3, 2, 3, 4}, {4, 2, 2, 1}}},
          {Window({1, 1}, {0, 0, 0, 0}, {}, {}, 1), {{1, 1, 1, 1}, {1, 1, 1, 1}}}};
}

}  // namespace

std::vector<OpRow> ConvTranspose2dRows() {
  OpRow row{.op = OpKind::kConvTranspose2d, .cases = Cases(), .reference = Reference, .error = Error};
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) row.signatures.push_back({{t, t}, {t}});
  row.gradient_cases = {{Window({1, 1}, {0, 0, 0, 0}, {}, {}, 1), {{2, 2, 3, 2}, {2, 2, 3, 3}}},
                        {Window({2, 3}, {1, 0, 1, 2}, {2, 1}, {1, 2}, 2), {{1, 3, 2, 4}, {4, 2, 3, 1}}}};
  return {row};
}

}  // namespace ampd::testing
