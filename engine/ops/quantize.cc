#include <algorithm>

#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status Float8Of(OpKind op, const OpCall& call, DType* dtype) {
  const std::string name = call.attributes.String("dtype");
  for (DType f8 : {DType::kF8E4M3, DType::kF8E5M2}) {
    if (absl::string_view(name) != DTypeName(f8)) continue;
    *dtype = f8;
    return absl::OkStatus();
  }
  return BadNode(op, call, absl::StrCat("dtype is \"", name, "\", needs e4m3fn or e5m2"));
}

absl::Status RequireScale(OpKind op, const OpCall& call, int i) {
  if (call.inputs[i] == TensorType{DType::kF32, {}}) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat("input ", i, " must be f32[], the scale"));
}

absl::Status InferQuantize(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(RequireScale(OpKind::kQuantize, call, 1));
  DType dtype;
  AMPD_RETURN_IF_ERROR(Float8Of(OpKind::kQuantize, call, &dtype));
  const Shape& shape = call.inputs[0].shape;
  outputs->push_back({dtype, shape});
  if (call.attributes.Bool("amax")) outputs->push_back({DType::kF32, {}});
  if (!call.attributes.Bool("turned")) return absl::OkStatus();
  if (!call.attributes.Bool("amax") || shape.size() < 2) {
    return BadNode(OpKind::kQuantize, call, "turned codes need amax, and an input of two axes or more");
  }
  outputs->push_back({dtype, {shape.back(), NumElements(shape) / std::max<int64_t>(shape.back(), 1)}});
  return absl::OkStatus();
}

absl::Status InferDequantize(const OpCall& call, std::vector<TensorType>* outputs) {
  for (int i : {1, 2}) AMPD_RETURN_IF_ERROR(RequireScale(OpKind::kDequantize, call, i));
  const std::string name = call.attributes.String("dtype");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (absl::string_view(name) == DTypeName(dtype)) outputs->push_back({dtype, call.inputs[0].shape});
  }
  if (!outputs->empty()) return absl::OkStatus();
  return BadNode(OpKind::kDequantize, call, absl::StrCat("dtype is \"", name, "\", needs f32, f16 or bf16"));
}

absl::Status InferAmaxUpdate(const OpCall& call, std::vector<TensorType>*) {
  constexpr OpKind kOp = OpKind::kAmaxUpdate;
  DType dtype;
  AMPD_RETURN_IF_ERROR(Float8Of(kOp, call, &dtype));
  const TensorType& history = call.inputs[1];
  if (history.dtype != DType::kF32 || history.shape.size() != 1 || history.shape[0] < 1) {
    return BadNode(kOp, call, "input 1 must be f32[n], the history");
  }
  if (call.inputs[2] != TensorType{DType::kI64, {}}) return BadNode(kOp, call, "input 2 must be i64[], the count");
  const int64_t margin = call.attributes.Int("margin");
  if (margin < 0 || margin > 64) return BadNode(kOp, call, absl::StrCat("margin is ", margin, ", must be in [0, 64]"));
  return RequireScale(kOp, call, 3);
}

}  // namespace

std::vector<OpDef> QuantizeDefs() {
  return {{.kind = OpKind::kQuantize,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kAny, Role::kState},
           .output_suffixes = {"", ".amax", ".turned"},
           .infer = InferQuantize},
          {.kind = OpKind::kDequantize,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kFloat, Role::kState, Role::kState},
           .output_suffixes = {""},
           .infer = InferDequantize},
          {.kind = OpKind::kAmaxUpdate,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kAny, Role::kState, Role::kState, Role::kState},
           .infer = InferAmaxUpdate,
           .has_effects = true}};
}

}  // namespace ampd::ops
