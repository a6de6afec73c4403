#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Bound on time steps times states of one sample, so that a kernel's tables stay far below 2^63 bytes.
constexpr int64_t kMaxLattice = int64_t{1} << 36;

absl::Status CheckOperands(OpKind op, const OpCall& call, int logits) {
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, logits, 3));
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, logits + 1, 2));
  const Shape& z = call.inputs[logits].shape;
  const Shape& labels = call.inputs[logits + 1].shape;
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, logits + 1, {z[0], labels[1]}));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, logits + 2, {z[0]}));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, logits + 3, {z[0]}));
  const int64_t blank = call.attributes.Int("blank");
  if (blank < 0 || blank >= z[2]) {
    return BadNode(op, call, absl::StrCat("blank is ", blank, ", must be a class, 0 to ", z[2] - 1));
  }
  if (labels[1] <= kMaxLattice && z[1] <= kMaxLattice / (2 * labels[1] + 1)) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(z[1], " time steps by ", labels[1], " labels are too many"));
}

absl::Status InferLosses(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(OpKind::kCtcLoss, call, 0));
  outputs->push_back({DType::kF32, {call.inputs[0].shape[0]}});
  return absl::OkStatus();
}

absl::Status InferGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckOperands(OpKind::kCtcLossGrad, call, 1));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kCtcLossGrad, call, 0, {call.inputs[1].shape[0]}));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

void CtcGradient(GradientContext& c) {
  if (!c.needs_grad(0)) return;
  c.AddInputGrad(0, c.Emit(OpKind::kCtcLossGrad, {c.output_grad(0), c.input(0), c.input(1), c.input(2), c.input(3)},
                           c.node().attributes, "grad")[0]);
}

double ForwardFlops(const OpCall& call, const std::vector<TensorType>&) {
  const Shape& z = call.inputs[0].shape;
  return 5.0 * static_cast<double>(NumElements(z)) +
         10.0 * static_cast<double>(z[0] * z[1]) * static_cast<double>(2 * call.inputs[1].shape[1] + 1);
}

double GradFlops(const OpCall& call, const std::vector<TensorType>&) {
  const Shape& z = call.inputs[1].shape;
  return 10.0 * static_cast<double>(NumElements(z)) +
         25.0 * static_cast<double>(z[0] * z[1]) * static_cast<double>(2 * call.inputs[2].shape[1] + 1);
}

}  // namespace

std::vector<OpDef> CtcLossDefs() {
  return {{.kind = OpKind::kCtcLoss,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex, Role::kIndex, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferLosses,
           .gradient = CtcGradient,
           .flops = ForwardFlops},
          {.kind = OpKind::kCtcLossGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kData, Role::kIndex, Role::kIndex, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferGrad,
           .flops = GradFlops}};
}

}  // namespace ampd::ops
