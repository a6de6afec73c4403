#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferBiasAdd(const OpCall& call, std::vector<TensorType>* outputs) {
  if (call.inputs[0].shape.empty()) return BadNode(OpKind::kBiasAdd, call, "input is a scalar");
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kBiasAdd, call, 1, {call.inputs[0].shape.back()}));
  return SameAsFirst(call, outputs);
}

absl::Status InferBiasAddGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  if (call.inputs[0].shape.empty()) return BadNode(OpKind::kBiasAddGrad, call, "input is a scalar");
  outputs->push_back({DType::kF32, {call.inputs[0].shape.back()}});
  return absl::OkStatus();
}

void BiasAddGradient(GradientContext& c) {
  if (c.needs_grad(1)) c.AddInputGrad(1, c.Emit(OpKind::kBiasAddGrad, {c.output_grad(0)}, {}, "grad_bias")[0]);
  if (c.needs_grad(0)) c.AddInputGrad(0, c.output_grad(0));
}

double InputElements(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> BiasAddDefs() {
  return {{.kind = OpKind::kBiasAdd,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferBiasAdd,
           .gradient = BiasAddGradient,
           .elementwise = true},
          {.kind = OpKind::kBiasAddGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferBiasAddGrad,
           .flops = InputElements}};
}

}  // namespace ampd::ops
