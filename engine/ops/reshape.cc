#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferReshape(const OpCall& call, std::vector<TensorType>* outputs) {
  const Shape shape = ToShape(call.attributes.Ints("shape"));
  for (int64_t extent : shape) {
    if (extent < 1)
      return BadNode(OpKind::kReshape, call, absl::StrCat("shape ", ShapeString(shape), " has an extent below 1"));
  }
  if (NumElements(shape) != NumElements(call.inputs[0].shape)) {
    return BadNode(
        OpKind::kReshape, call,
        absl::StrCat("shape ", ShapeString(call.inputs[0].shape), " does not fit into ", ShapeString(shape)));
  }
  outputs->push_back({call.inputs[0].dtype, shape});
  return absl::OkStatus();
}

void ReshapeGradient(GradientContext& c) {
  ir::Attributes back{{"shape", ToInts(c.input_type(0).shape)}};
  c.AddInputGrad(0, c.Emit(OpKind::kReshape, {c.output_grad(0)}, back, "grad")[0]);
}

double NoFlops(const OpCall&, const std::vector<TensorType>&) { return 0; }

}  // namespace

std::vector<OpDef> ReshapeDefs() {
  return {{.kind = OpKind::kReshape,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kNumber},
           .output_suffixes = {""},
           .infer = InferReshape,
           .gradient = ReshapeGradient,
           .flops = NoFlops,
           .is_view = true}};
}

}  // namespace ampd::ops
