#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferRelu(const OpCall& call, std::vector<TensorType>* outputs) { return SameAsFirst(call, outputs); }

absl::Status InferReluGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kReluGrad, call, 1, call.inputs[0].shape));
  return SameAsFirst(call, outputs);
}

void ReluGradient(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(OpKind::kReluGrad, {c.output_grad(0), c.output(0)}, {}, "grad")[0]);
}

}  // namespace

std::vector<OpDef> ReluDefs() {
  return {{.kind = OpKind::kRelu,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferRelu,
           .gradient = ReluGradient,
           .elementwise = true},
          {.kind = OpKind::kReluGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferReluGrad,
           .elementwise = true}};
}

}  // namespace ampd::ops
