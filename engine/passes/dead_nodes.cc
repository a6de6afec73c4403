#include "engine/passes/dead_nodes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/ops/op_def.h"

namespace ampd::passes {

absl::StatusOr<ir::Graph> RemoveDeadNodes(ir::Graph graph) {
  std::vector<bool> read(graph.values.size(), false);
  for (const auto& [name, v] : graph.outputs) read[v] = true;
  std::vector<ir::Node> kept;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    ir::Node& node = graph.nodes[n];
    const bool live = ops::GetOpDef(node.op).has_effects ||
                      std::any_of(node.outputs.begin(), node.outputs.end(), [&](ir::ValueId v) { return read[v]; });
    if (!live) continue;
    for (ir::ValueId v : node.inputs) read[v] = true;
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  graph.nodes = std::move(kept);
  graph.RefreshProducers();
  return graph;
}

}  // namespace ampd::passes
