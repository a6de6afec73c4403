#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/pool_rules.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferMaxPool(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kMaxPool2d, call, call.inputs[0].shape, &y));
  outputs->push_back({call.inputs[0].dtype, y});
  return absl::OkStatus();
}

absl::Status InferMaxPoolGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kMaxPool2dGrad, call, call.inputs[1].shape, &y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kMaxPool2dGrad, call, 0, y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kMaxPool2dGrad, call, 2, y));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

void MaxPoolGradient(GradientContext& c) {
  c.AddInputGrad(
      0, c.Emit(OpKind::kMaxPool2dGrad, {c.output_grad(0), c.input(0), c.output(0)}, c.node().attributes, "grad")[0]);
}

}  // namespace

std::vector<OpDef> MaxPool2dDefs() {
  return {{.kind = OpKind::kMaxPool2d,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferMaxPool,
           .gradient = MaxPoolGradient},
          {.kind = OpKind::kMaxPool2dGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferMaxPoolGrad}};
}

}  // namespace ampd::ops
