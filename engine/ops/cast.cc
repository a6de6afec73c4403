#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferCast(const OpCall& call, std::vector<TensorType>* outputs) {
  const std::string to = call.attributes.String("dtype");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    if (absl::string_view(to) != DTypeName(dtype)) continue;
    outputs->push_back({dtype, call.inputs[0].shape});
    return absl::OkStatus();
  }
  return BadNode(OpKind::kCast, call, absl::StrCat("dtype is \"", to, "\", needs f32, f16, bf16, e4m3fn or e5m2"));
}

void CastGradient(GradientContext& c) {
  const ir::Value& input = c.graph().values[c.input(0)];
  const DType from = c.graph().type(c.output_grad(0)).dtype;
  // A parameter's gradient goes to the fp32 arena, which takes any dtype: a cast before it would only cost memory.
  if (input.kind == ir::ValueKind::kParameter || from == input.type.dtype) {
    c.AddInputGrad(0, c.output_grad(0));
    return;
  }
  ir::Attributes to{{"dtype", std::string(DTypeName(input.type.dtype))}};
  c.AddInputGrad(0, c.Emit(OpKind::kCast, {c.output_grad(0)}, to, "grad")[0]);
}

}  // namespace

std::vector<OpDef> CastDefs() {
  return {{.kind = OpKind::kCast,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kAny},
           .output_suffixes = {""},
           .infer = InferCast,
           .gradient = CastGradient}};
}

}  // namespace ampd::ops
