#include <cmath>

#include "tests/support/op_rows/helpers.h"
#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

constexpr double kRootPi = 1.7724538509055160273;
const std::vector<DType> kDeny = {DType::kF32};

// f(x) and the gradient op's dx of dy and what was saved: x, or y.
struct Function {
  OpKind op;
  double (*f)(double x);
  double roundings;
  std::vector<DType> dtypes = kFloatTypes;
  bool positive = false;
};

OpRow FunctionRow(const Function& function) {
  OpRow row = ElementwiseRow(
      function.op, [f = function.f](const NodeDesc&, const double* in) { return f(in[0]); },
      function.roundings == 0 ? ElementError() : Relative(function.roundings));
  row.signatures = SameSignatures(function.dtypes, 1);
  row.cases = SameShapes(1);
  row.gradient_cases = {{{}, {{4, 5}}}};
  if (function.positive) {
    row.gradient_input = [](const NodeDesc& desc, int, Random* random) {
      return RandomTensor(random, desc.inputs[0].shape, DType::kF32, 0.2, 3);
    };
  }
  return row;
}

OpRow GradRow(OpKind op, double (*f)(double dy, double saved), ElementError error,
              const std::vector<DType>& dtypes = kFloatTypes) {
  OpRow row = ElementwiseRow(
      op, [f](const NodeDesc&, const double* in) { return f(in[0], in[1]); }, std::move(error));
  row.signatures = SameSignatures(dtypes, 2);
  row.cases = SameShapes(2);
  return row;
}

double Sign(double x) { return x > 0 ? 1 : (x < 0 ? -1 : x); }

}  // namespace

std::vector<OpRow> UnaryRows() {
  std::vector<OpRow> rows;
  const std::vector<Function> functions = {
      {OpKind::kNeg, [](double x) { return -x; }, 0, kNumberTypes},
      {OpKind::kExp, [](double x) { return std::exp(x); }, 4, kDeny},
      {OpKind::kLog, [](double x) { return std::log(x); }, 5, kDeny, true},
      {OpKind::kSqrt, [](double x) { return std::sqrt(x); }, 1, kFloatTypes, true},
      {OpKind::kAbs, [](double x) { return std::fabs(x); }, 0, kNumberTypes},
      {OpKind::kReciprocal, [](double x) { return 1 / x; }, 1, kDeny, true},
      {OpKind::kErf, [](double x) { return std::erf(x); }, 6},
      {OpKind::kSign, Sign, 0, kNumberTypes},
      {OpKind::kFloor, [](double x) { return std::floor(x); }, 0},
      {OpKind::kCeil, [](double x) { return std::ceil(x); }, 0},
      {OpKind::kRound, [](double x) { return std::nearbyint(x); }, 0},
      {OpKind::kSin, [](double x) { return std::sin(x); }, 3},
      {OpKind::kCos, [](double x) { return std::cos(x); }, 3},
      {OpKind::kZerosLike, [](double) { return 0.0; }, 0, kNumberTypes},
  };
  for (const Function& function : functions) rows.push_back(FunctionRow(function));
  rows.push_back(GradRow(
      OpKind::kSqrtGrad, [](double dy, double y) { return dy / (2 * y); }, Relative(2)));
  rows.push_back(GradRow(
      OpKind::kAbsGrad, [](double dy, double x) { return dy * Sign(x); }, nullptr));
  rows.push_back(GradRow(
      OpKind::kReciprocalGrad, [](double dy, double y) { return -dy * y * y; }, Relative(3), kDeny));
  // Rounding the argument moves the exponent by a few roundings of x^2.
  rows.push_back(GradRow(
      OpKind::kErfGrad, [](double dy, double x) { return dy * 2 / kRootPi * std::exp(-x * x); },
      [](const NodeDesc&, const double* in, double out) { return std::fabs(out) * Gamma(16 + 8 * in[1] * in[1]); }));
  rows.push_back(GradRow(
      OpKind::kSinGrad, [](double dy, double x) { return dy * std::cos(x); }, Relative(4)));
  rows.push_back(GradRow(
      OpKind::kCosGrad, [](double dy, double x) { return -dy * std::sin(x); }, Relative(4)));
  return rows;
}

}  // namespace ampd::testing
