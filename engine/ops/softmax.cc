#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status CheckAxis(OpKind op, const OpCall& call) {
  const int64_t axis = call.attributes.Int("axis", -1);
  const Shape& x = call.inputs[0].shape;
  if (axis < 0 || axis >= static_cast<int64_t>(x.size())) {
    return BadNode(op, call,
                   absl::StrCat("axis is ", axis, ", must be in 0 to ", x.size(), " - 1 of ", ShapeString(x)));
  }
  if (x[axis] > 0) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("has nothing along axis ", axis, " of ", ShapeString(x)));
}

template <OpKind kOp>
absl::Status Infer(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckAxis(kOp, call));
  if (call.inputs.size() > 1) AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 1, call.inputs[0].shape));
  return SameAsFirst(call, outputs);
}

template <OpKind kGrad>
void Gradient(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(kGrad, {c.output_grad(0), c.output(0)}, c.node().attributes, "grad")[0]);
}

double Flops(const OpCall& call, const std::vector<TensorType>&) {
  return 5.0 * static_cast<double>(NumElements(call.inputs[0].shape));
}

OpDef GradDef(OpKind kind, absl::Status (*infer)(const OpCall&, std::vector<TensorType>*)) {
  return {.kind = kind,
          .precision = PrecisionClass::kDeny,
          .inputs = {Role::kData, Role::kData},
          .output_suffixes = {""},
          .infer = infer,
          .flops = Flops};
}

}  // namespace

std::vector<OpDef> SoftmaxDefs() {
  OpDef softmax = {.kind = OpKind::kSoftmax,
                   .precision = PrecisionClass::kDeny,
                   .inputs = {Role::kData},
                   .output_suffixes = {""},
                   .infer = Infer<OpKind::kSoftmax>,
                   .gradient = Gradient<OpKind::kSoftmaxGrad>,
                   .flops = Flops};
  OpDef log_softmax = softmax;
  log_softmax.kind = OpKind::kLogSoftmax;
  log_softmax.infer = Infer<OpKind::kLogSoftmax>;
  log_softmax.gradient = Gradient<OpKind::kLogSoftmaxGrad>;
  return {softmax, GradDef(OpKind::kSoftmaxGrad, Infer<OpKind::kSoftmaxGrad>), log_softmax,
          GradDef(OpKind::kLogSoftmaxGrad, Infer<OpKind::kLogSoftmaxGrad>)};
}

}  // namespace ampd::ops
