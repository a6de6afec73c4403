#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferGlobalAvgPool(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kGlobalAvgPool, call, 0, 4));
  outputs->push_back({call.inputs[0].dtype, {call.inputs[0].shape[0], call.inputs[0].shape[3]}});
  return absl::OkStatus();
}

absl::Status InferGlobalAvgPoolGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape x = ToShape(call.attributes.Ints("input_shape"));
  if (x.size() != 4) return BadNode(OpKind::kGlobalAvgPoolGrad, call, "input_shape needs 4 numbers");
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kGlobalAvgPoolGrad, call, 0, {x[0], x[3]}));
  outputs->push_back({call.inputs[0].dtype, x});
  return absl::OkStatus();
}

void GlobalAvgPoolGradient(GradientContext& c) {
  ir::Attributes attributes{{"input_shape", ToInts(c.input_type(0).shape)}};
  c.AddInputGrad(0, c.Emit(OpKind::kGlobalAvgPoolGrad, {c.output_grad(0)}, attributes, "grad")[0]);
}

}  // namespace

std::vector<OpDef> GlobalAvgPoolDefs() {
  return {{.kind = OpKind::kGlobalAvgPool,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferGlobalAvgPool,
           .gradient = GlobalAvgPoolGradient},
          {.kind = OpKind::kGlobalAvgPoolGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferGlobalAvgPoolGrad}};
}

}  // namespace ampd::ops
