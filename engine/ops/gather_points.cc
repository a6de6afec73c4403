// Choosing single elements or blocks by i32 indices: gather_elements, gather_nd. Indices as in gather.cc.
#include <algorithm>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// The attribute `shape` of gradient ops: of what was gathered from.
absl::Status DataShape(OpKind op, const OpCall& call, Shape* data) {
  const std::vector<int64_t> given = call.attributes.Ints("shape");
  std::vector<int64_t> shape;
  AMPD_RETURN_IF_ERROR(RequireInts(op, call, "shape", given.size(), 1, &shape));
  *data = ToShape(shape);
  return absl::OkStatus();
}

// Indices [..] that lie within `data` but for the axis.
absl::Status CheckElements(OpKind op, const OpCall& call, const Shape& data) {
  const Shape& indices = call.inputs[1].shape;
  size_t axis;
  AMPD_RETURN_IF_ERROR(RequireAxis(op, call, "axis", 0, data.size(), &axis));
  bool fits = indices.size() == data.size();
  for (size_t d = 0; fits && d < data.size(); ++d) fits = d == axis || indices[d] <= data[d];
  if (fits) return absl::OkStatus();
  return BadNode(op, call,
                 absl::StrCat("indices of shape ", ShapeString(indices), " do not lie within ", ShapeString(data),
                              " beside axis ", axis));
}

absl::Status InferElements(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckElements(OpKind::kGatherElements, call, call.inputs[0].shape));
  outputs->push_back({call.inputs[0].dtype, call.inputs[1].shape});
  return absl::OkStatus();
}

absl::Status InferElementsGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kGatherElementsGrad;
  Shape data;
  AMPD_RETURN_IF_ERROR(DataShape(kOp, call, &data));
  AMPD_RETURN_IF_ERROR(CheckElements(kOp, call, data));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, call.inputs[1].shape));
  outputs->push_back({call.inputs[0].dtype, data});
  return absl::OkStatus();
}

// Indices [batch..., n..., k] into data [batch..., k axes, block...] give [batch..., n..., block...].
absl::Status NdShape(OpKind op, const OpCall& call, const Shape& data, Shape* shape) {
  const Shape& indices = call.inputs[1].shape;
  const int64_t batch = call.attributes.Int("batch_dims");
  const int64_t ranks = static_cast<int64_t>(std::min(data.size(), indices.size()));
  bool fits = batch >= 0 && batch < ranks;
  for (int64_t d = 0; fits && d < batch; ++d) fits = data[d] == indices[d];
  fits = fits && indices.back() >= 1 && indices.back() <= static_cast<int64_t>(data.size()) - batch;
  if (!fits) {
    return BadNode(op, call,
                   absl::StrCat("indices of shape ", ShapeString(indices), " do not fit data of shape ",
                                ShapeString(data), " with batch_dims ", batch));
  }
  shape->assign(indices.begin(), indices.end() - 1);
  shape->insert(shape->end(), data.begin() + batch + indices.back(), data.end());
  return absl::OkStatus();
}

absl::Status InferNd(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(NdShape(OpKind::kGatherNd, call, call.inputs[0].shape, &shape));
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

absl::Status InferNdGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kGatherNdGrad;
  Shape data, shape;
  AMPD_RETURN_IF_ERROR(DataShape(kOp, call, &data));
  AMPD_RETURN_IF_ERROR(NdShape(kOp, call, data, &shape));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, shape));
  outputs->push_back({call.inputs[0].dtype, data});
  return absl::OkStatus();
}

template <OpKind kGrad>
void Scattered(GradientContext& c) {
  ir::Attributes attributes = c.node().attributes;
  attributes.Set("shape", ToInts(c.input_type(0).shape));
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.input(1)}, attributes, "grad")[0]);
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

double GradientFlops(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

using Infer = absl::Status (*)(const OpCall&, std::vector<TensorType>*);

OpDef Forward(OpKind op, Infer infer, void (*gradient)(GradientContext&)) {
  return {.kind = op,
          .precision = PrecisionClass::kInfer,
          .inputs = {Role::kNumber, Role::kIndex},
          .output_suffixes = {""},
          .infer = infer,
          .gradient = gradient,
          .flops = NoFlops};
}

OpDef Gradient(OpKind op, Infer infer) {
  return {.kind = op,
          .precision = PrecisionClass::kInfer,
          .inputs = {Role::kData, Role::kIndex},
          .output_suffixes = {""},
          .infer = infer,
          .flops = GradientFlops};
}

}  // namespace

std::vector<OpDef> GatherPointsDefs() {
  return {Forward(OpKind::kGatherElements, InferElements, Scattered<OpKind::kGatherElementsGrad>),
          Gradient(OpKind::kGatherElementsGrad, InferElementsGrad),
          Forward(OpKind::kGatherNd, InferNd, Scattered<OpKind::kGatherNdGrad>),
          Gradient(OpKind::kGatherNdGrad, InferNdGrad)};
}

}  // namespace ampd::ops
