#include <cmath>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;

constexpr DType kBool = DType::kBool;
using Predicate = bool (*)(double a, double b);

OpRow PredicateRow(OpKind op, Predicate holds, const std::vector<DType>& dtypes, size_t inputs = 2) {
  OpRow row = ElementwiseRow(
      op, [=](const NodeDesc&, const double* in) { return holds(in[0], in[inputs - 1]) ? 1.0 : 0.0; }, nullptr);
  for (DType t : dtypes) row.signatures.push_back({std::vector<DType>(inputs, t), {kBool}});
  row.cases = SameShapes(inputs);
  if (inputs == 2) Append(&row.cases, BroadcastShapes(2));
  return row;
}

// A third of the numbers infinite or NaN.
RefTensor Special(const NodeDesc& desc, int i, Random* random) {
  RefTensor x = RandomTensor(random, desc.inputs[i].shape, desc.inputs[i].dtype);
  for (double& v : x.data) {
    const int64_t kind = random->Below(9);
    if (kind == 0) v = NAN;
    if (kind == 1) v = INFINITY;
    if (kind == 2) v = -INFINITY;
  }
  return x;
}

OpRow IsInfRow() {
  OpRow row = ElementwiseRow(
      OpKind::kIsInf,
      [](const NodeDesc& d, const double* in) {
        return std::isinf(in[0]) && d.attributes.Int(in[0] > 0 ? "positive" : "negative", 1) != 0 ? 1.0 : 0.0;
      },
      nullptr);
  for (DType t : kFloatTypes) row.signatures.push_back({{t}, {kBool}});
  for (const Attributes& a :
       {Attributes{}, Attributes{{"positive", int64_t{0}}}, Attributes{{"negative", int64_t{0}}}}) {
    Append(&row.cases, SameShapes(1, a));
  }
  row.input = Special;
  return row;
}

OpRow WhereRow() {
  OpRow row = ElementwiseRow(
      OpKind::kWhere, [](const NodeDesc&, const double* in) { return in[0] != 0 ? in[1] : in[2]; }, nullptr);
  for (DType t : kNumberTypes) row.signatures.push_back({{kBool, t, t}, {t}});
  row.signatures.push_back({{kBool, kBool, kBool}, {kBool}});
  row.cases = SameShapes(3);
  Append(&row.cases, BroadcastShapes(3));
  row.gradient_cases = {{{}, {{2, 3}, {2, 3}, {2, 3}}}, {{}, {{3, 1}, {}, {4}}}, {{}, {{}, {2, 1}, {3}}}};
  return row;
}

OpRow WhereGradRow() {
  OpRow row = ElementwiseRow(
      OpKind::kWhereGrad,
      [](const NodeDesc& d, const double* in) { return (in[0] != 0) == (d.attributes.Int("branch") == 0) ? in[1] : 0; },
      nullptr);
  for (DType t : kFloatTypes) row.signatures.push_back({{kBool, t}, {t}});
  for (int64_t branch : {0, 1}) {
    Append(&row.cases, SameShapes(2, {{"branch", branch}}));
    Append(&row.cases, BroadcastShapes(2, {{"branch", branch}}));
  }
  return row;
}

}  // namespace

std::vector<OpRow> CompareRows() {
  std::vector<DType> with_bool = kNumberTypes;
  with_bool.push_back(kBool);
  std::vector<OpRow> rows = {
      PredicateRow(
          OpKind::kEqual, [](double a, double b) { return a == b; }, with_bool),
      PredicateRow(
          OpKind::kLess, [](double a, double b) { return a < b; }, kNumberTypes),
      PredicateRow(
          OpKind::kGreater, [](double a, double b) { return a > b; }, kNumberTypes),
      PredicateRow(
          OpKind::kLessEqual, [](double a, double b) { return a <= b; }, kNumberTypes),
      PredicateRow(
          OpKind::kGreaterEqual, [](double a, double b) { return a >= b; }, kNumberTypes),
      PredicateRow(OpKind::kLogicalAnd, [](double a, double b) { return a != 0 && b != 0; }, {kBool}),
      PredicateRow(OpKind::kLogicalOr, [](double a, double b) { return a != 0 || b != 0; }, {kBool}),
      PredicateRow(OpKind::kLogicalXor, [](double a, double b) { return (a != 0) != (b != 0); }, {kBool}),
      PredicateRow(
          OpKind::kLogicalNot, [](double a, double) { return a == 0; }, {kBool}, 1),
      PredicateRow(
          OpKind::kIsNan, [](double a, double) { return std::isnan(a); }, kFloatTypes, 1),
      IsInfRow(),
      WhereRow(),
      WhereGradRow()};
  rows[9].input = Special;
  return rows;
}

}  // namespace ampd::testing
