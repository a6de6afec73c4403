// Losses of a prediction against a target of its shape, averaged over all axes but the first.
#include <utility>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status CheckNumber(OpKind op, const OpCall& call, const char* name, double low) {
  const double value = call.attributes.Double(name, 1);
  if (value >= low && value <= 1e30) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(name, " is ", value, ", must be in [", low, ", 1e30]"));
}

// `prediction` is the position of prediction, target and, of sigmoid cross-entropy, the weights of positive targets.
absl::Status CheckOperands(OpKind op, const OpCall& call, int prediction) {
  const Shape& p = call.inputs[prediction].shape;
  if (p.empty()) return BadNode(op, call, "the prediction has no batch axis");
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, prediction + 1, p));
  if (static_cast<int>(call.inputs.size()) > prediction + 2) {
    AMPD_RETURN_IF_ERROR(RequireShape(op, call, prediction + 2, {p.back()}));
  }
  if (op == OpKind::kSmoothL1Loss || op == OpKind::kSmoothL1LossGrad) return CheckNumber(op, call, "beta", 0);
  if (op == OpKind::kHingeLoss || op == OpKind::kHingeLossGrad) return CheckNumber(op, call, "margin", -1e30);
  return absl::OkStatus();
}

template <OpKind kOp>
absl::Status InferLosses(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(kOp, call, 0));
  outputs->push_back({DType::kF32, {call.inputs[0].shape[0]}});
  return absl::OkStatus();
}

template <OpKind kOp>
absl::Status InferLossesGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(kOp, call, 1));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, {call.inputs[1].shape[0]}));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

// A loss of p - t that is even: the target's gradient is the prediction's with the two exchanged.
template <OpKind kGrad>
void EvenGradient(GradientContext& c) {
  const auto emit = [&](int of, int other, const char* suffix) {
    c.AddInputGrad(of, c.Emit(kGrad, {c.output_grad(0), c.input(of), c.input(other)}, c.node().attributes, suffix)[0]);
  };
  if (c.needs_grad(0)) emit(0, 1, "grad");
  if (c.needs_grad(1)) emit(1, 0, "grad_target");
}

// Weights are constants. A hinge's target only tells a sign; where another loss's is trained, too, as its prediction
// is, what it has no gradient for must not get lost.
template <OpKind kGrad>
void PredictionGradient(GradientContext& c) {
  if (kGrad != OpKind::kHingeLossGrad && c.needs_grad(1)) return c.RefuseInput(1);
  if (!c.needs_grad(0)) return;
  std::vector<ir::ValueId> inputs = {c.output_grad(0)};
  inputs.insert(inputs.end(), c.node().inputs.begin(), c.node().inputs.end());
  c.AddInputGrad(0, c.Emit(kGrad, inputs, c.node().attributes, "grad")[0]);
}

double PredictionFlops(const OpCall& call, const std::vector<TensorType>&) {
  return 4.0 * static_cast<double>(NumElements(call.inputs[1].shape));
}

template <OpKind kForward, OpKind kGrad>
void AddLoss(void (*gradient)(GradientContext&), bool weights, std::vector<OpDef>* defs) {
  OpDef def;
  def.kind = kForward;
  def.precision = PrecisionClass::kDeny;
  def.inputs = {Role::kData, Role::kData};
  def.output_suffixes = {""};
  def.infer = InferLosses<kForward>;
  def.gradient = gradient;
  def.flops = PredictionFlops;
  if (weights) def.inputs.push_back(Role::kFloat), def.optional_inputs = 1;
  defs->push_back(def);
  def.kind = kGrad;
  def.inputs.insert(def.inputs.begin(), Role::kData);
  def.infer = InferLossesGrad<kGrad>;
  def.gradient = nullptr;
  defs->push_back(def);
}

}  // namespace

std::vector<OpDef> RegressionLossesDefs() {
  std::vector<OpDef> defs;
  AddLoss<OpKind::kSquaredError, OpKind::kSquaredErrorGrad>(EvenGradient<OpKind::kSquaredErrorGrad>, false, &defs);
  AddLoss<OpKind::kL1Loss, OpKind::kL1LossGrad>(EvenGradient<OpKind::kL1LossGrad>, false, &defs);
  AddLoss<OpKind::kSmoothL1Loss, OpKind::kSmoothL1LossGrad>(EvenGradient<OpKind::kSmoothL1LossGrad>, false, &defs);
  AddLoss<OpKind::kHingeLoss, OpKind::kHingeLossGrad>(PredictionGradient<OpKind::kHingeLossGrad>, false, &defs);
  AddLoss<OpKind::kSigmoidCrossEntropy, OpKind::kSigmoidCrossEntropyGrad>(
      PredictionGradient<OpKind::kSigmoidCrossEntropyGrad>, true, &defs);
  return defs;
}

}  // namespace ampd::ops
