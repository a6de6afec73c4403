// What the multibox loss of single-shot detectors (Liu et al. 2016) decides: which priors stand for which boxes, and
// which of the others count. Neither has a gradient.
#include "engine/core/status.h"
#include "engine/ops/box_overlap.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Far above any detector's, and small enough for positions in 32 bits.
constexpr int64_t kMaxPriors = int64_t{1} << 24;
constexpr int64_t kMaxBoxes = 4096;

absl::Status CheckNumber(OpKind op, const OpCall& call, const char* name, double fallback, double low, double high) {
  const double value = call.attributes.Double(name, fallback);
  if (value >= low && value <= high) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(name, " is ", value, ", must be in [", low, ", ", high, "]"));
}

absl::Status InferMatchPriors(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kMatchPriors;
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 1, 2));
  const int64_t priors = call.inputs[0].shape[0], batch = call.inputs[1].shape[0];
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, {priors, 4}));
  const int64_t numbers = call.inputs[1].shape[1];
  if (numbers % kBoxNumbers != 0 || numbers / kBoxNumbers > kMaxBoxes || priors > kMaxPriors) {
    return BadNode(kOp, call,
                   absl::StrCat("needs at most ", kMaxPriors, " priors and targets of ", kBoxNumbers,
                                " numbers for each of at most ", kMaxBoxes, " boxes, has ", priors, " and ",
                                ShapeString(call.inputs[1].shape)));
  }
  AMPD_RETURN_IF_ERROR(CheckNumber(kOp, call, "threshold", 0.5, 0, 1));
  AMPD_RETURN_IF_ERROR(CheckNumber(kOp, call, "center_variance", 0.1, 1e-6, 1e6));
  AMPD_RETURN_IF_ERROR(CheckNumber(kOp, call, "size_variance", 0.2, 1e-6, 1e6));
  outputs->push_back({DType::kI32, {batch, priors}});
  outputs->push_back({DType::kF32, {batch, priors, 4}});
  outputs->push_back({DType::kF32, {batch, priors}});
  return absl::OkStatus();
}

absl::Status InferHardNegatives(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kHardNegatives;
  AMPD_RETURN_IF_ERROR(RequireRank(kOp, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 1, call.inputs[0].shape));
  if (call.inputs[0].shape[1] > kMaxPriors) {
    return BadNode(kOp, call, absl::StrCat("at most ", kMaxPriors, " priors, are ", call.inputs[0].shape[1]));
  }
  AMPD_RETURN_IF_ERROR(CheckNumber(kOp, call, "ratio", 3, 0, 1e6));
  outputs->push_back({DType::kI32, call.inputs[0].shape});
  return absl::OkStatus();
}

double MatchFlops(const OpCall& call, const std::vector<TensorType>&) {
  return 40.0 * static_cast<double>(NumElements(call.inputs[1].shape) / kBoxNumbers) *
         static_cast<double>(call.inputs[0].shape[0]);
}

}  // namespace

std::vector<OpDef> MultiboxDefs() {
  return {{.kind = OpKind::kMatchPriors,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kFloat, Role::kFloat},
           .output_suffixes = {"", "offsets", "shares"},
           .infer = InferMatchPriors,
           .flops = MatchFlops},
          {.kind = OpKind::kHardNegatives,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferHardNegatives}};
}

}  // namespace ampd::ops
