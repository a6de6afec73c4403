// Who reads a value: what passes that replace nodes ask first, and how they take the replaced ones away.
#ifndef AMPD_ENGINE_PASSES_READERS_H_
#define AMPD_ENGINE_PASSES_READERS_H_

#include <set>
#include <vector>

#include "engine/ir/graph.h"

namespace ampd::passes {

// By value, in the graph's order: the nodes that read it, one as often as it does.
std::vector<std::vector<ir::NodeId>> ReadersOf(const ir::Graph& graph);

// By value: how often nodes read it, and whoever reads the graph's outputs.
std::vector<int> ReadsOf(const ir::Graph& graph);

// Takes nodes away whose outputs nobody reads any more. Ids of nodes change.
void RemoveNodes(const std::set<ir::NodeId>& gone, ir::Graph* graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_READERS_H_
