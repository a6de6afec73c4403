#include "engine/ops/op_def.h"

#include <set>
#include <utility>

#include "engine/core/status.h"
#include "engine/ir/printer.h"
#include "engine/ir/zeros.h"
#include "engine/ops/rules.h"

namespace ampd::ops {
namespace {

absl::Status CheckInputCount(const OpDef& def, const OpCall& call) {
  const size_t least = def.inputs.size() - static_cast<size_t>(def.optional_inputs);
  const size_t have = call.inputs.size();
  if (have >= least && (have <= def.inputs.size() || def.variadic)) return absl::OkStatus();
  std::string takes = absl::StrCat(least);
  if (def.variadic) {
    takes += " or more";
  } else if (def.optional_inputs > 0) {
    absl::StrAppend(&takes, " to ", def.inputs.size());
  }
  return BadNode(def.kind, call, absl::StrCat("has ", have, " inputs, takes ", takes));
}

absl::Status CheckRoles(const OpDef& def, const OpCall& call) {
  AMPD_RETURN_IF_ERROR(CheckInputCount(def, call));
  int first_data = -1;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const DType dtype = call.inputs[i].dtype;
    const auto wrong = [&](absl::string_view wanted) {
      return BadNode(def.kind, call, absl::StrCat("input ", i, " is ", DTypeName(dtype), ", must be ", wanted));
    };
    const Role role = RoleOf(def, i);
    switch (role) {
      case Role::kData:
      case Role::kNumber:
        if (role == Role::kData && !IsFloat(dtype)) return wrong("a float");
        if (def.precision == PrecisionClass::kDeny && IsFloat(dtype) && dtype != DType::kF32) return wrong("f32");
        if (first_data >= 0 && dtype != call.inputs[first_data].dtype &&
            !(def.bilinear && IsF8(dtype) && IsF8(call.inputs[first_data].dtype))) {
          return wrong(absl::StrCat(DTypeName(call.inputs[first_data].dtype), " as input ", first_data));
        }
        if (first_data < 0) first_data = static_cast<int>(i);
        break;
      case Role::kFloat:
        if (dtype != DType::kF32) return wrong("f32");
        break;
      case Role::kWide:
        if (dtype != DType::kF32 && !IsHalf(dtype)) return wrong("f32, f16 or bf16");
        break;
      case Role::kIndex:
        if (dtype != DType::kI32) return wrong("i32");
        break;
      case Role::kBool:
        if (dtype != DType::kBool) return wrong("bool");
        break;
      case Role::kMask:
        if (dtype != DType::kBool && dtype != DType::kF32) return wrong("bool or f32");
        break;
      case Role::kAny:
        if (!IsFloat(dtype)) return wrong("a float");
        break;
      case Role::kState:
        break;
    }
  }
  return absl::OkStatus();
}

// No tensor has more elements than this: sizes in bytes, and sums of a few of them, stay below 2^63.
constexpr int64_t kMaxElements = int64_t{1} << 48;

absl::Status CheckSizes(const OpDef& def, const OpCall& call, const std::vector<ir::TensorType>& outputs) {
  for (const ir::TensorType& type : outputs) {
    int64_t n = 1;
    for (int64_t extent : type.shape) {
      if (extent < 1 || n > kMaxElements / extent) {
        return BadNode(def.kind, call,
                       absl::StrCat("an output of shape ", ShapeString(type.shape), " is empty or too large"));
      }
      n *= extent;
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyValues(const ir::Graph& graph) {
  for (const ir::Value& value : graph.values) {
    const bool parameter = value.kind == ir::ValueKind::kParameter || value.kind == ir::ValueKind::kPublished;
    const size_t slots = parameter ? graph.parameters.size() : graph.states.size();
    if ((parameter || value.kind == ir::ValueKind::kState) &&
        (value.slot < 0 || static_cast<size_t>(value.slot) >= slots)) {
      return absl::InternalError(absl::StrCat("value ", value.name, " has slot ", value.slot, " of ", slots));
    }
  }
  for (const ir::Value& value : graph.values) {
    if (value.kind != ir::ValueKind::kConstant || ir::IsZeros(value)) continue;
    if (value.data == nullptr || value.type != ir::TensorType{value.data->dtype(), value.data->shape()}) {
      return absl::InternalError(absl::StrCat("constant ", value.name, " has no data of its type"));
    }
  }
  for (const auto& [name, v] : graph.outputs) {
    if (v < 0 || static_cast<size_t>(v) >= graph.values.size()) {
      return absl::InternalError(absl::StrCat("output ", name, " is value ", v, " of ", graph.values.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyNode(const ir::Graph& graph, const ir::Node& node, std::vector<bool>* defined) {
  std::vector<ir::TensorType> inputs;
  for (ir::ValueId v : node.inputs) {
    if (v < 0 || static_cast<size_t>(v) >= graph.values.size() || !(*defined)[v]) {
      return absl::InternalError(absl::StrCat("node ", node.name, " reads value ", v, " before it is written"));
    }
    inputs.push_back(graph.type(v));
  }
  absl::StatusOr<std::vector<ir::TensorType>> types = InferTypes(node.op, {node.name, node.attributes, inputs, &node});
  if (!types.ok()) return absl::InternalError(types.status().message());
  if (types->size() != node.outputs.size()) {
    return absl::InternalError(
        absl::StrCat("node ", node.name, " has ", node.outputs.size(), " outputs, its rule gives ", types->size()));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const ir::ValueId v = node.outputs[i];
    if (v < 0 || static_cast<size_t>(v) >= graph.values.size() || (*defined)[v]) {
      return absl::InternalError(absl::StrCat("node ", node.name, " writes value ", v, " that has a value already"));
    }
    if (graph.type(v) != (*types)[i]) {
      return absl::InternalError(absl::StrCat("node ", node.name, " output ", i, " is ", ir::TypeString(graph.type(v)),
                                              ", its rule gives ", ir::TypeString((*types)[i])));
    }
    (*defined)[v] = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ir::TensorType>> InferTypes(ir::OpKind kind, const OpCall& call) {
  const OpDef& def = GetOpDef(kind);
  AMPD_RETURN_IF_ERROR(CheckRoles(def, call));
  std::vector<ir::TensorType> outputs;
  if (!def.bilinear || !IsF8(call.inputs[0].dtype)) {
    AMPD_RETURN_IF_ERROR(def.infer(call, &outputs));
  } else {
    std::vector<ir::TensorType> inputs = call.inputs;
    for (ir::TensorType& type : inputs) type.dtype = DType::kF32;
    AMPD_RETURN_IF_ERROR(def.infer({call.name, call.attributes, inputs}, &outputs));
  }
  AMPD_RETURN_IF_ERROR(CheckSizes(def, call, outputs));
  return outputs;
}

Cost CostOf(ir::OpKind kind, const OpCall& call, const std::vector<ir::TensorType>& outputs) {
  const OpDef& def = GetOpDef(kind);
  Cost cost;
  for (const ir::TensorType& t : outputs) cost.flops += static_cast<double>(NumElements(t.shape));
  if (def.flops != nullptr) cost.flops = def.flops(call, outputs);
  if (def.is_view) return cost;
  for (const auto* types : {&call.inputs, &outputs}) {
    for (const ir::TensorType& t : *types) cost.bytes += static_cast<double>(NumElements(t.shape) * SizeOf(t.dtype));
  }
  return cost;
}

absl::StatusOr<std::vector<ir::ValueId>> Emit(ir::Graph* graph, ir::Node node) {
  std::vector<ir::TensorType> inputs;
  for (ir::ValueId v : node.inputs) inputs.push_back(graph->type(v));
  AMPD_ASSIGN_OR_RETURN(std::vector<ir::TensorType> types,
                        InferTypes(node.op, {node.name, node.attributes, inputs, &node}));
  const OpDef& def = GetOpDef(node.op);
  node.outputs.clear();
  for (size_t i = 0; i < types.size(); ++i) {
    node.outputs.push_back(graph->AddValue(absl::StrCat(node.name, def.output_suffixes[i]), std::move(types[i])));
  }
  const std::vector<ir::ValueId> outputs = node.outputs;
  graph->AddNode(std::move(node));
  return outputs;
}

ir::ValueId MovedFrom(const ir::Graph& graph, ir::ValueId v) {
  while (graph.values[v].producer >= 0) {
    const ir::Node& node = graph.nodes[graph.values[v].producer];
    const bool moves = node.op == ir::OpKind::kSlice || node.op == ir::OpKind::kReshape ||
                       node.op == ir::OpKind::kTranspose || node.op == ir::OpKind::kCast;
    if (!moves) break;
    v = node.inputs[0];
  }
  return v;
}

absl::Status VerifyGraph(const ir::Graph& graph) {
  AMPD_RETURN_IF_ERROR(VerifyValues(graph));
  std::vector<bool> defined;
  for (const ir::Value& value : graph.values) defined.push_back(value.kind != ir::ValueKind::kActivation);
  std::set<std::string> names;
  for (const ir::Node& node : graph.nodes) {
    if (!names.insert(node.name).second) return absl::InternalError(absl::StrCat("two nodes are named ", node.name));
    AMPD_RETURN_IF_ERROR(VerifyNode(graph, node, &defined));
  }
  for (const auto& [name, v] : graph.outputs) {
    if (!defined[v]) return absl::InternalError(absl::StrCat("output ", name, " is never written"));
  }
  return absl::OkStatus();
}

}  // namespace ampd::ops
