#include "engine/passes/scale_products.h"

#include <set>
#include <utility>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {

using ir::OpKind;

absl::StatusOr<ir::Graph> ScaleProducts(ir::Graph graph) {
  const std::vector<int> reads = ReadsOf(graph);
  std::set<ir::NodeId> gone;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& dequantize = graph.nodes[n];
    if (dequantize.op != OpKind::kDequantize) continue;
    const ir::Value& sums = graph.values[dequantize.inputs[0]];
    if (sums.kind != ir::ValueKind::kActivation || reads[dequantize.inputs[0]] != 1) continue;
    ir::Node& product = graph.nodes[sums.producer];
    if (product.op != OpKind::kMatmul || product.inputs.size() != 2) continue;
    if (!IsF8(graph.type(product.inputs[0]).dtype) || !IsF8(graph.type(product.inputs[1]).dtype)) continue;
    product.inputs.insert(product.inputs.end(), dequantize.inputs.begin() + 1, dequantize.inputs.end());
    product.attributes.Set("dtype", dequantize.attributes.String("dtype"));
    product.outputs = dequantize.outputs;
    gone.insert(static_cast<ir::NodeId>(n));
  }
  RemoveNodes(gone, &graph);
  return graph;
}

}  // namespace ampd::passes
