#include "engine/passes/overwrite_gradients.h"

#include <set>

namespace ampd::passes {

absl::StatusOr<ir::Graph> OverwriteGradients(ir::Graph graph) {
  std::set<int32_t> begun;
  for (ir::Node& node : graph.nodes) {
    if (node.op != ir::OpKind::kAccumulateGrad) continue;
    if (begun.insert(graph.values[node.inputs[1]].slot).second) node.attributes.Set("overwrite", int64_t{1});
  }
  return graph;
}

}  // namespace ampd::passes
