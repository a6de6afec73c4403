#include <algorithm>
#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;

bool IsLog(const NodeDesc& desc) { return desc.op == OpKind::kLogSoftmax || desc.op == OpKind::kLogSoftmaxGrad; }

// visit(indices along the axis) for every line of a tensor.
template <typename Visit>
void ForEachLine(const NodeDesc& desc, const Shape& shape, const Visit& visit) {
  const auto axis = static_cast<size_t>(desc.attributes.Int("axis"));
  int64_t inner = 1;
  for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  for (int64_t first = 0; first < NumElements(shape); ++first) {
    if (first / inner % shape[axis] != 0) continue;
    std::vector<int64_t> line;
    for (int64_t k = 0; k < shape[axis]; ++k) line.push_back(first + k * inner);
    visit(line);
  }
}

RefTensors Forward(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(in[0].shape);
  ForEachLine(desc, y.shape, [&](const std::vector<int64_t>& line) {
    double largest = in[0].data[line[0]], sum = 0;
    for (int64_t i : line) largest = std::max(largest, in[0].data[i]);
    for (int64_t i : line) sum += std::exp(in[0].data[i] - largest);
    for (int64_t i : line) {
      const double centred = in[0].data[i] - largest;
      y.data[i] = IsLog(desc) ? centred - std::log(sum) : std::exp(centred) / sum;
    }
  });
  return {y};
}

// Rounding x - max costs its roundoff as a relative error of the exponential.
RefTensors ForwardError(const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
  RefTensor error = Filled(in[0].shape);
  ForEachLine(desc, error.shape, [&](const std::vector<int64_t>& line) {
    double low = in[0].data[line[0]], high = low;
    for (int64_t i : line) low = std::min(low, in[0].data[i]), high = std::max(high, in[0].data[i]);
    const double relative = Gamma(8) + 2 * kF32Roundoff * (high - low);
    for (int64_t i : line) error.data[i] = relative * (IsLog(desc) ? 1 : out[0].data[i]) + 0x1p-148;
  });
  return {error};
}

RefTensors GradSums(const NodeDesc& desc, const RefTensors& in, bool magnitudes) {
  RefTensor dx = Filled(in[0].shape);
  const auto f = [&](double v) { return magnitudes ? std::fabs(v) : v; };
  ForEachLine(desc, dx.shape, [&](const std::vector<int64_t>& line) {
    double sum = 0;
    for (int64_t i : line) sum += f(in[0].data[i] * (IsLog(desc) ? 1 : in[1].data[i]));
    for (int64_t i : line) {
      const double y = in[1].data[i], g = f(in[0].data[i]), rest = magnitudes ? sum : -sum;
      dx.data[i] = IsLog(desc) ? g + std::exp(y) * rest : f(y) * (g + rest);
    }
  });
  return {dx};
}

RefTensors Grad(const NodeDesc& desc, const RefTensors& in, const StepState&) { return GradSums(desc, in, false); }

RefTensors GradError(const NodeDesc& desc, const RefTensors& in, const RefTensors&) {
  RefTensors error = GradSums(desc, in, true);
  for (double& v : error[0].data) v *= Gamma(8);
  return error;
}

void AdjustGradInputs(const NodeDesc& desc, RefTensors* inputs) {
  (*inputs)[1] = Forward(desc, {(*inputs)[1]}, {})[0];
  for (double& v : (*inputs)[1].data) v = RoundToDType(v, DType::kF32);
}

std::vector<OpShapes> Cases(size_t inputs, int64_t largest) {
  std::vector<OpShapes> list;
  for (const auto& [shape, axis] : std::vector<std::pair<Shape, int64_t>>{{{1}, 0},
                                                                          {{7, 10}, 1},
                                                                          {{3, 1000}, 1},
                                                                          {{5, 4, 3}, 0},
                                                                          {{2, 5, 70}, 1},
                                                                          {{33, 4, 130}, 1},
                                                                          {{50, 1, 65}, 2}}) {
    if (NumElements(shape) <= largest) list.push_back({{{"axis", axis}}, std::vector<Shape>(inputs, shape)});
  }
  return list;
}

}  // namespace

std::vector<OpRow> SoftmaxRows() {
  constexpr DType f = DType::kF32;
  std::vector<OpRow> rows;
  for (OpKind op : {OpKind::kSoftmax, OpKind::kLogSoftmax}) {
    rows.push_back({.op = op,
                    .signatures = {{{f}, {f}}},
                    .cases = Cases(1, 1 << 20),
                    .gradient_cases = Cases(1, 100),
                    .reference = Forward,
                    .error = ForwardError});
  }
  for (OpKind op : {OpKind::kSoftmaxGrad, OpKind::kLogSoftmaxGrad}) {
    rows.push_back({.op = op,
                    .signatures = {{{f, f}, {f}}},
                    .cases = Cases(2, 1 << 20),
                    .reference = Grad,
                    .error = GradError,
                    .adjust_inputs = AdjustGradInputs});
  }
  return rows;
}

}  // namespace ampd::testing
