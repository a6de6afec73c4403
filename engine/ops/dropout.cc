#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferDropout(const OpCall& call, std::vector<TensorType>* outputs) {
  const double rate = call.attributes.Double("rate", -1);
  if (!(rate >= 0 && rate < 1))
    return BadNode(OpKind::kDropout, call, absl::StrCat("rate is ", rate, ", must be in [0, 1)"));
  if (call.inputs[0].shape.empty()) return BadNode(OpKind::kDropout, call, "input has no batch axis");
  return SameAsFirst(call, outputs);
}

// The same stream and step give the same mask, so nothing is saved for the backward pass.
void DropoutGradient(GradientContext& c) {
  c.AddInputGrad(0, c.Emit(OpKind::kDropout, {c.output_grad(0)}, c.node().attributes, "grad")[0]);
}

}  // namespace

std::vector<OpDef> DropoutDefs() {
  return {{.kind = OpKind::kDropout,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData},
           .output_suffixes = {""},
           .infer = InferDropout,
           .gradient = DropoutGradient}};
}

}  // namespace ampd::ops
