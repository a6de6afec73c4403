#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

constexpr DType kF = DType::kF32;

// Value and derivative by the prediction of one element; `number` is beta or margin, `positive` the weight of a
// positive target.
struct Pair {
  double value, slope;
};
using ElementFunction = Pair (*)(double p, double t, double number, double positive);

Pair Squared(double p, double t, double, double) { return {std::pow(p - t, 2), 2 * (p - t)}; }

Pair Absolute(double p, double t, double, double) { return {std::fabs(p - t), static_cast<double>((p > t) - (p < t))}; }

Pair SmoothAbsolute(double p, double t, double beta, double) {
  const Pair absolute = Absolute(p, t, 0, 0);
  if (absolute.value < beta) return {std::pow(p - t, 2) / (2 * beta), (p - t) / beta};
  return {absolute.value - beta / 2, absolute.slope};
}

Pair Hinge(double p, double t, double margin, double) {
  const double sign = t > 0 ? 1 : -1;
  return margin > sign * p ? Pair{margin - sign * p, -sign} : Pair{0, 0};
}

// -positive t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)), in long double.
Pair SigmoidCrossEntropy(double z, double t, double, double positive) {
  const auto softplus = [](long double v) { return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v)); };
  const long double sigmoid = 1 / (1 + std::exp(-static_cast<long double>(z)));
  const long double value = positive * t * softplus(-z) + (1 - t) * softplus(z);
  return {static_cast<double>(value), static_cast<double>(-positive * t * (1 - sigmoid) + (1 - t) * sigmoid)};
}

template <ElementFunction kElement>
Pair At(const NodeDesc& desc, const RefTensors& in, size_t prediction, int64_t i) {
  const double number =
      desc.attributes.Has("beta") ? desc.attributes.Double("beta") : desc.attributes.Double("margin", 1);
  const int64_t last = in[prediction].shape.back();
  const double positive = in.size() > prediction + 2 ? in[prediction + 2].data[i % last] : 1;
  return kElement(in[prediction].data[i], in[prediction + 1].data[i], number, positive);
}

template <ElementFunction kElement>
RefTensors Forward(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor losses = Filled({in[0].shape[0]});
  const int64_t features = in[0].size() / losses.size();
  for (int64_t i = 0; i < in[0].size(); ++i) {
    losses.data[i / features] += At<kElement>(desc, in, 0, i).value / static_cast<double>(features);
  }
  return {losses};
}

template <ElementFunction kElement>
RefTensors Backward(const NodeDesc& desc, const RefTensors& in, const StepState&) {
  RefTensor dp = Filled(in[1].shape);
  const int64_t features = in[1].size() / in[0].size();
  for (int64_t i = 0; i < dp.size(); ++i) {
    dp.data[i] = in[0].data[i / features] * At<kElement>(desc, in, 1, i).slope / static_cast<double>(features);
  }
  return {dp};
}

// Kernels compute in double, from numbers below 10: what is left is the rounding of the result.
RefTensors DoubleError(const NodeDesc&, const RefTensors&, const RefTensors& outputs) {
  RefTensors errors;
  for (const RefTensor& t : outputs) errors.push_back(Filled(t.shape, 1e-12));
  return errors;
}

// Targets of sigmoid cross-entropy are probabilities, weights of positive targets positive.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  const bool forward = desc.op == OpKind::kSigmoidCrossEntropy;
  if (!forward && desc.op != OpKind::kSigmoidCrossEntropyGrad) return {};
  const int target = forward ? 1 : 2;
  if (i == target) return RandomTensor(random, desc.inputs[i].shape, kF, 0, 1);
  if (i == target + 1) return RandomTensor(random, desc.inputs[i].shape, kF, 0.25, 4);
  return {};
}

std::vector<OpShapes> Cases(const std::vector<Attributes>& attributes, bool grad, bool weights) {
  std::vector<OpShapes> list;
  for (const Shape& s : {Shape{1, 1}, Shape{7, 10}, Shape{3, 1000}, Shape{600, 11}, Shape{5}, Shape{2, 3, 4}}) {
    for (const Attributes& a : attributes) {
      OpShapes shapes{a, {s, s}};
      if (grad) shapes.inputs.insert(shapes.inputs.begin(), {s[0]});
      list.push_back(shapes);
      if (weights) shapes.inputs.push_back({s.back()}), list.push_back(shapes);
    }
  }
  return list;
}

template <ElementFunction kElement>
void AddRows(OpKind forward, OpKind grad, const std::vector<Attributes>& attributes, bool weights,
             std::vector<int> constants, std::vector<OpRow>* rows) {
  std::vector<KernelTable::Signature> signatures = {{{kF, kF}, {kF}}}, grad_signatures = {{{kF, kF, kF}, {kF}}};
  if (weights) signatures.push_back({{kF, kF, kF}, {kF}}), grad_signatures.push_back({{kF, kF, kF, kF}, {kF}});
  OpRow row{.op = forward,
            .signatures = signatures,
            .cases = Cases(attributes, false, weights),
            .constant_inputs = std::move(constants),
            .reference = Forward<kElement>,
            .error = DoubleError,
            .input = Input};
  for (const OpShapes& shapes : row.cases) {
    if (NumElements(shapes.inputs[0]) <= 24) row.gradient_cases.push_back(shapes);
  }
  rows->push_back(std::move(row));
  rows->push_back({.op = grad,
                   .signatures = grad_signatures,
                   .cases = Cases(attributes, true, weights),
                   .reference = Backward<kElement>,
                   .error = DoubleError,
                   .input = Input});
}

}  // namespace

std::vector<OpRow> RegressionLossesRows() {
  std::vector<OpRow> rows;
  const Attributes small{{"beta", 0.4}}, large{{"beta", 2.0}}, zero{{"beta", 0.0}};
  AddRows<Squared>(OpKind::kSquaredError, OpKind::kSquaredErrorGrad, {{}}, false, {}, &rows);
  AddRows<Absolute>(OpKind::kL1Loss, OpKind::kL1LossGrad, {{}}, false, {}, &rows);
  AddRows<SmoothAbsolute>(OpKind::kSmoothL1Loss, OpKind::kSmoothL1LossGrad, {small, large, zero}, false, {}, &rows);
  AddRows<Hinge>(OpKind::kHingeLoss, OpKind::kHingeLossGrad, {{{"margin", 1.0}}, {{"margin", 0.25}}}, false, {1},
                 &rows);
  AddRows<SigmoidCrossEntropy>(OpKind::kSigmoidCrossEntropy, OpKind::kSigmoidCrossEntropyGrad, {{}}, true, {1, 2},
                               &rows);
  return rows;
}

}  // namespace ampd::testing
