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

absl::Status InferMaxPoolIndex(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kMaxPool2dIndex, call, call.inputs[0].shape, &y));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kMaxPool2dIndex, call, 1, y));
  if (call.inputs[0].shape[1] * call.inputs[0].shape[2] > INT32_MAX) {
    return BadNode(OpKind::kMaxPool2dIndex, call, "has more pixels than an i32 counts");
  }
  outputs->push_back({DType::kI32, y});
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

// One comparison a cell.
double Flops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return WindowCells(call) * static_cast<double>(NumElements(outputs[0].shape));
}
double GradFlops(const OpCall& call, const std::vector<TensorType>&) {
  return WindowCells(call) * static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> MaxPool2dDefs() {
  return {{.kind = OpKind::kMaxPool2d,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kNumber},
           .output_suffixes = {""},
           .infer = InferMaxPool,
           .gradient = MaxPoolGradient,
           .flops = Flops},
          {.kind = OpKind::kMaxPool2dIndex,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kNumber, Role::kNumber},
           .output_suffixes = {""},
           .infer = InferMaxPoolIndex,
           .flops = Flops},
          {.kind = OpKind::kMaxPool2dGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferMaxPoolGrad,
           .flops = GradFlops}};
}

}  // namespace ampd::ops
