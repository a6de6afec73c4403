#include "engine/core/status.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

using ir::OpKind;
using ir::TensorType;

// Whether step `s` may be what it is: elementwise, or the product that a region begins with.
bool IsAllowed(OpKind node, size_t s, OpKind step) {
  const bool is_product = node == OpKind::kRegion && s == 0;
  return is_product ? GetOpDef(step).bilinear : GetOpDef(step).elementwise;
}

absl::Status InferStep(OpKind kind, const OpCall& call, size_t s, std::vector<TensorType>* types) {
  const ir::FusedStep& step = call.node->steps[s];
  const std::string what = absl::StrCat("step ", s, " (", ir::OpName(step.op), ")");
  if (!IsAllowed(kind, s, step.op)) {
    const bool first = kind == OpKind::kRegion && s == 0;
    return BadNode(kind, call, absl::StrCat(what, first ? " is no product" : " is not elementwise"));
  }
  std::vector<TensorType> inputs;
  for (int32_t operand : step.operands) {
    if (operand < 0 || static_cast<size_t>(operand) >= types->size()) {
      return BadNode(kind, call, absl::StrCat(what, " reads operand ", operand, " of ", types->size()));
    }
    inputs.push_back((*types)[operand]);
  }
  AMPD_ASSIGN_OR_RETURN(const std::vector<TensorType> outputs,
                        InferTypes(step.op, {call.name, step.attributes, inputs}));
  if (outputs.size() != 1 || outputs[0].dtype != step.dtype) {
    return BadNode(kind, call, absl::StrCat(what, " is not one ", DTypeName(step.dtype)));
  }
  const size_t first = call.inputs.size();
  if (types->size() > first && (*types)[first].shape != outputs[0].shape) {
    return BadNode(kind, call,
                   absl::StrCat(what, " has shape ", ShapeString(outputs[0].shape), ", step 0 has ",
                                ShapeString((*types)[first].shape)));
  }
  types->push_back(outputs[0]);
  return absl::OkStatus();
}

template <OpKind kKind>
absl::Status InferSteps(const OpCall& call, std::vector<TensorType>* outputs) {
  if (call.node == nullptr || call.node->steps.empty()) return BadNode(kKind, call, "has no steps");
  std::vector<TensorType> types = call.inputs;
  for (size_t s = 0; s < call.node->steps.size(); ++s) AMPD_RETURN_IF_ERROR(InferStep(kKind, call, s, &types));
  for (int32_t result : call.node->results) {
    if (result < 0 || static_cast<size_t>(result) >= call.node->steps.size()) {
      return BadNode(kKind, call, absl::StrCat("result ", result, " of ", call.node->steps.size(), " steps"));
    }
    outputs->push_back(types[call.inputs.size() + static_cast<size_t>(result)]);
  }
  return absl::OkStatus();
}

// The product's, and one an element for each step behind it.
double RegionFlops(const OpCall& call, const std::vector<TensorType>& outputs) {
  if (outputs.empty()) return 0;
  const ir::FusedStep& product = call.node->steps[0];
  std::vector<TensorType> inputs;
  for (int32_t operand : product.operands) inputs.push_back(call.inputs[static_cast<size_t>(operand)]);
  const TensorType result{product.dtype, outputs[0].shape};
  const double behind = static_cast<double>(call.node->steps.size() - 1);
  return GetOpDef(product.op).flops({call.name, product.attributes, inputs}, {result}) +
         behind * static_cast<double>(NumElements(outputs[0].shape));
}

}  // namespace

std::vector<OpDef> FusedDefs() {
  return {{.kind = OpKind::kFused,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kState},
           .variadic = true,
           .output_suffixes = {""},
           .infer = InferSteps<OpKind::kFused>},
          {.kind = OpKind::kRegion,
           .precision = PrecisionClass::kFixed,
           .inputs = {Role::kState},
           .variadic = true,
           .output_suffixes = {""},
           .infer = InferSteps<OpKind::kRegion>,
           .flops = RegionFlops}};
}

}  // namespace ampd::ops
