#include "tests/support/op_rows/helpers.h"

#include <cmath>
#include <utility>

namespace ampd::testing {

using runtime::NodeDesc;

std::vector<runtime::KernelTable::Signature> SameSignatures(const std::vector<DType>& dtypes, size_t count) {
  std::vector<runtime::KernelTable::Signature> list;
  for (DType t : dtypes) list.push_back({std::vector<DType>(count, t), {t}});
  return list;
}

std::vector<OpShapes> SameShapes(size_t count, const ir::Attributes& attributes) {
  std::vector<OpShapes> list;
  for (const Shape& s : {Shape{}, Shape{1}, Shape{3, 5}, Shape{2, 3, 5, 7}, Shape{1025}, Shape{50, 1500}}) {
    list.push_back({attributes, std::vector<Shape>(count, s)});
  }
  return list;
}

std::vector<OpShapes> BroadcastShapes(size_t count, const ir::Attributes& attributes) {
  const std::vector<std::pair<Shape, Shape>> pairs = {{{3, 5}, {5}},         {{}, {3, 5}},
                                                      {{2, 1, 4}, {3, 1}},   {{1}, {4, 1, 3}},
                                                      {{1200}, {7, 1200}},   {{2, 3, 1, 5}, {2, 1, 4, 5}},
                                                      {{50, 1500}, {50, 1}}, {{9, 700, 11}, {700, 1}},
                                                      {{1, 1}, {1, 1}}};
  std::vector<OpShapes> list;
  for (const auto& [a, b] : pairs) {
    std::vector<Shape> inputs = {a, b};
    if (count == 3) inputs.push_back({b.empty() ? 1 : b.back()});
    list.push_back({attributes, inputs});
  }
  return list;
}

void Append(std::vector<OpShapes>* cases, std::vector<OpShapes> more) {
  for (OpShapes& shapes : more) cases->push_back(std::move(shapes));
}

Shape IndexOf(const Shape& shape, int64_t i) {
  Shape index(shape.size(), 0);
  for (size_t d = shape.size(); d-- > 0; i /= shape[d]) index[d] = i % shape[d];
  return index;
}

int64_t ElementAt(const Shape& shape, const Shape& index) {
  int64_t i = 0;
  for (size_t d = 0; d < shape.size(); ++d) i = i * shape[d] + index[d];
  return i;
}

int64_t BroadcastElement(const Shape& from, const Shape& to, int64_t i) {
  if (from == to) return i;
  if (from.empty()) return 0;
  const Shape at = IndexOf(to, i);
  Shape index(from.size(), 0);
  for (size_t d = 0; d < from.size(); ++d) index[d] = from[d] == 1 ? 0 : at[to.size() - from.size() + d];
  return ElementAt(from, index);
}

RefTensor SmallIntegers(const ir::TensorType& type, Random* random, int64_t low, int64_t high) {
  if (IsFloat(type.dtype) || type.dtype == DType::kBool) return {};
  if (type.dtype == DType::kU8 && low < 0) low = 0;
  RefTensor integers = Filled(type.shape);
  for (double& v : integers.data) v = static_cast<double>(low + random->Below(high - low + 1));
  return integers;
}

double Wrapped(double value, DType dtype) {
  if (dtype == DType::kU8) return value - 256 * std::floor(value / 256);
  if (dtype != DType::kI32) return value;
  return value - 0x1p32 * std::floor(value / 0x1p32 + 0.5);
}

ElementError Relative(double roundings) {
  return [roundings](const NodeDesc&, const double*, double out) { return std::fabs(out) * Gamma(roundings); };
}

OpRow ElementwiseRow(ir::OpKind op, ElementFunction f, ElementError error) {
  const auto operands = [](const NodeDesc& desc, const RefTensors& in, int64_t i) {
    std::vector<double> values;
    for (const RefTensor& t : in) values.push_back(t.data[BroadcastElement(t.shape, desc.outputs[0].shape, i)]);
    return values;
  };
  OpRow row{.op = op};
  row.reference = [f, operands](const NodeDesc& desc, const RefTensors& in, const runtime::StepState&) {
    RefTensor y = Filled(desc.outputs[0].shape);
    for (int64_t i = 0; i < y.size(); ++i) {
      y.data[i] = Wrapped(f(desc, operands(desc, in, i).data()), desc.outputs[0].dtype);
    }
    return RefTensors{y};
  };
  row.input = [](const NodeDesc& desc, int i, Random* random) { return SmallIntegers(desc.inputs[i], random); };
  if (!error) return row;
  row.error = [error, operands](const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
    RefTensor bound = Filled(out[0].shape);
    if (!IsFloat(desc.outputs[0].dtype)) return RefTensors{bound};
    for (int64_t i = 0; i < bound.size(); ++i) {
      bound.data[i] = error(desc, operands(desc, in, i).data(), out[0].data[i]);
    }
    return RefTensors{bound};
  };
  return row;
}

}  // namespace ampd::testing
