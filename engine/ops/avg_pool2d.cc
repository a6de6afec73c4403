#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/pool_rules.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferAvgPool(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kAvgPool2d, call, call.inputs[0].shape, &y));
  outputs->push_back({call.inputs[0].dtype, y});
  return absl::OkStatus();
}

absl::Status InferAvgPoolGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape x = ToShape(call.attributes.Ints("input_shape"));
  Shape y;
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kAvgPool2dGrad, call, x, &y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kAvgPool2dGrad, call, 0, y));
  outputs->push_back({call.inputs[0].dtype, x});
  return absl::OkStatus();
}

void AvgPoolGradient(GradientContext& c) {
  ir::Attributes attributes = c.node().attributes;
  attributes.Set("input_shape", ToInts(c.input_type(0).shape));
  c.AddInputGrad(0, c.Emit(OpKind::kAvgPool2dGrad, {c.output_grad(0)}, attributes, "grad")[0]);
}

}  // namespace

std::vector<OpDef> AvgPool2dDefs() {
  return {{.kind = OpKind::kAvgPool2d,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferAvgPool,
           .gradient = AvgPoolGradient},
          {.kind = OpKind::kAvgPool2dGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferAvgPoolGrad}};
}

}  // namespace ampd::ops
