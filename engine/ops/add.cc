#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferAdd(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kAdd, call, 1, call.inputs[0].shape));
  return SameAsFirst(call, outputs);
}

void AddGradient(GradientContext& c) {
  c.AddInputGrad(0, c.output_grad(0));
  c.AddInputGrad(1, c.output_grad(0));
}

}  // namespace

std::vector<OpDef> AddDefs() {
  return {{.kind = OpKind::kAdd,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferAdd,
           .gradient = AddGradient,
           .elementwise = true}};
}

}  // namespace ampd::ops
