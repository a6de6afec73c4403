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

constexpr double kPi = 3.14159265358979323846;
constexpr double kInf = std::numeric_limits<double>::infinity();

double Alpha(const NodeDesc& d, double fallback) { return d.attributes.Double("alpha", fallback); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double Pdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * kPi); }
bool IsTanhForm(const NodeDesc& d) { return d.attributes.String("approximate") == "tanh"; }
double TanhArgument(double x) { return std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x); }
// Of integers, those within.
double LowOf(const NodeDesc& d) {
  const double low = d.attributes.Double("min", -kInf);
  return IsFloat(d.inputs[0].dtype) ? low : std::ceil(low);
}
double HighOf(const NodeDesc& d) {
  const double high = d.attributes.Double("max", kInf);
  return IsFloat(d.inputs[0].dtype) ? high : std::floor(high);
}
double Hard(const NodeDesc& d, double x) { return Alpha(d, 0.2) * x + d.attributes.Double("beta", 0.5); }

double Gelu(const NodeDesc& d, const double* in) {
  const double x = in[0];
  return IsTanhForm(d) ? 0.5 * x * (1 + std::tanh(TanhArgument(x))) : x * Cdf(x);
}

double GeluGrad(const NodeDesc& d, const double* in) {
  const double x = in[1];
  if (!IsTanhForm(d)) return in[0] * (Cdf(x) + x * Pdf(x));
  const double t = std::tanh(TanhArgument(x));
  const double slope = std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
  return in[0] * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope);
}

// Argument and exponent carry a few roundings of their own size, which the exponential turns into relative error.
double GeluRoundings(double x) { return 24 + 24 * std::fabs(x) + 8 * std::fabs(x * x * x) + 4 * x * x; }

ElementError GeluError() {
  return [](const NodeDesc&, const double* in, double out) { return std::fabs(out) * Gamma(GeluRoundings(in[0])); };
}

ElementError GeluGradError() {
  return [](const NodeDesc&, const double* in, double) {
    const double x = in[1];
    return std::fabs(in[0]) * (Cdf(x) + 2 * std::fabs(x) * (1 + x * x) * (Pdf(x) + Sigmoid(-std::fabs(x)) * 0.25)) *
           Gamma(GeluRoundings(x));
  };
}

struct Activation {
  OpKind op;
  OpKind grad;
  ElementFunction f;
  ElementError error;
  ElementFunction df;  // of dy and what is saved: the input or the output
  ElementError grad_error;
  std::vector<Attributes> attributes = {{}};
  std::vector<DType> dtypes = kFloatTypes;
};

std::vector<Activation> SmoothActivations() {
  const Attributes tanh_form{{"approximate", std::string("tanh")}}, exact{{"approximate", std::string("none")}};
  return {
      {OpKind::kGelu, OpKind::kGeluGrad, Gelu, GeluError(), GeluGrad, GeluGradError(), {{}, exact, tanh_form}},
      {OpKind::kSilu, OpKind::kSiluGrad, [](const NodeDesc&, const double* in) { return in[0] * Sigmoid(in[0]); },
       Relative(10),
       [](const NodeDesc&, const double* in) { return in[0] * Sigmoid(in[1]) * (1 + in[1] * Sigmoid(-in[1])); },
       [](const NodeDesc&, const double* in, double) {
         return std::fabs(in[0]) * Sigmoid(in[1]) * (1 + std::fabs(in[1]) * Sigmoid(-in[1])) * Gamma(20);
       }},
      {OpKind::kSigmoid, OpKind::kSigmoidGrad, [](const NodeDesc&, const double* in) { return Sigmoid(in[0]); },
       Relative(8), [](const NodeDesc&, const double* in) { return in[0] * in[1] * (1 - in[1]); }, Relative(4)},
      {OpKind::kTanh, OpKind::kTanhGrad, [](const NodeDesc&, const double* in) { return std::tanh(in[0]); },
       Relative(6), [](const NodeDesc&, const double* in) { return in[0] * (1 - in[1] * in[1]); }, Relative(5)},
      {OpKind::kSoftplus, OpKind::kSoftplusGrad,
       [](const NodeDesc&, const double* in) { return std::log1p(std::exp(in[0])); }, Relative(10),
       [](const NodeDesc&, const double* in) { return in[0] * Sigmoid(in[1]); }, Relative(10)},
  };
}

std::vector<Activation> KinkedActivations() {
  const Attributes steep{{"alpha", 0.3}};
  return {
      {OpKind::kRelu, OpKind::kReluGrad, [](const NodeDesc&, const double* in) { return in[0] <= 0 ? 0.0 : in[0]; },
       nullptr, [](const NodeDesc&, const double* in) { return in[1] <= 0 ? 0.0 : in[0]; }, nullptr},
      {OpKind::kLeakyRelu,
       OpKind::kLeakyReluGrad,
       [](const NodeDesc& d, const double* in) { return in[0] < 0 ? Alpha(d, 0.01) * in[0] : in[0]; },
       Relative(3),
       [](const NodeDesc& d, const double* in) { return in[1] <= 0 ? Alpha(d, 0.01) * in[0] : in[0]; },
       Relative(3),
       {{}, steep}},
      {OpKind::kElu,
       OpKind::kEluGrad,
       [](const NodeDesc& d, const double* in) { return in[0] < 0 ? Alpha(d, 1) * std::expm1(in[0]) : in[0]; },
       Relative(8),
       [](const NodeDesc& d, const double* in) { return in[1] <= 0 ? in[0] * Alpha(d, 1) * std::exp(in[1]) : in[0]; },
       Relative(8),
       {{}, steep}},
      {OpKind::kHardSigmoid,
       OpKind::kHardSigmoidGrad,
       [](const NodeDesc& d, const double* in) { return std::min(std::max(Hard(d, in[0]), 0.0), 1.0); },
       [](const NodeDesc& d, const double* in, double) {
         return (std::fabs(Alpha(d, 0.2) * in[0]) + d.attributes.Double("beta", 0.5)) * Gamma(4);
       },
       [](const NodeDesc& d, const double* in) {
         const double y = Hard(d, in[1]);
         return y <= 0 || y >= 1 ? 0.0 : Alpha(d, 0.2) * in[0];
       },
       Relative(2),
       {{}, {{"alpha", 0.3}, {"beta", 0.25}}}},
      {OpKind::kClip,
       OpKind::kClipGrad,
       [](const NodeDesc& d, const double* in) { return std::min(std::max(in[0], LowOf(d)), HighOf(d)); },
       nullptr,
       [](const NodeDesc& d, const double* in) { return in[1] < LowOf(d) || in[1] > HighOf(d) ? 0.0 : in[0]; },
       nullptr,
       {{}, {{"min", -1.5}, {"max", 2.0}}, {{"min", 0.0}}, {{"max", 0.75}}},
       kNumberTypes},
  };
}

void AddRows(const Activation& a, std::vector<OpRow>* rows) {
  OpRow forward = ElementwiseRow(a.op, a.f, a.error);
  forward.signatures = SameSignatures(a.dtypes, 1);
  OpRow grad = ElementwiseRow(a.grad, a.df, a.grad_error);
  grad.signatures = SameSignatures(kFloatTypes, 2);
  for (const Attributes& attributes : a.attributes) {
    Append(&forward.cases, SameShapes(1, attributes));
    Append(&grad.cases, SameShapes(2, attributes));
    forward.gradient_cases.push_back({attributes, {{4, 5}}});
  }
  rows->push_back(std::move(forward));
  rows->push_back(std::move(grad));
}

}  // namespace

std::vector<OpRow> ActivationsRows() {
  std::vector<OpRow> rows;
  for (const Activation& a : SmoothActivations()) AddRows(a, &rows);
  for (const Activation& a : KinkedActivations()) AddRows(a, &rows);
  return rows;
}

}  // namespace ampd::testing
