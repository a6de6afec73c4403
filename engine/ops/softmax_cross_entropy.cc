#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferLosses(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kSoftmaxCrossEntropy, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSoftmaxCrossEntropy, call, 1, {call.inputs[0].shape[0]}));
  outputs->push_back({DType::kF32, {call.inputs[0].shape[0]}});
  return absl::OkStatus();
}

absl::Status InferLossesGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kSoftmaxCrossEntropyGrad, call, 1, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSoftmaxCrossEntropyGrad, call, 0, {call.inputs[1].shape[0]}));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSoftmaxCrossEntropyGrad, call, 2, {call.inputs[1].shape[0]}));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

void LossesGradient(GradientContext& c) {
  c.AddInputGrad(0,
                 c.Emit(OpKind::kSoftmaxCrossEntropyGrad, {c.output_grad(0), c.input(0), c.input(1)}, {}, "grad")[0]);
}

double LogitFlops(const OpCall& call, const std::vector<TensorType>&) {
  return 5.0 * static_cast<double>(NumElements(call.inputs[call.inputs[0].shape.size() == 2 ? 0 : 1].shape));
}

}  // namespace

std::vector<OpDef> SoftmaxCrossEntropyDefs() {
  return {{.kind = OpKind::kSoftmaxCrossEntropy,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferLosses,
           .gradient = LossesGradient,
           .flops = LogitFlops},
          {.kind = OpKind::kSoftmaxCrossEntropyGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferLossesGrad,
           .flops = LogitFlops}};
}

}  // namespace ampd::ops
