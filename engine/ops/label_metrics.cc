// How many labels are right, and how many count; and a loss's mean over those that count.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferHits(OpKind op, const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape& z = call.inputs[0].shape;
  if (z.size() < 2) {
    return BadNode(op, call, absl::StrCat("logits have shape ", ShapeString(z), ", need [batch, ..., classes]"));
  }
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, 1, Shape(z.begin(), z.end() - 1)));
  outputs->push_back({DType::kF32, call.inputs[1].shape});
  return absl::OkStatus();
}

absl::Status InferArgmaxEqual(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferHits(OpKind::kArgmaxEqual, call, outputs);
}

absl::Status InferTopKEqual(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(InferHits(OpKind::kTopKEqual, call, outputs));
  const int64_t k = call.attributes.Int("k");
  if (k >= 1 && k <= call.inputs[0].shape.back()) return absl::OkStatus();
  return BadNode(OpKind::kTopKEqual, call,
                 absl::StrCat("k is ", k, ", must be 1 to ", call.inputs[0].shape.back(), ", the classes"));
}

absl::Status InferLabelCounts(const OpCall& call, std::vector<TensorType>* outputs) {
  const int64_t classes = call.attributes.Int("classes");
  if (classes < 1) return BadNode(OpKind::kLabelCounts, call, absl::StrCat("classes is ", classes, ", must be >= 1"));
  outputs->push_back({DType::kF32, call.inputs[0].shape});
  return absl::OkStatus();
}

absl::Status InferNormalizedSum(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kNormalizedSum, call, 1, call.inputs[0].shape));
  outputs->push_back({DType::kF32, {}});
  return absl::OkStatus();
}

absl::Status InferNormalizedSumGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kNormalizedSumGrad, call, 0, {}));
  outputs->push_back({DType::kF32, call.inputs[1].shape});
  return absl::OkStatus();
}

// The weights count; nothing is trained through them.
void NormalizedSumGradient(GradientContext& c) {
  if (!c.needs_grad(0)) return;
  c.AddInputGrad(0, c.Emit(OpKind::kNormalizedSumGrad, {c.output_grad(0), c.input(1)}, {}, "grad")[0]);
}

double FirstInput(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> LabelMetricsDefs() {
  return {{.kind = OpKind::kArgmaxEqual,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferArgmaxEqual,
           .flops = FirstInput},
          {.kind = OpKind::kTopKEqual,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferTopKEqual,
           .flops = FirstInput},
          {.kind = OpKind::kLabelCounts,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kIndex},
           .output_suffixes = {""},
           .infer = InferLabelCounts},
          {.kind = OpKind::kNormalizedSum,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kFloat},
           .output_suffixes = {""},
           .infer = InferNormalizedSum,
           .gradient = NormalizedSumGradient,
           .flops = FirstInput},
          {.kind = OpKind::kNormalizedSumGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kFloat},
           .output_suffixes = {""},
           .infer = InferNormalizedSumGrad}};
}

}  // namespace ampd::ops
