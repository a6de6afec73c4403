#include <algorithm>
#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kF = DType::kF32;

double Largest(bool e4m3) { return e4m3 ? 448 : 57344; }

RefTensors Quantize(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  const double limit = Largest(desc.outputs[0].dtype == DType::kF8E4M3);
  RefTensor y = in[0];
  RefTensor amax = Filled({});
  for (double& v : y.data) {
    amax.data[0] = std::max(amax.data[0], std::fabs(v));
    v = std::clamp(v * in[1].data[0], -limit, limit);
  }
  if (desc.outputs.size() == 1) return {y};
  if (desc.outputs.size() == 2) return {y, amax};
  RefTensor turned = y;
  turned.shape = desc.outputs[2].shape;
  const int64_t columns = turned.shape[0], rows = turned.shape[1];
  for (int64_t i = 0; i < rows * columns; ++i) turned.data[i % columns * rows + i / columns] = y.data[i];
  return {y, amax, turned};
}

RefTensors Dequantize(const NodeDesc&, const RefTensors& in, const StepState&) {
  RefTensor y = in[0];
  for (double& v : y.data) v /= in[1].data[0] * in[2].data[0];
  return {y};
}

RefTensors AmaxUpdate(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  double amax = 0, largest = 0;
  for (double v : in[0].data) amax = std::max(amax, std::fabs(v));
  RefTensor history = in[1], count = in[2], scale = in[3];
  history.data[static_cast<int64_t>(count.data[0]) % history.size()] = amax;
  count.data[0] += 1;
  for (double v : history.data) largest = std::max(largest, v);
  const double margin = std::exp2(static_cast<double>(desc.attributes.Int("margin")));
  if (largest > 0) scale.data[0] = Largest(desc.attributes.String("dtype") == "e4m3fn") / largest / margin;
  return {history, count, scale};
}

// Positive, as scales are; amax_update's history too, with a count within and past its first round.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  if (i == 0) return {};
  const ir::TensorType& type = desc.inputs[i];
  if (type.dtype == DType::kI64) return Filled({}, desc.inputs[1].shape[0] == 1 ? 0 : 1029);
  return RandomTensor(random, type.shape, type.dtype, 0.01, 250);
}

std::vector<OpShapes> Cases(const std::vector<Shape>& others, const std::vector<ir::Attributes>& attributes) {
  std::vector<OpShapes> list;
  for (const ir::Attributes& a : attributes) {
    for (const Shape& s : {Shape{1}, Shape{3, 5}, Shape{2, 3, 5, 7}, Shape{1025}, Shape{50, 1500}}) {
      OpShapes shapes{a, {s}};
      shapes.inputs.insert(shapes.inputs.end(), others.begin(), others.end());
      list.push_back(std::move(shapes));
    }
  }
  return list;
}

OpRow QuantizeRow() {
  OpRow row{.op = OpKind::kQuantize, .cases = Cases({{}}, {{}}), .reference = Quantize, .error = RelativeError(1)};
  // Whole tiles of the device's kernels, and edges of them.
  for (const Shape& s : {Shape{128, 128}, Shape{3, 44, 260}, Shape{64, 4}}) row.cases.push_back({{}, {s, {}}});
  for (DType t : kFloats) {
    for (DType f8 : {DType::kF8E4M3, DType::kF8E5M2}) {
      row.signatures.push_back({{t, kF}, {f8}});
      row.signatures.push_back({{t, kF}, {f8, kF}});
      row.signatures.push_back({{t, kF}, {f8, kF, f8}});
    }
  }
  row.input = Input;
  return row;
}

OpRow DequantizeRow() {
  OpRow row{
      .op = OpKind::kDequantize, .cases = Cases({{}, {}}, {{}}), .reference = Dequantize, .error = RelativeError(4)};
  for (DType t : kFloats) row.signatures.push_back({{kF, kF, kF}, {t}});
  row.input = Input;
  return row;
}

OpRow AmaxUpdateRow() {
  const ir::Attributes e4m3{{"dtype", std::string("e4m3fn")}, {"margin", int64_t{0}}};
  const ir::Attributes e5m2{{"dtype", std::string("e5m2")}, {"margin", int64_t{3}}};
  OpRow row{.op = OpKind::kAmaxUpdate,
            .cases = Cases({{1024}, {}, {}}, {e4m3, e5m2}),
            .reference = AmaxUpdate,
            .error = RelativeError(1)};
  row.cases.push_back({e4m3, {{7}, {1}, {}, {}}});
  for (DType t : kFloats) row.signatures.push_back({{t, kF, DType::kI64, kF}, {}});
  row.input = Input;
  return row;
}

}  // namespace

std::vector<OpRow> QuantizeRows() { return {QuantizeRow(), DequantizeRow(), AmaxUpdateRow()}; }

}  // namespace ampd::testing
