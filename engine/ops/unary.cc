// Functions of one operand, element by element.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferUnary(const OpCall& call, std::vector<TensorType>* outputs) { return SameAsFirst(call, outputs); }

// Of gradient ops: the output's gradient, and what was saved.
template <OpKind kOp>
absl::Status InferUnaryGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 1, call.inputs[0].shape));
  return SameAsFirst(call, outputs);
}

template <OpKind kGrad>
void FromInput(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.input(0)}, {}, "grad")[0]);
}

template <OpKind kGrad>
void FromOutput(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.output(0)}, {}, "grad")[0]);
}

// neg, and the functions whose gradient is zero.
template <OpKind kGrad>
void FromGradient(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0)}, {}, "grad")[0]);
}

OpDef Function(OpKind op, void (*gradient)(GradientContext&), PrecisionClass precision = PrecisionClass::kInfer,
               Role role = Role::kData) {
  return {.kind = op,
          .precision = precision,
          .inputs = {role},
          .output_suffixes = {""},
          .infer = InferUnary,
          .gradient = gradient,
          .elementwise = true};
}

template <OpKind kOp>
OpDef Gradient(PrecisionClass precision = PrecisionClass::kInfer) {
  return {.kind = kOp,
          .precision = precision,
          .inputs = {Role::kData, Role::kData},
          .output_suffixes = {""},
          .infer = InferUnaryGrad<kOp>,
          .elementwise = true};
}

}  // namespace

std::vector<OpDef> UnaryDefs() {
  constexpr PrecisionClass kInfer = PrecisionClass::kInfer, kDeny = PrecisionClass::kDeny;
  constexpr auto zero = FromGradient<OpKind::kZerosLike>;
  return {Function(OpKind::kNeg, FromGradient<OpKind::kNeg>, kInfer, Role::kNumber),
          Function(OpKind::kExp, FromOutput<OpKind::kMul>, kDeny),
          Function(OpKind::kLog, FromInput<OpKind::kDiv>, kDeny),
          Function(OpKind::kSqrt, FromOutput<OpKind::kSqrtGrad>),
          Gradient<OpKind::kSqrtGrad>(),
          Function(OpKind::kAbs, FromInput<OpKind::kAbsGrad>, kInfer, Role::kNumber),
          Gradient<OpKind::kAbsGrad>(),
          Function(OpKind::kReciprocal, FromOutput<OpKind::kReciprocalGrad>, kDeny),
          Gradient<OpKind::kReciprocalGrad>(kDeny),
          Function(OpKind::kErf, FromInput<OpKind::kErfGrad>),
          Gradient<OpKind::kErfGrad>(),
          Function(OpKind::kSign, zero, kInfer, Role::kNumber),
          Function(OpKind::kFloor, zero),
          Function(OpKind::kCeil, zero),
          Function(OpKind::kRound, zero),
          Function(OpKind::kSin, FromInput<OpKind::kSinGrad>),
          Gradient<OpKind::kSinGrad>(),
          Function(OpKind::kCos, FromInput<OpKind::kCosGrad>),
          Gradient<OpKind::kCosGrad>(),
          Function(OpKind::kZerosLike, zero, kInfer, Role::kNumber)};
}

}  // namespace ampd::ops
