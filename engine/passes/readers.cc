#include "engine/passes/readers.h"

#include <utility>

namespace ampd::passes {

std::vector<std::vector<ir::NodeId>> ReadersOf(const ir::Graph& graph) {
  std::vector<std::vector<ir::NodeId>> readers(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ir::ValueId v : graph.nodes[n].inputs) readers[static_cast<size_t>(v)].push_back(static_cast<ir::NodeId>(n));
  }
  return readers;
}

std::vector<int> ReadsOf(const ir::Graph& graph) {
  std::vector<int> reads(graph.values.size(), 0);
  for (const ir::Node& node : graph.nodes) {
    for (ir::ValueId v : node.inputs) ++reads[static_cast<size_t>(v)];
  }
  for (const auto& [name, v] : graph.outputs) ++reads[static_cast<size_t>(v)];
  return reads;
}

void RemoveNodes(const std::set<ir::NodeId>& gone, ir::Graph* graph) {
  std::vector<ir::Node> nodes;
  for (size_t n = 0; n < graph->nodes.size(); ++n) {
    if (gone.count(static_cast<ir::NodeId>(n)) == 0) nodes.push_back(std::move(graph->nodes[n]));
  }
  graph->nodes = std::move(nodes);
  graph->RefreshProducers();
}

}  // namespace ampd::passes
