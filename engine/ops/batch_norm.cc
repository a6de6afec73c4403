#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status RequireChannels(OpKind op, const OpCall& call, int data, std::initializer_list<int> vectors) {
  const Shape& x = call.inputs[data].shape;
  if (x.size() < 2) return BadNode(op, call, absl::StrCat("needs [batch, ..., channels], has ", ShapeString(x)));
  for (int i : vectors) AMPD_RETURN_IF_ERROR(RequireShape(op, call, i, {x.back()}));
  return absl::OkStatus();
}

absl::Status InferBatchNorm(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireChannels(OpKind::kBatchNorm, call, 0, {1, 2}));
  const int64_t channels = call.inputs[0].shape.back();
  *outputs = {call.inputs[0], {DType::kF32, {channels}}, {DType::kF32, {channels}}};
  return absl::OkStatus();
}

absl::Status InferBatchNormStatistics(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireChannels(OpKind::kBatchNormStatistics, call, 0, {1}));
  outputs->assign(3, {DType::kF32, {call.inputs[0].shape.back()}});
  return absl::OkStatus();
}

absl::Status InferBatchNormGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireChannels(OpKind::kBatchNormGrad, call, 1, {2, 3, 4}));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kBatchNormGrad, call, 0, call.inputs[1].shape));
  if (call.inputs.size() == 6) return BadNode(OpKind::kBatchNormGrad, call, "has a gate's factor without its bias");
  if (call.inputs.size() == 7) AMPD_RETURN_IF_ERROR(RequireChannels(OpKind::kBatchNormGrad, call, 1, {5, 6}));
  const int64_t channels = call.inputs[1].shape.back();
  *outputs = {call.inputs[1], {DType::kF32, {channels}}, {DType::kF32, {channels}}};
  return absl::OkStatus();
}

absl::Status InferBatchNormInference(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireChannels(OpKind::kBatchNormInference, call, 0, {1, 2, 3, 4}));
  return SameAsFirst(call, outputs);
}

absl::Status InferBatchNormUpdate(const OpCall& call, std::vector<TensorType>*) {
  for (int i : {1, 2, 3}) AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kBatchNormUpdate, call, i, call.inputs[0].shape));
  if (call.inputs[4] != TensorType{DType::kI64, {}})
    return BadNode(OpKind::kBatchNormUpdate, call, "input 4 must be i64[]");
  if (call.inputs.size() > 5) {
    AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kBatchNormUpdate, call, 5, call.inputs[0].shape));
  }
  if (call.attributes.Int("count") < 1) return BadNode(OpKind::kBatchNormUpdate, call, "count must be >= 1");
  return absl::OkStatus();
}

void BatchNormGradient(GradientContext& c) {
  const std::vector<ir::ValueId> grads =
      c.Emit(OpKind::kBatchNormGrad, {c.output_grad(0), c.input(0), c.input(1), c.output(1), c.output(2)},
             c.node().attributes, "grad");
  for (int i = 0; i < 3; ++i) {
    if (c.needs_grad(i)) c.AddInputGrad(i, grads[i]);
  }
}

// The statistics count as constants, so that x has no part in them: dx = dy * scale / sqrt(var + eps), which is
// batch_norm_inference without mean and bias. By scale and bias as of batch_norm.
void BatchNormInferenceGradient(GradientContext& c) {
  const ir::Attributes& attributes = c.node().attributes;
  const ir::ValueId dy = c.output_grad(0);
  if (c.needs_grad(0)) {
    const ir::ValueId zeros = c.Zeros(c.input_type(2));
    c.AddInputGrad(0, c.Emit(OpKind::kBatchNormInference, {dy, c.input(1), zeros, zeros, c.input(4)}, attributes,
                             "grad_input")[0]);
  }
  if (!c.needs_grad(1) && !c.needs_grad(2)) return;
  const std::vector<ir::ValueId> grads =
      c.Emit(OpKind::kBatchNormGrad, {dy, c.input(0), c.input(1), c.input(3), c.input(4)}, attributes, "grad");
  for (int i = 1; i < 3; ++i) {
    if (c.needs_grad(i)) c.AddInputGrad(i, grads[i]);
  }
}

double NormFlops(const OpCall& call, const std::vector<TensorType>&) {
  return 8.0 * static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> BatchNormDefs() {
  return {{.kind = OpKind::kBatchNorm,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat, Role::kFloat},
           .output_suffixes = {"", ".mean", ".var"},
           .infer = InferBatchNorm,
           .gradient = BatchNormGradient,
           .flops = NormFlops},
          {.kind = OpKind::kBatchNormGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kFloat, Role::kFloat, Role::kFloat, Role::kFloat, Role::kFloat},
           .optional_inputs = 2,
           .output_suffixes = {"", "_scale", "_bias"},
           .infer = InferBatchNormGrad,
           .flops = NormFlops},
          {.kind = OpKind::kBatchNormStatistics,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat},
           .output_suffixes = {".mean", ".var", ".factor"},
           .infer = InferBatchNormStatistics,
           .flops = NormFlops},
          {.kind = OpKind::kBatchNormInference,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat, Role::kFloat, Role::kState, Role::kState},
           .output_suffixes = {""},
           .infer = InferBatchNormInference,
           .gradient = BatchNormInferenceGradient,
           .flops = NormFlops},
          {.kind = OpKind::kBatchNormUpdate,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kFloat, Role::kFloat, Role::kState, Role::kState, Role::kState, Role::kFloat},
           .optional_inputs = 1,
           .infer = InferBatchNormUpdate,
           .has_effects = true}};
}

}  // namespace ampd::ops
