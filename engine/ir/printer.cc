#include "engine/ir/printer.h"

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ampd::ir {
namespace {

std::string AttributeString(const Attribute& attribute) {
  if (const auto* i = std::get_if<int64_t>(&attribute)) return absl::StrCat(*i);
  if (const auto* d = std::get_if<double>(&attribute)) return absl::StrCat(*d);
  if (const auto* s = std::get_if<std::string>(&attribute)) return absl::StrCat("\"", *s, "\"");
  return ShapeString(std::get<std::vector<int64_t>>(attribute));
}

std::string ValueString(const Graph& graph, ValueId v) {
  return absl::StrCat("%", graph.values[v].name, " ", TypeString(graph.values[v].type));
}

// "s0 = add(i0, i1); s1 = relu(s0) -> s1"
std::string StepsString(const Node& node) {
  const auto inputs = static_cast<int32_t>(node.inputs.size());
  const auto operand = [&](std::string* out, int32_t o) {
    absl::StrAppend(out, o < inputs ? "i" : "s", o < inputs ? o : o - inputs);
  };
  std::vector<std::string> parts;
  for (size_t s = 0; s < node.steps.size(); ++s) {
    const FusedStep& step = node.steps[s];
    parts.push_back(
        absl::StrCat("s", s, " = ", OpName(step.op), "(", absl::StrJoin(step.operands, ", ", operand), ")"));
  }
  return absl::StrCat(absl::StrJoin(parts, "; "), " -> s", absl::StrJoin(node.results, ", s"));
}

}  // namespace

std::string TypeString(const TensorType& type) { return absl::StrCat(DTypeName(type.dtype), ShapeString(type.shape)); }

std::string NodeString(const Graph& graph, const Node& node) {
  std::vector<std::string> inputs, outputs, attributes;
  for (ValueId v : node.inputs) inputs.push_back(ValueString(graph, v));
  for (ValueId v : node.outputs) outputs.push_back(ValueString(graph, v));
  for (const auto& [name, value] : node.attributes.items()) {
    attributes.push_back(absl::StrCat(name, "=", AttributeString(value)));
  }
  std::string text = outputs.empty() ? "" : absl::StrCat(absl::StrJoin(outputs, ", "), " = ");
  absl::StrAppend(&text, OpName(node.op), "(", absl::StrJoin(inputs, ", "), ")");
  if (!node.steps.empty()) absl::StrAppend(&text, " [", StepsString(node), "]");
  if (!attributes.empty()) absl::StrAppend(&text, " {", absl::StrJoin(attributes, ", "), "}");
  if (!node.layer.empty()) absl::StrAppend(&text, " @", node.layer);
  return text;
}

std::string GraphString(const Graph& graph) {
  std::string text;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind != ValueKind::kInput) continue;
    absl::StrAppend(&text, "input ", ValueString(graph, static_cast<ValueId>(v)), "\n");
  }
  for (const Persistent& p : graph.parameters)
    absl::StrAppend(&text, "parameter %", p.name, " ", TypeString(p.type), "\n");
  for (const Persistent& s : graph.states) absl::StrAppend(&text, "state %", s.name, " ", TypeString(s.type), "\n");
  for (const Node& node : graph.nodes) absl::StrAppend(&text, NodeString(graph, node), "\n");
  for (const auto& [name, v] : graph.outputs)
    absl::StrAppend(&text, "output ", name, " = ", ValueString(graph, v), "\n");
  return text;
}

}  // namespace ampd::ir
