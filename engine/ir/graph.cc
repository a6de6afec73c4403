#include "engine/ir/graph.h"

#include <utility>

namespace ampd::ir {

absl::string_view OpName(OpKind kind) {
  switch (kind) {
#define X(enumerator, name) \
  case OpKind::enumerator:  \
    return name;
#include "engine/ir/op_kinds.def"
#undef X
  }
  return "?";
}

ValueId Graph::AddInput(std::string name, TensorType type) {
  values.push_back({.name = std::move(name), .type = std::move(type), .kind = ValueKind::kInput});
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::AddParameter(Persistent parameter) {
  values.push_back({.name = parameter.name,
                    .type = parameter.type,
                    .kind = ValueKind::kParameter,
                    .slot = static_cast<int32_t>(parameters.size())});
  parameters.push_back(std::move(parameter));
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::AddState(Persistent state) {
  values.push_back(
      {.name = state.name, .type = state.type, .kind = ValueKind::kState, .slot = static_cast<int32_t>(states.size())});
  states.push_back(std::move(state));
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::AddConstant(std::string name, std::shared_ptr<const Tensor> data) {
  values.push_back({.name = std::move(name),
                    .type = {data->dtype(), data->shape()},
                    .kind = ValueKind::kConstant,
                    .data = std::move(data)});
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::AddLossSeed() {
  values.push_back({.name = "loss_seed", .type = {DType::kF32, {}}, .kind = ValueKind::kLossSeed});
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::AddValue(std::string name, TensorType type) {
  values.push_back({.name = std::move(name), .type = std::move(type), .kind = ValueKind::kActivation});
  return static_cast<ValueId>(values.size()) - 1;
}

NodeId Graph::AddNode(Node node) {
  const NodeId id = static_cast<NodeId>(nodes.size());
  for (ValueId output : node.outputs) values[output].producer = id;
  nodes.push_back(std::move(node));
  return id;
}

ValueId Graph::FindInput(absl::string_view name) const {
  for (size_t v = 0; v < values.size(); ++v) {
    if (values[v].kind == ValueKind::kInput && absl::string_view(values[v].name) == name)
      return static_cast<ValueId>(v);
  }
  return -1;
}

void Graph::RefreshProducers() {
  for (Value& value : values) value.producer = -1;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (ValueId output : nodes[n].outputs) values[output].producer = static_cast<NodeId>(n);
  }
}

}  // namespace ampd::ir
