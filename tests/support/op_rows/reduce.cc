#include <algorithm>
#include <cmath>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;
using runtime::StepState;
using Ints = std::vector<int64_t>;

// The elements behind each output, in order.
std::vector<std::vector<double>> Groups(const NodeDesc& desc, const RefTensor& x) {
  const int64_t rank = static_cast<int64_t>(x.shape.size());
  std::vector<bool> reduced(x.shape.size(), !desc.attributes.Has("axes"));
  for (int64_t axis : desc.attributes.Ints("axes")) reduced[axis < 0 ? axis + rank : axis] = true;
  if (desc.op == OpKind::kSumTo) {
    const Shape& y = desc.outputs[0].shape;
    for (size_t d = 0; d < x.shape.size(); ++d) {
      const size_t missing = x.shape.size() - y.size();
      reduced[d] = d < missing || y[d - missing] != x.shape[d];
    }
  }
  Shape kept;
  for (size_t d = 0; d < x.shape.size(); ++d) kept.push_back(reduced[d] ? 1 : x.shape[d]);
  std::vector<std::vector<double>> groups(static_cast<size_t>(NumElements(kept)));
  for (int64_t i = 0; i < x.size(); ++i) groups[BroadcastElement(kept, x.shape, i)].push_back(x.data[i]);
  return groups;
}

double Sum(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum;
}
double Mean(const std::vector<double>& v) { return Sum(v) / static_cast<double>(v.size()); }
double Prod(const std::vector<double>& v) {
  double product = 1;
  for (double x : v) product *= x;
  return product;
}
double Max(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }
double Min(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

using Fold = double (*)(const std::vector<double>&);

// Sums run in double: what is lost is far below one rounding, unless they cancel.
OpRow ReduceRow(OpKind op, Fold fold, bool exact) {
  OpRow row{.op = op};
  row.reference = [fold](const NodeDesc& desc, const RefTensors& in, const StepState&) {
    const auto groups = Groups(desc, in[0]);
    RefTensor y = Filled(desc.outputs[0].shape);
    for (int64_t i = 0; i < y.size(); ++i) y.data[i] = fold(groups[i]);
    return RefTensors{y};
  };
  if (!exact) {
    row.error = [](const NodeDesc& desc, const RefTensors& in, const RefTensors& out) {
      const auto groups = Groups(desc, in[0]);
      RefTensor bound = Filled(out[0].shape);
      if (!IsFloat(desc.outputs[0].dtype)) return RefTensors{bound};
      for (int64_t i = 0; i < bound.size(); ++i) {
        double magnitudes = 0;
        for (double x : groups[i]) magnitudes += std::fabs(x);
        if (desc.op == OpKind::kReduceProd) magnitudes = 0;
        bound.data[i] =
            std::fabs(out[0].data[i]) * Gamma(2) + magnitudes * 0x1p-53 * static_cast<double>(groups[i].size());
      }
      return RefTensors{bound};
    };
  }
  row.input = [op](const NodeDesc& desc, int i, Random* random) {
    RefTensor x = SmallIntegers(desc.inputs[i], random);
    // Products that fit every integer.
    for (double& v : x.data) v = op != OpKind::kReduceProd ? v : v < 0 ? -1 : 1;
    if (x.data.empty() && op == OpKind::kReduceProd)
      x = RandomTensor(random, desc.inputs[i].shape, DType::kF32, 0.7, 1.4);
    return x;
  };
  return row;
}

std::vector<OpShapes> Cases() {
  std::vector<OpShapes> list = {{{}, {{}}},        {{}, {{1}}},     {{}, {{7}}},
                                {{}, {{2, 3, 5}}}, {{}, {{70000}}}, {{}, {{65536}}}};
  const auto add = [&](const Ints& axes, const Shape& shape) {
    for (int64_t keep : {0, 1}) list.push_back({{{"axes", axes}, {"keepdims", keep}}, {shape}});
  };
  for (const Ints& axes : {Ints{}, {0}, {1}, {-1}, {0, 2}, {1, -1}, {0, 1}, {0, 1, 2, 3}}) add(axes, {2, 3, 5, 7});
  for (int64_t axis : {0, 1}) {
    add({axis}, {300, 257});
    add({axis}, {4, 20001});
    add({axis}, {20001, 4});
    add({axis}, {1, 1});
    add({axis}, {3, 32768});
  }
  add({1}, {20, 3, 1100});
  add({0, 2}, {30, 40, 61});
  return list;
}

OpRow SumToRow() {
  OpRow row = ReduceRow(OpKind::kSumTo, Sum, false);
  for (DType t : kFloatTypes) row.signatures.push_back({{t}, {t}});
  for (DType t : {DType::kF16, DType::kBF16}) row.signatures.push_back({{t}, {DType::kF32}});
  const std::vector<std::pair<Shape, Ints>> shapes = {
      {{3, 5}, {5}}, {{3, 5}, {3, 1}}, {{3, 5}, {}},      {{2, 3, 5, 7}, {3, 1, 7}}, {{2, 3, 5, 7}, {1, 1, 5, 1}},
      {{1, 4}, {4}}, {{4}, {4}},       {{40000, 3}, {3}}, {{300, 257}, {257}}};
  for (const auto& [from, to] : shapes) row.cases.push_back({{{"shape", to}}, {from}});
  return row;
}

RefTensors Spread(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor y = Filled(desc.outputs[0].shape);
  const double share =
      desc.op == OpKind::kReduceMeanGrad ? static_cast<double>(in[0].size()) / static_cast<double>(y.size()) : 1;
  for (int64_t i = 0; i < y.size(); ++i) y.data[i] = in[0].data[BroadcastElement(in[0].shape, y.shape, i)] * share;
  return {y};
}

OpRow SpreadRow(OpKind op, const std::vector<DType>& dtypes, double roundings) {
  OpRow row{.op = op, .signatures = SameSignatures(dtypes, 1), .reference = Spread};
  if (roundings > 0) row.error = RelativeError(roundings);
  const std::vector<std::pair<Shape, Ints>> shapes = {
      {{}, {7}},     {{5}, {3, 5}},          {{3, 1}, {3, 5}},       {{3, 1, 7}, {2, 3, 5, 7}},   {{}, {}},
      {{4}, {1, 4}}, {{1, 257}, {300, 257}}, {{300, 1}, {300, 257}}, {{2, 1, 3, 1}, {2, 4, 3, 5}}};
  for (const auto& [from, to] : shapes) row.cases.push_back({{{"shape", to}}, {from}});
  row.input = [](const NodeDesc& desc, int i, Random* random) { return SmallIntegers(desc.inputs[i], random); };
  return row;
}

// dy times the product of the others, one by one.
OpRow ProdGradRow() {
  OpRow row{.op = OpKind::kReduceProdGrad};
  constexpr DType f = DType::kF32;
  row.signatures = {{{f, f, f}, {f}}};
  for (const auto& [x, y] : {std::pair<Shape, Shape>{{2, 3, 5}, {2, 1, 5}},
                             {{7}, {1}},
                             {{40, 60}, {40, 1}},
                             {{1, 1}, {1, 1}},
                             {{3, 4}, {1, 1}}}) {
    row.cases.push_back({{}, {y, x, y}});
  }
  row.reference = [](const NodeDesc&, const RefTensors& in, const StepState&) {
    RefTensor dx = Filled(in[1].shape);
    for (int64_t i = 0; i < dx.size(); ++i) {
      const int64_t group = BroadcastElement(in[0].shape, dx.shape, i);
      dx.data[i] = in[0].data[group];
      for (int64_t k = 0; k < dx.size(); ++k) {
        if (k != i && BroadcastElement(in[0].shape, dx.shape, k) == group) dx.data[i] *= in[1].data[k];
      }
    }
    return RefTensors{dx};
  };
  row.error = RelativeError(2);
  return row;
}

}  // namespace

std::vector<OpRow> ReduceRows() {
  std::vector<OpRow> rows = {ReduceRow(OpKind::kReduceSum, Sum, false), ReduceRow(OpKind::kReduceMean, Mean, false),
                             ReduceRow(OpKind::kReduceProd, Prod, false), ReduceRow(OpKind::kReduceMax, Max, true),
                             ReduceRow(OpKind::kReduceMin, Min, true)};
  const std::vector<DType> sums = {DType::kF32, DType::kI32, DType::kI64};
  for (OpRow& row : rows) {
    const bool extreme = row.op == OpKind::kReduceMax || row.op == OpKind::kReduceMin;
    row.signatures = SameSignatures(extreme ? kNumberTypes : sums, 1);
    if (row.op == OpKind::kReduceMean) row.signatures = SameSignatures({DType::kF32}, 1);
    row.cases = Cases();
    for (const Ints& axes : {Ints{0}, {1}, {-1}, {0, 2}}) {
      for (int64_t keep : {0, 1}) row.gradient_cases.push_back({{{"axes", axes}, {"keepdims", keep}}, {{2, 3, 4}}});
    }
    row.gradient_cases.push_back({{}, {{2, 3}}});
  }
  rows.push_back(SumToRow());
  rows.push_back(SpreadRow(OpKind::kReduceMeanGrad, {DType::kF32}, 2));
  rows.push_back(SpreadRow(OpKind::kBroadcastTo, kEveryType, 0));
  rows.back().gradient_cases = {{{{"shape", Ints{2, 3}}}, {{3}}}, {{{"shape", Ints{2, 3, 4}}}, {{3, 1}}}};
  rows.push_back(ProdGradRow());
  return rows;
}

}  // namespace ampd::testing
