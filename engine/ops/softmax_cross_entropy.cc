#include <initializer_list>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Extents of all axes but the last: one loss each.
Shape Leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

// The classes of logits with `columns`, of which those behind them are padding.
int64_t ClassesOf(const OpCall& call, int64_t columns) { return call.attributes.Int("classes", columns); }

// What forward and gradient ops check alike. `logits` is the first of logits, labels (or targets), class weights.
absl::Status CheckOperands(OpKind op, const OpCall& call, size_t logits, bool soft) {
  const Shape& z = call.inputs[logits].shape;
  if (z.size() < 2) {
    return BadNode(op, call, absl::StrCat("logits have shape ", ShapeString(z), ", need [batch, ..., classes]"));
  }
  const int64_t classes = ClassesOf(call, z.back());
  if (classes < 1 || classes > z.back()) {
    return BadNode(op, call,
                   absl::StrCat("classes is ", classes, ", must be 1 to ", z.back(), ", the logits' last axis"));
  }
  Shape targets = Leading(z);
  if (soft) targets.push_back(classes);
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, static_cast<int>(logits) + 1, targets));
  if (call.inputs.size() > logits + 2) {
    AMPD_RETURN_IF_ERROR(RequireShape(op, call, static_cast<int>(logits) + 2, {classes}));
  }
  const double smoothing = call.attributes.Double("smoothing");
  if (smoothing >= 0 && smoothing <= 1) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("smoothing is ", smoothing, ", must be in [0, 1]"));
}

absl::Status InferHard(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(OpKind::kSoftmaxCrossEntropy, call, 0, false));
  outputs->assign(2, {DType::kF32, call.inputs[1].shape});
  return absl::OkStatus();
}

absl::Status InferSoft(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(OpKind::kSoftCrossEntropy, call, 0, true));
  outputs->push_back({DType::kF32, Leading(call.inputs[0].shape)});
  return absl::OkStatus();
}

absl::Status InferGrad(OpKind op, const OpCall& call, bool soft, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(op, call, 1, soft));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, 0, Leading(call.inputs[1].shape)));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

absl::Status InferHardGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferGrad(OpKind::kSoftmaxCrossEntropyGrad, call, false, outputs);
}

absl::Status InferSoftGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferGrad(OpKind::kSoftCrossEntropyGrad, call, true, outputs);
}

void EmitGrad(GradientContext& c, OpKind op) {
  // Of distributions.
  if (c.output_grad(0) >= 0 && c.needs_grad(1)) return c.RefuseInput(1);
  if (c.output_grad(0) < 0 || !c.needs_grad(0)) return;
  std::vector<ir::ValueId> inputs = {c.output_grad(0)};
  inputs.insert(inputs.end(), c.node().inputs.begin(), c.node().inputs.end());
  c.AddInputGrad(0, c.Emit(op, inputs, c.node().attributes, "grad")[0]);
}

void HardGradient(GradientContext& c) { EmitGrad(c, OpKind::kSoftmaxCrossEntropyGrad); }
void SoftGradient(GradientContext& c) { EmitGrad(c, OpKind::kSoftCrossEntropyGrad); }

// The logits are the largest operand.
double LogitFlops(const OpCall& call, const std::vector<TensorType>&) {
  int64_t logits = 0;
  for (const TensorType& t : call.inputs) logits = std::max(logits, NumElements(t.shape));
  return 5.0 * static_cast<double>(logits);
}

}  // namespace

std::vector<OpDef> SoftmaxCrossEntropyDefs() {
  const auto row = [](OpKind kind, std::vector<Role> inputs, auto infer) {
    OpDef def;
    def.kind = kind;
    def.precision = PrecisionClass::kDeny;
    def.inputs = std::move(inputs);
    def.optional_inputs = 1;
    def.output_suffixes = {""};
    def.infer = infer;
    def.flops = LogitFlops;
    return def;
  };
  const Role data = Role::kData, logits = Role::kWide, index = Role::kIndex, weights = Role::kFloat;
  std::vector<OpDef> defs = {row(OpKind::kSoftmaxCrossEntropy, {logits, index, weights}, InferHard),
                             row(OpKind::kSoftmaxCrossEntropyGrad, {data, logits, index, weights}, InferHardGrad),
                             row(OpKind::kSoftCrossEntropy, {logits, data, weights}, InferSoft),
                             row(OpKind::kSoftCrossEntropyGrad, {data, logits, data, weights}, InferSoftGrad)};
  defs[0].output_suffixes = {"", ":weights"};
  defs[0].gradient = HardGradient;
  defs[2].gradient = SoftGradient;
  return defs;
}

}  // namespace ampd::ops
