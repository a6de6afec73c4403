#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferArgmaxEqual(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireRank(OpKind::kArgmaxEqual, call, 0, 2));
  AMPD_RETURN_IF_ERROR(RequireShape(OpKind::kArgmaxEqual, call, 1, {call.inputs[0].shape[0]}));
  outputs->push_back({DType::kF32, {call.inputs[0].shape[0]}});
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> ArgmaxEqualDefs() {
  return {{.kind = OpKind::kArgmaxEqual,
           .precision = PrecisionClass::kDeny,
           .inputs = {Role::kData, Role::kIndex},
           .output_suffixes = {""},
           .infer = InferArgmaxEqual}};
}

}  // namespace ampd::ops
