// Removes what nobody reads.
#ifndef AMPD_ENGINE_PASSES_DEAD_NODES_H_
#define AMPD_ENGINE_PASSES_DEAD_NODES_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Drops nodes without effects whose outputs reach neither a graph output nor a node with effects.
absl::StatusOr<ir::Graph> RemoveDeadNodes(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_DEAD_NODES_H_
