#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::NodeDesc;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const std::vector<DType> kDeny = {DType::kF32};
const std::vector<DType> kDenyNumbers = {DType::kF32, DType::kI32, DType::kI64, DType::kU8};

bool IsInteger(const NodeDesc& d) { return !IsFloat(d.inputs[0].dtype); }

double Div(const NodeDesc& d, const double* in) {
  if (!IsInteger(d)) return in[0] / in[1];
  return in[1] == 0 ? 0 : std::trunc(in[0] / in[1]);
}

double Pow(const NodeDesc& d, const double* in) {
  if (!IsInteger(d) || in[1] >= 0) return std::pow(in[0], in[1]);
  return in[0] == 0 ? 0 : std::trunc(std::pow(in[0], in[1]));
}

double Mod(const NodeDesc& d, const double* in) {
  if (in[1] == 0) return IsInteger(d) ? 0 : kNaN;
  const double r = std::fmod(in[0], in[1]);
  const bool moves = !d.attributes.Bool("fmod") && r != 0 && std::signbit(r) != std::signbit(in[1]);
  return moves ? r + in[1] : r;
}

double ModGrad(const NodeDesc& d, const double* in) {
  if (in[2] == 0) return kNaN;
  const double q = in[1] / in[2];
  return -in[0] * (d.attributes.Bool("fmod") ? std::trunc(q) : std::floor(q));
}

// Of dy, x, other: half each where both are the extreme one.
double Share(double dy, bool loses, bool ties) { return loses ? 0 : (ties ? dy / 2 : dy); }

OpRow BinaryRow(OpKind op, ElementFunction f, ElementError error, const std::vector<DType>& dtypes = kNumberTypes,
                const std::vector<Attributes>& attributes = {{}}) {
  OpRow row = ElementwiseRow(op, std::move(f), std::move(error));
  row.signatures = SameSignatures(dtypes, 2);
  for (const Attributes& a : attributes) {
    Append(&row.cases, SameShapes(2, a));
    Append(&row.cases, BroadcastShapes(2, a));
    for (const auto& shapes : {std::vector<Shape>{{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{2, 1}, {4, 1, 3}}, {{}, {2, 2}}}) {
      row.gradient_cases.push_back({a, shapes});
    }
  }
  return row;
}

OpRow GradRow(OpKind op, ElementFunction f, ElementError error, const std::vector<DType>& dtypes = kFloatTypes,
              const std::vector<Attributes>& attributes = {{}}) {
  OpRow row = ElementwiseRow(op, std::move(f), std::move(error));
  row.signatures = SameSignatures(dtypes, 3);
  for (const Attributes& a : attributes) {
    Append(&row.cases, SameShapes(3, a));
    row.cases.push_back({a, {{3, 5}, {5}, {3, 1}}});
    row.cases.push_back({a, {{7, 1200}, {}, {1200}}});
  }
  return row;
}

// Divisors, bases and exponents away from poles, for finite differences.
void KeepAway(OpRow* row) {
  row->gradient_input = [](const NodeDesc& desc, int i, Random* random) {
    return RandomTensor(random, desc.inputs[i].shape, DType::kF32, 0.5, 2);
  };
}

OpRow PowRow() {
  OpRow row = BinaryRow(OpKind::kPow, Pow, Relative(3), kDenyNumbers);
  row.input = [](const NodeDesc& desc, int i, Random* random) {
    if (IsFloat(desc.inputs[i].dtype)) {
      return RandomTensor(random, desc.inputs[i].shape, DType::kF32, i == 0 ? 0.05 : -3, 3);
    }
    // Powers stay exact in double.
    return i == 0 ? SmallIntegers(desc.inputs[i], random) : SmallIntegers(desc.inputs[i], random, -2, 9);
  };
  KeepAway(&row);
  return row;
}

std::vector<OpRow> PowGradRows() {
  const auto error = [](const NodeDesc&, const double* in, double out) {
    return std::fabs(out) * Gamma(12) * (1 + std::fabs(std::log(in[1])));
  };
  std::vector<OpRow> rows = {
      GradRow(
          OpKind::kPowGradBase,
          [](const NodeDesc&, const double* in) { return in[0] * in[2] * std::pow(in[1], in[2] - 1); }, error, kDeny),
      GradRow(
          OpKind::kPowGradExponent,
          [](const NodeDesc&, const double* in) { return in[0] * std::pow(in[1], in[2]) * std::log(in[1]); }, error,
          kDeny)};
  for (OpRow& row : rows) {
    row.input = [](const NodeDesc& desc, int i, Random* random) {
      if (i != 1) return RefTensor{};
      return RandomTensor(random, desc.inputs[i].shape, DType::kF32, 0.05, 3);
    };
  }
  return rows;
}

}  // namespace

std::vector<OpRow> BinaryRows() {
  const std::vector<Attributes> mods = {{}, {{"fmod", int64_t{1}}}};
  std::vector<OpRow> rows = {
      BinaryRow(
          OpKind::kAdd, [](const NodeDesc&, const double* in) { return in[0] + in[1]; }, Relative(1)),
      BinaryRow(
          OpKind::kSub, [](const NodeDesc&, const double* in) { return in[0] - in[1]; }, Relative(1)),
      BinaryRow(
          OpKind::kMul, [](const NodeDesc&, const double* in) { return in[0] * in[1]; }, Relative(1)),
      BinaryRow(OpKind::kDiv, Div, Relative(1)),
      BinaryRow(
          OpKind::kMax, [](const NodeDesc&, const double* in) { return std::max(in[0], in[1]); }, nullptr),
      BinaryRow(
          OpKind::kMin, [](const NodeDesc&, const double* in) { return std::min(in[0], in[1]); }, nullptr),
      BinaryRow(OpKind::kMod, Mod, Relative(1), kNumberTypes, mods),
      PowRow(),
      GradRow(
          OpKind::kDivGrad, [](const NodeDesc&, const double* in) { return -in[0] * in[1] / (in[2] * in[2]); },
          Relative(4)),
      GradRow(
          OpKind::kMaxGrad,
          [](const NodeDesc&, const double* in) { return Share(in[0], in[1] < in[2], in[1] == in[2]); }, nullptr),
      GradRow(
          OpKind::kMinGrad,
          [](const NodeDesc&, const double* in) { return Share(in[0], in[1] > in[2], in[1] == in[2]); }, nullptr),
      GradRow(OpKind::kModGrad, ModGrad, Relative(1), kFloatTypes, mods)};
  for (OpRow& row : rows) {
    if (row.op == OpKind::kDiv || row.op == OpKind::kMod) KeepAway(&row);
    // A quotient of zeros over zeros is NaN or a pole, whichever way it is computed.
    if (row.op == OpKind::kDivGrad) {
      row.input = [](const NodeDesc& desc, int i, Random* random) {
        if (i != 2) return RefTensor{};
        return RandomTensor(random, desc.inputs[i].shape, desc.inputs[i].dtype, 0.1, 3);
      };
    }
  }
  for (OpRow& row : PowGradRows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace ampd::testing
