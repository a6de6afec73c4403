// Functions of two operands, broadcast as numpy does.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

template <OpKind kOp>
absl::Status InferBroadcast(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(BroadcastShape(kOp, call, 0, &shape));
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

// Adds the gradient of operand `i`, made by `op` from `inputs` in the output's shape.
void Contribute(GradientContext& c, int i, OpKind op, std::vector<ir::ValueId> inputs) {
  if (!c.needs_grad(i)) return;
  const std::string suffix = i == 0 ? "grad_a" : "grad_b";
  const ir::ValueId gradient = c.Emit(op, std::move(inputs), c.node().attributes, suffix)[0];
  c.AddInputGrad(i, SumToInput(c, gradient, i, suffix + "_sum"));
}

void Pass(GradientContext& c, int i) {
  if (!c.needs_grad(i)) return;
  c.AddInputGrad(i, SumToInput(c, c.output_grad(0), i, i == 0 ? "grad_a_sum" : "grad_b_sum"));
}

void AddGradient(GradientContext& c) {
  Pass(c, 0);
  Pass(c, 1);
}

void SubGradient(GradientContext& c) {
  Pass(c, 0);
  if (!c.needs_grad(1)) return;
  // Summed first: then the negation is of the smaller tensor.
  const ir::ValueId sum = SumToInput(c, c.output_grad(0), 1, "grad_b_sum");
  c.AddInputGrad(1, c.Emit(OpKind::kNeg, {sum}, {}, "grad_b")[0]);
}

void MulGradient(GradientContext& c) {
  Contribute(c, 0, OpKind::kMul, {c.output_grad(0), c.input(1)});
  Contribute(c, 1, OpKind::kMul, {c.output_grad(0), c.input(0)});
}

void DivGradient(GradientContext& c) {
  Contribute(c, 0, OpKind::kDiv, {c.output_grad(0), c.input(1)});
  Contribute(c, 1, OpKind::kDivGrad, {c.output_grad(0), c.input(0), c.input(1)});
}

void PowGradient(GradientContext& c) {
  Contribute(c, 0, OpKind::kPowGradBase, {c.output_grad(0), c.input(0), c.input(1)});
  Contribute(c, 1, OpKind::kPowGradExponent, {c.output_grad(0), c.input(0), c.input(1)});
}

template <OpKind kGrad>
void ExtremeGradient(GradientContext& c) {
  Contribute(c, 0, kGrad, {c.output_grad(0), c.input(0), c.input(1)});
  Contribute(c, 1, kGrad, {c.output_grad(0), c.input(1), c.input(0)});
}

void ModGradient(GradientContext& c) {
  Pass(c, 0);
  Contribute(c, 1, OpKind::kModGrad, {c.output_grad(0), c.input(0), c.input(1)});
}

template <OpKind kOp>
OpDef Binary(void (*gradient)(GradientContext&), PrecisionClass precision = PrecisionClass::kInfer) {
  return {.kind = kOp,
          .precision = precision,
          .inputs = {Role::kNumber, Role::kNumber},
          .output_suffixes = {""},
          .infer = InferBroadcast<kOp>,
          .gradient = gradient,
          .elementwise = true};
}

// Of the output's gradient and both operands, in the output's shape.
template <OpKind kOp>
OpDef Gradient(PrecisionClass precision = PrecisionClass::kInfer) {
  return {.kind = kOp,
          .precision = precision,
          .inputs = {Role::kData, Role::kData, Role::kData},
          .output_suffixes = {""},
          .infer = InferBroadcast<kOp>,
          .elementwise = true};
}

}  // namespace

std::vector<OpDef> BinaryDefs() {
  constexpr PrecisionClass kDeny = PrecisionClass::kDeny;
  return {Binary<OpKind::kAdd>(AddGradient),
          Binary<OpKind::kSub>(SubGradient),
          Binary<OpKind::kMul>(MulGradient),
          Binary<OpKind::kDiv>(DivGradient),
          Gradient<OpKind::kDivGrad>(),
          Binary<OpKind::kPow>(PowGradient, kDeny),
          Gradient<OpKind::kPowGradBase>(kDeny),
          Gradient<OpKind::kPowGradExponent>(kDeny),
          Binary<OpKind::kMin>(ExtremeGradient<OpKind::kMinGrad>),
          Gradient<OpKind::kMinGrad>(),
          Binary<OpKind::kMax>(ExtremeGradient<OpKind::kMaxGrad>),
          Gradient<OpKind::kMaxGrad>(),
          Binary<OpKind::kMod>(ModGradient),
          Gradient<OpKind::kModGrad>()};
}

}  // namespace ampd::ops
