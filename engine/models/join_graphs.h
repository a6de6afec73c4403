// Graphs that share parameters and untrained state by name: one copied into another, and several beside each other.
#ifndef AMPD_ENGINE_MODELS_JOIN_GRAPHS_H_
#define AMPD_ENGINE_MODELS_JOIN_GRAPHS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// Copies forward graphs into one. Thread-compatible.
class GraphInliner {
 public:
  // `graph` has no parameters or states that this inliner did not add.
  explicit GraphInliner(ir::Graph* graph) : graph_(graph) {}

  // Adds the nodes of `sub`, which reads `inputs` (one for each of its inputs, in order, of the same types), and
  // returns where each value of `sub` is in the graph. Nodes are called `node_prefix` + their name, which also names
  // their random streams (those that share one in `sub`: the first one's name); layers, parameters and states
  // `layer_prefix` + theirs. A parameter or state of a name that the graph has is shared. INVALID_ARGUMENT, naming it,
  // where the two differ in shape, dtype or layout on disk.
  absl::StatusOr<std::vector<ir::ValueId>> Inline(const ir::Graph& sub, const std::vector<ir::ValueId>& inputs,
                                                  const std::string& node_prefix, const std::string& layer_prefix);

 private:
  absl::StatusOr<ir::ValueId> Persistent(const ir::Graph& sub, const ir::Value& value, const std::string& prefix);
  absl::StatusOr<ir::ValueId> Copy(const ir::Graph& sub, const ir::Value& value, const std::string& node_prefix,
                                   const std::string& layer_prefix);

  ir::Graph* graph_;
  std::map<std::string, ir::ValueId> persistents_;
};

// Gives every graph the parameters and states of all of them, in one order: by first appearance. Errors as Inline's.
absl::Status ShareParameters(const std::vector<ir::Graph*>& graphs);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_JOIN_GRAPHS_H_
