// Norms over the trailing axes: layer_norm (Ba et al. 2016) and rms_norm (Zhang and Sennrich 2019).
#include <algorithm>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// `x` cut before `axis`: the shape of one statistic a row, with ones for the axes normalised over, and the row's shape.
struct Rows {
  Shape statistics, row;
};

absl::Status ReadRows(OpKind op, const OpCall& call, const Shape& x, Rows* rows) {
  const int64_t axis = call.attributes.Int("axis", -1);
  if (axis < 0 || axis >= static_cast<int64_t>(x.size())) {
    return BadNode(op, call,
                   absl::StrCat("axis is ", axis, ", must be in 0 to ", x.size(), " - 1 of ", ShapeString(x)));
  }
  if (NumElements(x) == 0) return BadNode(op, call, absl::StrCat("has no elements, ", ShapeString(x)));
  rows->statistics = x;
  std::fill(rows->statistics.begin() + axis, rows->statistics.end(), 1);
  rows->row.assign(x.begin() + axis, x.end());
  return absl::OkStatus();
}

absl::Status CheckEpsilon(OpKind op, const OpCall& call) {
  const double epsilon = call.attributes.Double("epsilon", -1);
  if (epsilon >= 0 && epsilon <= 1) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("epsilon is ", epsilon, ", must be in [0, 1]"));
}

// Forward: x, then scale and bias of the row's shape; outputs y and `statistics` values a row.
absl::Status InferForward(OpKind op, int statistics, const OpCall& call, std::vector<TensorType>* outputs) {
  Rows rows;
  AMPD_RETURN_IF_ERROR(ReadRows(op, call, call.inputs[0].shape, &rows));
  AMPD_RETURN_IF_ERROR(CheckEpsilon(op, call));
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    AMPD_RETURN_IF_ERROR(RequireShape(op, call, static_cast<int>(i), rows.row));
  }
  outputs->push_back(call.inputs[0]);
  for (int i = 0; i < statistics; ++i) outputs->push_back({DType::kF32, rows.statistics});
  return absl::OkStatus();
}

// Gradient: dy, x, the statistics, then the scale if there is one, and then perhaps what is added to dx; outputs dx and
// then `vectors` of the scale's shape.
absl::Status InferGrad(OpKind op, size_t statistics, int vectors, const OpCall& call,
                       std::vector<TensorType>* outputs) {
  Rows rows;
  AMPD_RETURN_IF_ERROR(ReadRows(op, call, call.inputs[1].shape, &rows));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, 0, call.inputs[1].shape));
  for (size_t i = 0; i < statistics; ++i) {
    AMPD_RETURN_IF_ERROR(RequireShape(op, call, static_cast<int>(2 + i), rows.statistics));
  }
  outputs->push_back(call.inputs[1]);
  if (call.inputs.size() == 2 + statistics) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, static_cast<int>(2 + statistics), rows.row));
  for (int i = 0; i < vectors; ++i) outputs->push_back({DType::kF32, rows.row});
  if (call.inputs.size() == 3 + statistics) return absl::OkStatus();
  return RequireShape(op, call, static_cast<int>(3 + statistics), call.inputs[1].shape);
}

absl::Status InferLayerNorm(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferForward(OpKind::kLayerNorm, 2, call, outputs);
}
absl::Status InferLayerNormGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferGrad(OpKind::kLayerNormGrad, 2, 2, call, outputs);
}
absl::Status InferRmsNorm(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferForward(OpKind::kRmsNorm, 1, call, outputs);
}
absl::Status InferRmsNormGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  return InferGrad(OpKind::kRmsNormGrad, 1, 1, call, outputs);
}

void AddGradients(GradientContext& c, OpKind op, int statistics) {
  std::vector<ir::ValueId> inputs = {c.output_grad(0), c.input(0)};
  for (int i = 1; i <= statistics; ++i) inputs.push_back(c.output(i));
  const int operands = static_cast<int>(c.node().inputs.size());
  if (operands > 1) inputs.push_back(c.input(1));
  const std::vector<ir::ValueId> grads = c.Emit(op, inputs, c.node().attributes, "grad");
  for (int i = 0; i < operands; ++i) {
    if (c.needs_grad(i)) c.AddInputGrad(i, grads[i]);
  }
}

void LayerNormGradient(GradientContext& c) { AddGradients(c, OpKind::kLayerNormGrad, 2); }
void RmsNormGradient(GradientContext& c) { AddGradients(c, OpKind::kRmsNormGrad, 1); }

double Flops(const OpCall& call, const std::vector<TensorType>&) {
  return 8.0 * static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> RowNormDefs() {
  return {{.kind = OpKind::kLayerNorm,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat, Role::kFloat},
           .optional_inputs = 2,
           .output_suffixes = {"", ".mean", ".inverse_std"},
           .infer = InferLayerNorm,
           .gradient = LayerNormGradient,
           .flops = Flops},
          {.kind = OpKind::kLayerNormGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kFloat, Role::kFloat, Role::kFloat, Role::kData},
           .optional_inputs = 2,
           .output_suffixes = {"", "_scale", "_bias"},
           .infer = InferLayerNormGrad,
           .flops = Flops},
          {.kind = OpKind::kRmsNorm,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat},
           .optional_inputs = 1,
           .output_suffixes = {"", ".inverse_rms"},
           .infer = InferRmsNorm,
           .gradient = RmsNormGradient,
           .flops = Flops},
          {.kind = OpKind::kRmsNormGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kFloat, Role::kFloat, Role::kData},
           .optional_inputs = 2,
           .output_suffixes = {"", "_scale"},
           .infer = InferRmsNormGrad,
           .flops = Flops}};
}

}  // namespace ampd::ops
