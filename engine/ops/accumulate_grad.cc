#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferAccumulateGrad(const OpCall& call, std::vector<TensorType>*) {
  return RequireShape(OpKind::kAccumulateGrad, call, 0, call.inputs[1].shape);
}

}  // namespace

std::vector<OpDef> AccumulateGradDefs() {
  return {{.kind = OpKind::kAccumulateGrad,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kAny, Role::kFloat},
           .infer = InferAccumulateGrad,
           .has_effects = true}};
}

}  // namespace ampd::ops
