#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

absl::Status InferStep(const OpCall& call, size_t s, std::vector<TensorType>* types) {
  const ir::FusedStep& step = call.node->steps[s];
  const std::string what = absl::StrCat("step ", s, " (", ir::OpName(step.op), ")");
  if (!GetOpDef(step.op).elementwise) return BadNode(OpKind::kFused, call, absl::StrCat(what, " is not elementwise"));
  std::vector<TensorType> inputs;
  for (int32_t operand : step.operands) {
    if (operand < 0 || static_cast<size_t>(operand) >= types->size()) {
      return BadNode(OpKind::kFused, call, absl::StrCat(what, " reads operand ", operand, " of ", types->size()));
    }
    inputs.push_back((*types)[operand]);
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<TensorType> outputs,
                        InferTypes(step.op, {call.name, step.attributes, inputs}));
  if (outputs.size() != 1 || outputs[0].dtype != step.dtype) {
    return BadNode(OpKind::kFused, call, absl::StrCat(what, " is not one ", DTypeName(step.dtype)));
  }
  const size_t first = call.inputs.size();
  if (types->size() > first && (*types)[first].shape != outputs[0].shape) {
    return BadNode(OpKind::kFused, call,
                   absl::StrCat(what, " has shape ", ShapeString(outputs[0].shape), ", step 0 has ",
                                ShapeString((*types)[first].shape)));
  }
  types->push_back(outputs[0]);
  return absl::OkStatus();
}

absl::Status InferFused(const OpCall& call, std::vector<TensorType>* outputs) {
  if (call.node == nullptr || call.node->steps.empty()) return BadNode(OpKind::kFused, call, "has no steps");
  std::vector<TensorType> types = call.inputs;
  for (size_t s = 0; s < call.node->steps.size(); ++s) AMPD_RETURN_IF_ERROR(InferStep(call, s, &types));
  for (int32_t result : call.node->results) {
    if (result < 0 || static_cast<size_t>(result) >= call.node->steps.size()) {
      return BadNode(OpKind::kFused, call, absl::StrCat("result ", result, " of ", call.node->steps.size(), " steps"));
    }
    outputs->push_back(types[call.inputs.size() + static_cast<size_t>(result)]);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> FusedDefs() {
  return {{.kind = OpKind::kFused,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kState},
           .variadic = true,
           .output_suffixes = {""},
           .infer = InferFused}};
}

}  // namespace ampd::ops
