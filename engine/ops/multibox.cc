// The loss of single-shot detectors (Liu et al. 2016): which prior stands for which box, and what a prediction costs.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/multibox_elements.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// So that a prior's number fits in 32 bits with room to spare, and sums of counts in 64.
constexpr int64_t kMaxPriors = int64_t{1} << 30;
constexpr int64_t kMaxClasses = int64_t{1} << 20;

absl::Status CheckPriors(OpKind op, const OpCall& call, int64_t priors) {
  if (priors <= kMaxPriors) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(priors, " priors are too many, at most ", kMaxPriors));
}

absl::Status CheckPositive(OpKind op, const OpCall& call, const char* name, double fallback) {
  const double value = call.attributes.Double(name, fallback);
  if (value > 0) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(name, " is ", value, ", must be > 0"));
}

absl::Status InferMatch(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kMultiboxMatch;
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 1, 2));
  const Shape& priors = call.inputs[0].shape;
  const Shape& targets = call.inputs[1].shape;
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, {priors[0], kPriorNumbers}));
  AMPD_RETURN_IF_ERROR(CheckPriors(kOp, call, priors[0]));
  if (targets[1] % kBoxNumbers != 0 || targets[1] > kMaxPriors) {
    return BadNode(kOp, call, absl::StrCat("targets have shape ", ShapeString(targets), ", need [batch, boxes * 5]"));
  }
  const int64_t classes = call.attributes.Int("classes");
  if (classes < 1 || classes > kMaxClasses) {
    return BadNode(kOp, call, absl::StrCat("classes is ", classes, ", must be 1 to ", kMaxClasses));
  }
  const double threshold = call.attributes.Double("threshold", 0.5);
  if (!(threshold >= 0 && threshold <= 1)) {
    return BadNode(kOp, call, absl::StrCat("threshold is ", threshold, ", must be in [0, 1]"));
  }
  AMPD_RETURN_IF_ERROR(CheckPositive(kOp, call, "center_variance", 0.1));
  AMPD_RETURN_IF_ERROR(CheckPositive(kOp, call, "size_variance", 0.2));
  outputs->push_back({DType::kI32, {targets[0], priors[0]}});
  outputs->push_back({DType::kF32, {targets[0], priors[0], kOffsets}});
  return absl::OkStatus();
}

// What loss and gradient check alike; `prediction` is the first of prediction, classes and offsets.
absl::Status CheckLoss(OpKind op, const OpCall& call, int prediction) {
  AMPD_RETURN_IF_ERROR(RequireRank(op, call, prediction, 3));
  const Shape& p = call.inputs[prediction].shape;
  if (p[2] < kOffsets + 2 || p[2] > kOffsets + 1 + kMaxClasses) {
    return BadNode(op, call,
                   absl::StrCat("predictions have shape ", ShapeString(p), ", need [batch, priors, 5 + ",
                                "classes] of 1 to ", kMaxClasses, " classes"));
  }
  AMPD_RETURN_IF_ERROR(CheckPriors(op, call, p[1]));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, prediction + 1, {p[0], p[1]}));
  AMPD_RETURN_IF_ERROR(RequireShape(op, call, prediction + 2, {p[0], p[1], kOffsets}));
  for (const auto& [name, fallback] : {std::pair("negative_ratio", 3.0), std::pair("location_weight", 1.0)}) {
    const double value = call.attributes.Double(name, fallback);
    if (!(value >= 0 && value <= 1e6)) {
      return BadNode(op, call, absl::StrCat(name, " is ", value, ", must be in [0, 1e6]"));
    }
  }
  return absl::OkStatus();
}

absl::Status InferLoss(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckLoss(OpKind::kMultiboxLoss, call, 0));
  const Shape& p = call.inputs[0].shape;
  outputs->push_back({DType::kF32, {p[0]}});
  outputs->push_back({DType::kF32, {p[0], p[1]}});
  return absl::OkStatus();
}

absl::Status InferLossGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kMultiboxLossGrad;
  AMPD_RETURN_IF_ERROR(CheckLoss(kOp, call, 1));
  const Shape& p = call.inputs[1].shape;
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, {p[0]}));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 4, {p[0], p[1]}));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

// The choice of priors that count is not differentiated: they are those of the forward pass.
void LossGradient(GradientContext& c) {
  if (c.output_grad(0) < 0 || !c.needs_grad(0)) return;
  c.AddInputGrad(0,
                 c.Emit(OpKind::kMultiboxLossGrad, {c.output_grad(0), c.input(0), c.input(1), c.input(2), c.output(1)},
                        c.node().attributes, "grad")[0]);
}

double MatchFlops(const OpCall& call, const std::vector<TensorType>&) {
  const Shape& targets = call.inputs[1].shape;
  return 30.0 * static_cast<double>(call.inputs[0].shape[0]) * static_cast<double>(NumElements(targets) / kBoxNumbers);
}

// The predictions are the largest operand.
double LossFlops(const OpCall& call, const std::vector<TensorType>&) {
  const size_t prediction = call.inputs.size() > 3 ? 1 : 0;
  return 6.0 * static_cast<double>(NumElements(call.inputs[prediction].shape));
}

}  // namespace

std::vector<OpDef> MultiboxDefs() {
  return {{.kind = OpKind::kMultiboxMatch,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kFloat, Role::kFloat},
           .output_suffixes = {"", ":offsets"},
           .infer = InferMatch,
           .flops = MatchFlops},
          {.kind = OpKind::kMultiboxLoss,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex, Role::kFloat},
           .output_suffixes = {"", ":shares"},
           .infer = InferLoss,
           .gradient = LossGradient,
           .flops = LossFlops},
          {.kind = OpKind::kMultiboxLossGrad,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kData, Role::kIndex, Role::kFloat, Role::kFloat},
           .output_suffixes = {""},
           .infer = InferLossGrad,
           .flops = LossFlops}};
}

}  // namespace ampd::ops
