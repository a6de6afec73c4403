// Ops that move elements and change none: of every dtype.
#include <algorithm>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;
using Ints = std::vector<int64_t>;

absl::Status InferTranspose(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape& x = call.inputs[0].shape;
  Ints perm;
  AMPD_RETURN_IF_ERROR(RequireInts(OpKind::kTranspose, call, "perm", x.size(), 0, &perm));
  Shape shape(x.size(), 0);
  for (size_t d = 0; d < perm.size(); ++d) {
    if (perm[d] >= static_cast<int64_t>(x.size()) || std::count(perm.begin(), perm.end(), perm[d]) != 1) {
      return BadNode(OpKind::kTranspose, call,
                     absl::StrCat("perm is ", ShapeString(perm), ", must hold each of the ", x.size(), " axes once"));
    }
    shape[d] = x[perm[d]];
  }
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

void TransposeGradient(GradientContext& c) {
  const Ints perm = c.node().attributes.Ints("perm");
  Ints inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) inverse[perm[d]] = static_cast<int64_t>(d);
  c.AddInputGrad(0, c.Emit(OpKind::kTranspose, {c.output_grad(0)}, {{"perm", inverse}}, "grad")[0]);
}

// Elements that starts, ends and steps pick along each axis of `x`.
absl::Status SliceExtents(OpKind op, const OpCall& call, const Shape& x, Shape* shape) {
  const Ints starts = call.attributes.Ints("starts"), ends = call.attributes.Ints("ends"),
             steps = call.attributes.Ints("steps");
  if (starts.size() != x.size() || ends.size() != x.size() || steps.size() != x.size()) {
    return BadNode(op, call,
                   absl::StrCat("starts, ends and steps need ", x.size(), " numbers each, have ", starts.size(), ", ",
                                ends.size(), " and ", steps.size()));
  }
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t start = starts[d], end = ends[d], step = steps[d], extent = x[d];
    const bool forward = step > 0 && start >= 0 && start < end && end <= extent;
    const bool backward = step < 0 && end >= -1 && end < start && start < extent;
    if (!forward && !backward) {
      return BadNode(op, call,
                     absl::StrCat("axis ", d, " of extent ", extent, " is cut from ", start, " to ", end, " by ", step,
                                  ", which picks nothing or reaches outside"));
    }
    const uint64_t length = static_cast<uint64_t>(forward ? end - start : start - end);
    const uint64_t stride = forward ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
    shape->push_back(static_cast<int64_t>((length - 1) / stride + 1));
  }
  return absl::OkStatus();
}

absl::Status InferSlice(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(SliceExtents(OpKind::kSlice, call, call.inputs[0].shape, &shape));
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

absl::Status InferSliceGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  Ints extents;
  const size_t rank = call.inputs[0].shape.size();
  AMPD_RETURN_IF_ERROR(RequireInts(OpKind::kSliceGrad, call, "shape", rank, 1, &extents));
  Shape cut;
  AMPD_RETURN_IF_ERROR(SliceExtents(OpKind::kSliceGrad, call, ToShape(extents), &cut));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kSliceGrad, call, 0, cut));
  outputs->push_back({call.inputs[0].dtype, ToShape(extents)});
  return absl::OkStatus();
}

void SliceGradient(GradientContext& c) {
  ir::Attributes attributes = c.node().attributes;
  attributes.Set("shape", ToInts(c.input_type(0).shape));
  c.AddInputGrad(0, c.Emit(OpKind::kSliceGrad, {c.output_grad(0)}, attributes, "grad")[0]);
}

absl::Status InferConcat(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape = call.inputs[0].shape;
  size_t axis;
  AMPD_RETURN_IF_ERROR(RequireAxis(OpKind::kConcat, call, "axis", 0, shape.size(), &axis));
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    Shape other = call.inputs[i].shape;
    const int64_t extent = axis < other.size() ? other[axis] : 0;
    if (axis < other.size()) other[axis] = shape[axis];
    if (other != shape) {
      return BadNode(OpKind::kConcat, call,
                     absl::StrCat("input ", i, " has shape ", ShapeString(call.inputs[i].shape), ", does not continue ",
                                  ShapeString(call.inputs[0].shape), " along axis ", axis));
    }
    shape[axis] += extent;
  }
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

void ConcatGradient(GradientContext& c) {
  const Shape& whole = c.graph().type(c.output(0)).shape;
  const size_t axis = AxisOf(c.node().attributes, "axis", 0, whole.size());
  Ints starts(whole.size(), 0), ends = ToInts(whole);
  const Ints steps(whole.size(), 1);
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const int n = static_cast<int>(i);
    ends[axis] = starts[axis] + c.input_type(n).shape[axis];
    if (c.needs_grad(n)) {
      c.AddInputGrad(n, c.Emit(OpKind::kSlice, {c.output_grad(0)},
                               {{"starts", starts}, {"ends", ends}, {"steps", steps}}, absl::StrCat("grad_", i))[0]);
    }
    starts[axis] = ends[axis];
  }
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

OpDef Movement(OpKind kind, absl::Status (*infer)(const OpCall&, std::vector<TensorType>*),
               void (*gradient)(GradientContext&)) {
  return {.kind = kind,
          .precision = PrecisionClass::kInfer,
          .inputs = {Role::kNumber},
          .output_suffixes = {""},
          .infer = infer,
          .gradient = gradient,
          .flops = NoFlops};
}

}  // namespace

std::vector<OpDef> MovementDefs() {
  OpDef concat = Movement(OpKind::kConcat, InferConcat, ConcatGradient);
  concat.variadic = true;
  return {Movement(OpKind::kTranspose, InferTranspose, TransposeGradient),
          Movement(OpKind::kSlice, InferSlice, SliceGradient), Movement(OpKind::kSliceGrad, InferSliceGrad, nullptr),
          concat};
}

}  // namespace ampd::ops
