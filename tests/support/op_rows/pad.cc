#include <algorithm>
#include <cmath>
#include <string>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

// The element of `x` that padded element `i` reads, or -1.
int64_t Source(const NodeDesc& desc, const Shape& x, const Shape& padded, int64_t i) {
  const Ints pads = desc.attributes.Ints("pads");
  const std::string mode = desc.attributes.String("mode");
  Shape at = IndexOf(padded, i);
  for (size_t d = 0; d < x.size(); ++d) {
    int64_t from = at[d] - pads[d];
    if (mode == "edge") from = std::min(std::max(from, int64_t{0}), x[d] - 1);
    if (mode == "reflect") {
      // A triangle wave of period 2 (extent - 1).
      const int64_t period = std::max<int64_t>(2 * (x[d] - 1), 1);
      from = std::llabs(from) % period;
      from = std::min(from, period - from);
      if (x[d] == 1) from = 0;
    }
    if (from < 0 || from >= x[d]) return -1;
    at[d] = from;
  }
  return ElementAt(x, at);
}

RefTensors Pad(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const double value = RoundToDType(desc.attributes.Double("value"), desc.outputs[0].dtype);
  RefTensor y = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t from = Source(desc, in[0].shape, y.shape, i);
    const bool rounds = desc.inputs[0].dtype != desc.outputs[0].dtype;
    const double x = from < 0 ? value : in[0].data[from];
    y.data[i] = from >= 0 && rounds ? RoundToDType(x, desc.outputs[0].dtype) : x;
  }
  return {y};
}

RefTensor Sums(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  RefTensor dx = Filled(desc.outputs[0].shape);
  for (int64_t i = 0; i < in[0].size(); ++i) {
    const int64_t to = Source(desc, dx.shape, in[0].shape, i);
    if (to >= 0) dx.data[to] += magnitudes ? std::fabs(in[0].data[i]) : in[0].data[i];
  }
  return dx;
}

struct Case {
  Shape x;
  Ints pads;
};

}  // namespace

std::vector<OpRow> PadRows() {
  OpRow forward{.op = OpKind::kPad, .signatures = SameSignatures(kEveryType, 1), .reference = Pad};
  for (DType half : {DType::kF16, DType::kBF16}) forward.signatures.push_back({{DType::kF32}, {half}});
  OpRow grad{.op = OpKind::kPadGrad, .signatures = SameSignatures(kFloatTypes, 1)};
  const std::vector<Case> cases = {{{}, {}},
                                   {{5}, {2, 3}},
                                   {{3, 5}, {1, 0, 2, 4}},
                                   {{1, 1}, {0, 0, 0, 0}},
                                   {{2, 3, 5, 7}, {1, 2, 0, 3, 0, 1, 4, 6}},
                                   {{30, 1100}, {3, 5, 20, 900}}};
  for (const Case& c : cases) {
    for (const char* mode : {"constant", "reflect", "edge"}) {
      const Attributes attributes{{"pads", c.pads}, {"mode", std::string(mode)}, {"value", 1.0}};
      forward.cases.push_back({attributes, {c.x}});
      if (std::string(mode) == "constant") continue;
      Shape y = c.x;
      for (size_t d = 0; d < y.size(); ++d) y[d] += c.pads[d] + c.pads[y.size() + d];
      Attributes of_grad = attributes;
      of_grad.Set("shape", Ints(c.x.begin(), c.x.end()));
      grad.cases.push_back({of_grad, {y}});
      if (NumElements(c.x) < 20) forward.gradient_cases.push_back({attributes, {c.x}});
    }
  }
  for (const Ints& pads : {Ints{-1, 2, 1, -3}, Ints{1, 1, 1, 1}}) {
    forward.cases.push_back({{{"pads", pads}}, {{3, 5}}});
    forward.gradient_cases.push_back({{{"pads", pads}, {"value", 0.5}}, {{3, 5}}});
  }
  // As a stem's channels, also where several of them move at once, and rows of no whole number of 16 bytes.
  forward.cases.push_back({{{"pads", Ints{0, 0, 0, 0, 0, 0, 0, 5}}}, {{2, 3, 9, 3}}});
  forward.cases.push_back({{{"pads", Ints{0, 0, 0, 0, 0, 0, 0, 4}}}, {{2, 3, 9, 4}}});
  forward.cases.push_back({{{"pads", Ints{1, 0, 2, 1, 0, 3, 0, 4}}}, {{2, 3, 9, 3}}});
  forward.input = [](const NodeDesc& desc, int i, Random* random) {
    // A gradient's check has no outputs yet.
    const bool rounds = !desc.outputs.empty() && desc.inputs[i].dtype != desc.outputs[0].dtype;
    if (!rounds) return SmallIntegers(desc.inputs[i], random);
    return RandomTensor(random, desc.inputs[i].shape, desc.inputs[i].dtype, -3, 3);
  };
  grad.reference = [](const NodeDesc& desc, const RefTensors& in, const StepState&) {
    return RefTensors{Sums(desc, in, false)};
  };
  grad.error = [](const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
    RefTensor bound = Sums(desc, in, true);
    for (double& v : bound.data) v *= Gamma(2);
    return RefTensors{bound};
  };
  return {forward, grad};
}

}  // namespace ampd::testing
