// Comparisons, logic and choice: what reads or writes bools, broadcast as numpy does.
#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

template <OpKind kOp>
absl::Status InferBool(const OpCall& call, std::vector<TensorType>* outputs) {
  Shape shape;
  AMPD_RETURN_IF_ERROR(BroadcastShape(kOp, call, 0, &shape));
  outputs->push_back({DType::kBool, shape});
  return absl::OkStatus();
}

// Condition first; the dtype is the others'.
template <OpKind kOp>
absl::Status InferChoice(const OpCall& call, std::vector<TensorType>* outputs) {
  const int64_t branch = call.attributes.Int("branch");
  if (branch != 0 && branch != 1) return BadNode(kOp, call, absl::StrCat("branch is ", branch, ", must be 0 or 1"));
  Shape shape;
  AMPD_RETURN_IF_ERROR(BroadcastShape(kOp, call, 0, &shape));
  outputs->push_back({call.inputs[1].dtype, shape});
  return absl::OkStatus();
}

void WhereGradient(GradientContext& c) {
  for (int branch : {0, 1}) {
    if (!c.needs_grad(1 + branch)) continue;
    const std::string suffix = branch == 0 ? "grad_a" : "grad_b";
    const ir::ValueId gradient = c.Emit(OpKind::kWhereGrad, {c.input(0), c.output_grad(0)},
                                        {{"branch", static_cast<int64_t>(branch)}}, suffix)[0];
    c.AddInputGrad(1 + branch, SumToInput(c, gradient, 1 + branch, suffix + "_sum"));
  }
}

template <OpKind kOp>
OpDef Bool(std::vector<Role> inputs) {
  return {.kind = kOp,
          .precision = PrecisionClass::kInfer,
          .inputs = std::move(inputs),
          .output_suffixes = {""},
          .infer = InferBool<kOp>,
          .elementwise = true};
}

}  // namespace

std::vector<OpDef> CompareDefs() {
  const std::vector<Role> numbers = {Role::kNumber, Role::kNumber}, bools = {Role::kBool, Role::kBool};
  return {Bool<OpKind::kEqual>(numbers),
          Bool<OpKind::kLess>(numbers),
          Bool<OpKind::kGreater>(numbers),
          Bool<OpKind::kLessEqual>(numbers),
          Bool<OpKind::kGreaterEqual>(numbers),
          Bool<OpKind::kLogicalAnd>(bools),
          Bool<OpKind::kLogicalOr>(bools),
          Bool<OpKind::kLogicalXor>(bools),
          Bool<OpKind::kLogicalNot>({Role::kBool}),
          Bool<OpKind::kIsNan>({Role::kData}),
          Bool<OpKind::kIsInf>({Role::kData}),
          {.kind = OpKind::kWhere,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kBool, Role::kNumber, Role::kNumber},
           .output_suffixes = {""},
           .infer = InferChoice<OpKind::kWhere>,
           .gradient = WhereGradient,
           .elementwise = true},
          {.kind = OpKind::kWhereGrad,
           .precision = PrecisionClass::kInfer,
           .inputs = {Role::kBool, Role::kData},
           .output_suffixes = {""},
           .infer = InferChoice<OpKind::kWhereGrad>,
           .elementwise = true}};
}

}  // namespace ampd::ops
