#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferLosses(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kSquaredError, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSquaredError, call, 1, call.inputs[0].shape));
  outputs->push_back({DType::kF32, {call.inputs[0].shape[0]}});
  return absl::OkStatus();
}

absl::Status InferLossesGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kSquaredErrorGrad, call, 1, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSquaredErrorGrad, call, 0, {call.inputs[1].shape[0]}));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSquaredErrorGrad, call, 2, call.inputs[1].shape));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

void LossesGradient(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(OpKind::kSquaredErrorGrad, {c.output_grad(0), c.input(0), c.input(1)}, {}, "grad")[0]);
}

}  // namespace

std::vector<OpDef> SquaredErrorDefs() {
  return {{.kind = OpKind::kSquaredError,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferLosses,
           .gradient = LossesGradient},
          {.kind = OpKind::kSquaredErrorGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferLossesGrad}};
}

}  // namespace ampd::ops
