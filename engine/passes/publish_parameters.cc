#include "engine/passes/publish_parameters.h"

#include <utility>
#include <vector>

namespace ampd::passes {

absl::StatusOr<ir::Graph> PublishParameters(ir::Graph graph) {
  std::vector<ir::Node> kept;
  for (ir::Node& node : graph.nodes) {
    if (node.op != ir::OpKind::kCast || graph.values[node.inputs[0]].kind != ir::ValueKind::kParameter) {
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
