#include "engine/passes/widen_gradients.h"

#include <string>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;

bool MovesOnly(OpKind op) { return op == OpKind::kReshape || op == OpKind::kSlice || op == OpKind::kTranspose; }

// Back from `v`, a gradient, to the product that made it, if one did and nobody else reads what lies between.
void Widen(ValueId v, const std::vector<int>& reads, ir::Graph* graph) {
  std::vector<ValueId> way;
  while (IsHalf(graph->type(v).dtype) && graph->values[v].kind == ir::ValueKind::kActivation && reads[v] == 1) {
    way.push_back(v);
    ir::Node& node = graph->nodes[graph->values[v].producer];
    if (node.op == OpKind::kMatmul) {
      node.attributes.Set("dtype", std::string(DTypeName(DType::kF32)));
      for (ValueId on_the_way : way) graph->values[on_the_way].type.dtype = DType::kF32;
      return;
    }
    if (!MovesOnly(node.op)) return;
    v = node.inputs[0];
  }
}

}  // namespace

absl::StatusOr<ir::Graph> WidenGradients(ir::Graph graph) {
  const std::vector<int> reads = ReadsOf(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op == OpKind::kAccumulateGrad) Widen(graph.nodes[n].inputs[0], reads, &graph);
  }
  return graph;
}

}  // namespace ampd::passes
