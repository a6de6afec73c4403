// Reductions over any axes. `axes` (negative count from the end; absent: all), `keepdims`.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status ReducedAxes(OpKind op, const OpCall& call, std::vector<bool>* reduced) {
  const int64_t rank = static_cast<int64_t>(call.inputs[0].shape.size());
  const std::vector<int64_t> axes = call.attributes.Ints("axes");
  reduced->assign(rank, !call.attributes.Has("axes"));
  for (int64_t axis : axes) {
    const bool valid = axis >= -rank && axis < rank;
    if (valid && !(*reduced)[axis < 0 ? axis + rank : axis]) {
      (*reduced)[axis < 0 ? axis + rank : axis] = true;
      continue;
    }
    return BadNode(
        op, call,
        absl::StrCat("axes are ", ShapeString(axes), ", each must be in [", -rank, ", ", rank, ") and stand once"));
  }
  return absl::OkStatus();
}

template <OpKind kOp>
absl::Status InferReduce(const OpCall& call, std::vector<TensorType>* outputs) {
  std::vector<bool> reduced;
  AMPD_RETURN_IF_ERROR(ReducedAxes(kOp, call, &reduced));
  Shape shape;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (!reduced[d]) shape.push_back(call.inputs[0].shape[d]);
    if (reduced[d] && call.attributes.Bool("keepdims")) shape.push_back(1);
  }
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

double InputFlops(const OpCall& call, const std::vector<TensorType>&) {
  return static_cast<double>(NumElements(call.inputs[0].shape));
}

// `v`, of the output's shape, with the reduced axes as extents of one.
ir::ValueId KeepAxes(GradientContext& c, ir::ValueId v, const std::string& suffix) {
  const std::vector<TensorType> inputs = {c.input_type(0)};
  std::vector<bool> reduced;
  if (v < 0 || !ReducedAxes(c.node().op, {c.node().name, c.node().attributes, inputs}, &reduced).ok()) return v;
  std::vector<int64_t> shape;
  for (size_t d = 0; d < reduced.size(); ++d) shape.push_back(reduced[d] ? 1 : inputs[0].shape[d]);
  if (ToShape(shape) == c.graph().type(v).shape) return v;
  return c.Emit(OpKind::kReshape, {v}, {{"shape", shape}}, suffix)[0];
}

ir::Attributes InputShape(GradientContext& c) { return {{"shape", ToInts(c.input_type(0).shape)}}; }

void SumGradient(GradientContext& c) {
  const ir::ValueId dy = KeepAxes(c, c.output_grad(0), "grad_axes");
  c.AddInputGrad(0, c.Emit(OpKind::kBroadcastTo, {dy}, InputShape(c), "grad")[0]);
}

void MeanGradient(GradientContext& c) {
  const ir::ValueId dy = KeepAxes(c, c.output_grad(0), "grad_axes");
  c.AddInputGrad(0, c.Emit(OpKind::kReduceMeanGrad, {dy}, InputShape(c), "grad")[0]);
}

ir::ValueId CastTo(GradientContext& c, ir::ValueId v, DType dtype, const std::string& suffix) {
  if (v < 0 || c.graph().type(v).dtype == dtype) return v;
  return c.Emit(OpKind::kCast, {v}, {{"dtype", std::string(DTypeName(dtype))}}, suffix)[0];
}

// Equal shares to all elements that are the extreme one; counted and divided in fp32.
void ExtremeGradient(GradientContext& c) {
  const DType dtype = c.input_type(0).dtype;
  const ir::ValueId y = KeepAxes(c, c.output(0), "grad_y_axes");
  const ir::ValueId dy = KeepAxes(c, c.output_grad(0), "grad_axes");
  const ir::ValueId chosen = c.Emit(OpKind::kEqual, {c.input(0), y}, {}, "grad_chosen")[0];
  ir::Attributes sum = c.node().attributes;
  sum.Set("keepdims", int64_t{1});
  const ir::ValueId ones = CastTo(c, chosen, DType::kF32, "grad_ones");
  const ir::ValueId count = c.Emit(OpKind::kReduceSum, {ones}, sum, "grad_count")[0];
  const ir::ValueId share = c.Emit(OpKind::kDiv, {CastTo(c, dy, DType::kF32, "grad_f32"), count}, {}, "grad_share")[0];
  c.AddInputGrad(0, c.Emit(OpKind::kWhereGrad, {chosen, CastTo(c, share, dtype, "grad_share_rounded")}, {}, "grad")[0]);
}

void ProdGradient(GradientContext& c) {
  const ir::ValueId y = KeepAxes(c, c.output(0), "grad_y_axes");
  const ir::ValueId dy = KeepAxes(c, c.output_grad(0), "grad_axes");
  c.AddInputGrad(0, c.Emit(OpKind::kReduceProdGrad, {dy, c.input(0), y}, {}, "grad")[0]);
}

// Whether `shape` broadcasts to `larger`.
bool Broadcasts(const Shape& shape, const Shape& larger) {
  if (shape.size() > larger.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t wide = larger[larger.size() - shape.size() + d];
    if (shape[d] != 1 && shape[d] != wide) return false;
  }
  return true;
}

// The attribute `shape`, with no extent below one.
absl::Status RequireExtents(OpKind op, const OpCall& call, Shape* shape) {
  *shape = ToShape(call.attributes.Ints("shape"));
  for (int64_t extent : *shape) {
    if (extent < 1) return BadNode(op, call, absl::StrCat("shape ", ShapeString(*shape), " has an extent below 1"));
  }
  return absl::OkStatus();
}

template <OpKind kOp>
absl::Status InferBroadcastTo(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(RequireExtents(kOp, call, &shape));
  if (!Broadcasts(call.inputs[0].shape, shape)) {
    return BadNode(
        kOp, call,
        absl::StrCat("shape ", ShapeString(call.inputs[0].shape), " does not broadcast to ", ShapeString(shape)));
  }
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

void BroadcastToGradient(GradientContext& c) { c.AddInputGrad(0, SumToInput(c, c.output_grad(0), 0, "grad")); }

absl::Status InferSumTo(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(RequireExtents(OpKind::kSumTo, call, &shape));
  if (!Broadcasts(shape, call.inputs[0].shape)) {
    return BadNode(
        OpKind::kSumTo, call,
        absl::StrCat("shape ", ShapeString(call.inputs[0].shape), " cannot be summed to ", ShapeString(shape)));
  }
  const std::string name = call.attributes.String("dtype");
  for (DType dtype : {DType::kF32, call.inputs[0].dtype}) {
    if (absl::string_view(name) != DTypeName(dtype)) continue;
    outputs->push_back({dtype, shape});
    return absl::OkStatus();
  }
  return BadNode(OpKind::kSumTo, call, absl::StrCat("dtype is \"", name, "\", needs f32 or the input's"));
}

absl::Status InferProdGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kReduceProdGrad;
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 2, call.inputs[0].shape));
  const Shape& x = call.inputs[1].shape;
  if (call.inputs[0].shape.size() != x.size() || !Broadcasts(call.inputs[0].shape, x)) {
    return BadNode(
        kOp, call,
        absl::StrCat("the gradient has shape ", ShapeString(call.inputs[0].shape), ", the input ", ShapeString(x)));
  }
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

template <OpKind kOp>
OpDef Reduce(PrecisionClass precision, Role role, void (*gradient)(GradientContext&)) {
  return {.kind = kOp,
          .precision = precision,
          .inputs = {role},
          .output_suffixes = {""},
          .infer = InferReduce<kOp>,
          .gradient = gradient,
          .flops = InputFlops};
}

}  // namespace

std::vector<OpDef> ReduceDefs() {
  constexpr PrecisionClass kDeny = PrecisionClass::kDeny, kInfer = PrecisionClass::kInfer;
  return {Reduce<OpKind::kReduceSum>(kDeny, Role::kNumber, SumGradient),
          Reduce<OpKind::kReduceMean>(kDeny, Role::kData, MeanGradient),
          Reduce<OpKind::kReduceProd>(kDeny, Role::kNumber, ProdGradient),
          Reduce<OpKind::kReduceMax>(kInfer, Role::kNumber, ExtremeGradient),
          Reduce<OpKind::kReduceMin>(kInfer, Role::kNumber, ExtremeGradient),
          {.kind = OpKind::kReduceMeanGrad,
           .precision = kDeny,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferBroadcastTo<OpKind::kReduceMeanGrad>},
          {.kind = OpKind::kReduceProdGrad,
           .precision = kDeny,
           .inputs = {Role::kData, Role::kData, Role::kData},
           .output_suffixes = {""},
           .infer = InferProdGrad},
          {.kind = OpKind::kSumTo,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kAny},
           .output_suffixes = {""},
           .infer = InferSumTo,
           .flops = InputFlops},
          {.kind = OpKind::kBroadcastTo,
           .precision = kInfer,
           .inputs = {Role::kNumber},
           .output_suffixes = {""},
           .infer = InferBroadcastTo<OpKind::kBroadcastTo>,
           .gradient = BroadcastToGradient}};
}

}  // namespace ampd::ops
