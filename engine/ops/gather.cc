// Choosing elements by i32 indices. A negative index counts from the end of its axis; one outside picks NaN (floats) or
// 0, and gets no gradient.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

Shape Gathered(const Shape& data, const Shape& indices, size_t axis) {
  Shape shape(data.begin(), data.begin() + static_cast<int64_t>(axis));
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + static_cast<int64_t>(axis) + 1, data.end());
  return shape;
}

absl::Status InferGather(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape& data = call.inputs[0].shape;
  size_t axis;
  AMPD_RETURN_IF_ERROR(RequireAxis(OpKind::kGather, call, "axis", 0, data.size(), &axis));
  outputs->push_back({call.inputs[0].dtype, Gathered(data, call.inputs[1].shape, axis)});
  return absl::OkStatus();
}

absl::Status InferGatherGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kGatherGrad;
  const std::vector<int64_t> given = call.attributes.Ints("shape");
  std::vector<int64_t> shape;
  AMPD_RETURN_IF_ERROR(RequireInts(kOp, call, "shape", given.size(), 1, &shape));
  size_t axis;
  AMPD_RETURN_IF_ERROR(RequireAxis(kOp, call, "axis", 0, shape.size(), &axis));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, Gathered(ToShape(shape), call.inputs[1].shape, axis)));
  outputs->push_back({call.inputs[0].dtype, ToShape(shape)});
  return absl::OkStatus();
}

void GatherGradient(GradientContext& c) {
  ir::Attributes attributes = c.node().attributes;
  attributes.Set("shape", ToInts(c.input_type(0).shape));
  c.AddInputGrad(0, c.Emit(OpKind::kGatherGrad, {c.output_grad(0), c.input(1)}, attributes, "grad")[0]);
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

double GradientFlops(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> GatherDefs() {
  return {{.kind = OpKind::kGather,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kNumber, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferGather,
           .gradient = GatherGradient,
           .flops = NoFlops},
          {.kind = OpKind::kGatherGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferGatherGrad,
           .flops = GradientFlops}};
}

}  // namespace ampd::ops
