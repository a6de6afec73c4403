#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/pool_rules.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// `ceil_pads` [bottom, right]: the part of pads that only rounds the output up and never counts.
absl::Status CheckCeilPads(OpKind op, const OpCall& call) {
  if (!call.attributes.Has("ceil_pads")) return absl::OkStatus();
  std::vector<int64_t> ceil_pads, pads;
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "ceil_pads", 2, 0, &ceil_pads));
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "pads", 4, 0, &pads));
  if (ceil_pads[0] <= pads[2] && ceil_pads[1] <= pads[3]) return absl::OkStatus();
  return BadNode(op, call,
                 absl::StrCat("ceil_pads ", ShapeString(ceil_pads), " are no part of the pads ", ShapeString(pads)));
}

absl::Status InferAvgPool(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape y;
  AMPD_RETURN_IF_ERROR(CheckCeilPads(OpKind::kAvgPool2d, call));
  AMPD_RETURN_IF_ERROR(PoolOutput(OpKind::kAvgPool2d, call, call.inputs[0].shape, &y));
  outputs->push_back({call.inputs[0].dtype, y});
  return absl::OkStatus();
}

absl::Status InferAvgPoolGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape x = ToShape(call.attributes.Ints("input_shape"));
  Shape y;
  AMPD_RETURN_IF_ERROR(CheckCeilPads(OpKind::kAvgPool2dGrad, call));
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

// One addition a cell.
double Flops(const OpCall& call, const std::vector<TensorType>& outputs) {
  return WindowCells(call) * static_cast<double>(NumElements(outputs[0].shape));
}
double GradFlops(const OpCall& call, const std::vector<TensorType>&) {
  return WindowCells(call) * static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> AvgPool2dDefs() {
  return {{.kind = OpKind::kAvgPool2d,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferAvgPool,
           .gradient = AvgPoolGradient,
           .flops = Flops},
          {.kind = OpKind::kAvgPool2dGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferAvgPoolGrad,
           .flops = GradFlops}};
}

}  // namespace ampd::ops
