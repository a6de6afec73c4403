#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status CheckGroups(OpKind op, const OpCall& call, const Shape& x, int64_t* groups) {
  AMPD_RETURN_IF_ERROR(ReadGroups(op, call, groups));
  if (x.size() < 2) return BadNode(op, call, absl::StrCat("needs [batch, ..., channels], has ", ShapeString(x)));
  if (NumElements(x) == 0) return BadNode(op, call, absl::StrCat("has no elements, ", ShapeString(x)));
  if (x.back() % *groups == 0) return absl::OkStatus();
  return BadNode(op, call, absl::StrCat(x.back(), " channels are not whole ", *groups, " groups"));
}

absl::Status InferGroupNorm(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kGroupNorm;
  const Shape& x = call.inputs[0].shape;
  int64_t groups = 1;
  AMPD_RETURN_IF_ERROR(CheckGroups(kOp, call, x, &groups));
  const double epsilon = call.attributes.Double("epsilon", -1);
  if (!(epsilon >= 0 && epsilon <= 1)) {
    return BadNode(kOp, call, absl::StrCat("epsilon is ", epsilon, ", must be in [0, 1]"));
  }
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, static_cast<int>(i), {x.back()}));
  }
  *outputs = {call.inputs[0], {DType::kF32, {x[0], groups}}, {DType::kF32, {x[0], groups}}};
  return absl::OkStatus();
}

absl::Status InferGroupNormGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kGroupNormGrad;
  const Shape& x = call.inputs[1].shape;
  int64_t groups = 1;
  AMPD_RETURN_IF_ERROR(CheckGroups(kOp, call, x, &groups));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, x));
  for (int i : {2, 3}) AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, i, {x[0], groups}));
  outputs->push_back(call.inputs[1]);
  if (call.inputs.size() == 4) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 4, {x.back()}));
  for (int i = 0; i < 2; ++i) outputs->push_back({DType::kF32, {x.back()}});
  return absl::OkStatus();
}

void GroupNormGradient(GradientContext& c) {
  std::vector<ir::ValueId> inputs = {c.output_grad(0), c.input(0), c.output(1), c.output(2)};
  const int operands = static_cast<int>(c.node().inputs.size());
  if (operands > 1) inputs.push_back(c.input(1));
  const std::vector<ir::ValueId> grads = c.Emit(OpKind::kGroupNormGrad, inputs, c.node().attributes, "grad");
  for (int i = 0; i < operands; ++i) {
    if (c.needs_grad(i)) c.AddInputGrad(i, grads[i]);
  }
}

double Flops(const OpCall& call, const std::vector<TensorType>&) {
  return 8.0 * static_cast<double>(NumElements(call.inputs[0].shape));
}

}  // namespace

std::vector<OpDef> GroupNormDefs() {
  return {{.kind = OpKind::kGroupNorm,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kFloat, Role::kFloat},
           .optional_inputs = 2,
           .output_suffixes = {"", ".mean", ".inverse_std"},
           .infer = InferGroupNorm,
           .gradient = GroupNormGradient,
           .flops = Flops},
          {.kind = OpKind::kGroupNormGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kData, Role::kData, Role::kFloat, Role::kFloat, Role::kFloat},
           .optional_inputs = 1,
           .output_suffixes = {"", "_scale", "_bias"},
           .infer = InferGroupNormGrad,
           .flops = Flops}};
}

}  // namespace ampd::ops
