#include "engine/passes/publish_parameters.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ampd::passes {

namespace {

// Zeros behind the numbers, and nothing else. Padding by less than nothing cuts off.
bool PadsWithZeros(const ir::Graph& graph, const ir::Node& node) {
  const std::string mode = node.attributes.String("mode");
  if (node.op != ir::OpKind::kPad || (!mode.empty() && mode != "constant")) return false;
  const std::vector<int64_t> pads = node.attributes.Ints("pads");
  const auto is_zero = [](int64_t pad) { return pad == 0; };
  const auto behind = pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2);
  return node.attributes.Double("value") == 0 && IsFloat(graph.type(node.outputs[0]).dtype) &&
         std::all_of(pads.begin(), behind, is_zero) &&
         std::all_of(behind, pads.end(), [](int64_t pad) { return pad >= 0; }) &&
         std::none_of(graph.outputs.begin(), graph.outputs.end(),
                      [&](const auto& output) { return output.second == node.outputs[0]; });
}

bool Publishes(const ir::Graph& graph, const ir::Node& node) {
  if (node.inputs.empty()) return false;
  const ir::Value& from = graph.values[node.inputs[0]];
  const bool parameter = from.kind == ir::ValueKind::kParameter;
  if (node.op == ir::OpKind::kCast) return parameter;
  // A copy of a copy would have to be told of twice how much of it is padding.
  const bool copy = from.kind == ir::ValueKind::kPublished && from.type.shape == graph.parameters[from.slot].type.shape;
  return (parameter || copy) && PadsWithZeros(graph, node);
}

}  // namespace

absl::StatusOr<ir::Graph> PublishParameters(ir::Graph graph) {
  std::vector<ir::Node> kept;
  for (ir::Node& node : graph.nodes) {
    if (!Publishes(graph, node)) {
      kept.push_back(std::move(node));
      continue;
    }
    ir::Value& copy = graph.values[node.outputs[0]];
    copy.kind = ir::ValueKind::kPublished;
    copy.slot = graph.values[node.inputs[0]].slot;
  }
  graph.nodes = std::move(kept);
  graph.RefreshProducers();
  return graph;
}

}  // namespace ampd::passes
