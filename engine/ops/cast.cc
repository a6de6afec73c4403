#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kOthers[] = {DType::kI32, DType::kI64, DType::kU8, DType::kBool};

absl::Status DTypeNamed(const OpCall& call, const char* attribute, bool floats_only, DType* dtype) {
  const std::string name = call.attributes.String(attribute);
  for (DType d : kFloats) {
    if (absl::string_view(name) == DTypeName(d)) return *dtype = d, absl::OkStatus();
  }
  for (DType d : kOthers) {
    if (!floats_only && absl::string_view(name) == DTypeName(d)) return *dtype = d, absl::OkStatus();
  }
  return BadNode(OpKind::kCast, call,
                 absl::StrCat(attribute, " is \"", name, "\", needs f32, f16, bf16, e4m3fn or e5m2",
                              floats_only ? "" : ", i32, i64, u8 or bool"));
}

absl::Status InferCast(const OpCall& call, std::vector<TensorType>* outputs) {
  DType dtype, gradient;
  AMPD_RETURN_IF_ERROR(DTypeNamed(call, "dtype", false, &dtype));
  if (call.attributes.Has("gradient_dtype")) {
    AMPD_RETURN_IF_ERROR(DTypeNamed(call, "gradient_dtype", true, &gradient));
  }
  outputs->push_back({dtype, call.inputs[0].shape});
  return absl::OkStatus();
}

ir::ValueId CastTo(GradientContext& c, ir::ValueId v, const std::string& dtype, const std::string& suffix) {
  if (absl::string_view(dtype) == DTypeName(c.graph().type(v).dtype)) return v;
  return c.Emit(OpKind::kCast, {v}, {{"dtype", dtype}}, suffix)[0];
}

void CastGradient(GradientContext& c) {
  const std::string through = c.node().attributes.String("gradient_dtype");
  ir::ValueId gradient = c.output_grad(0);
  if (!through.empty()) gradient = CastTo(c, gradient, through, "grad_rounded");
  c.AddInputGrad(0, CastTo(c, gradient, std::string(DTypeName(c.input_type(0).dtype)), "grad"));
}

}  // namespace

std::vector<OpDef> CastDefs() {
  return {{.kind = OpKind::kCast,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kNumber},
           .output_suffixes = {""},
           .infer = InferCast,
           .gradient = CastGradient,
           .elementwise = true}};
}

}  // namespace ampd::ops
