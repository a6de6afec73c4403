#include "engine/passes/round_pads.h"

#include <set>
#include <string>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::OpKind;

// Whether `node` brings an f32 input of the graph to 16 bits.
bool RoundsInput(const ir::Graph& graph, const ir::Node& node) {
  return node.op == OpKind::kCast && graph.values[node.inputs[0]].kind == ir::ValueKind::kInput &&
         graph.type(node.inputs[0]).dtype == DType::kF32 && IsHalf(graph.type(node.outputs[0]).dtype);
}

bool PadsWithConstant(const ir::Node& node) {
  const std::string mode = node.attributes.String("mode");
  return node.op == OpKind::kPad && (mode.empty() || mode == "constant");
}

}  // namespace

absl::StatusOr<ir::Graph> RoundPads(ir::Graph graph, int64_t fewest_bytes) {
  const std::vector<int> reads = ReadsOf(graph);
  std::set<ir::NodeId> gone;
  for (ir::Node& pad : graph.nodes) {
    if (!PadsWithConstant(pad) || graph.values[pad.inputs[0]].kind != ir::ValueKind::kActivation) continue;
    const ir::NodeId producer = graph.values[pad.inputs[0]].producer;
    const ir::Node& cast = graph.nodes[producer];
    const ir::TensorType& padded = graph.type(pad.outputs[0]);
    if (!RoundsInput(graph, cast) || reads[pad.inputs[0]] != 1 ||
        NumElements(padded.shape) * SizeOf(padded.dtype) < fewest_bytes) {
      continue;
    }
    gone.insert(producer);
    pad.inputs[0] = cast.inputs[0];
    pad.attributes.Set("dtype", std::string(DTypeName(padded.dtype)));
  }
  RemoveNodes(gone, &graph);
  return graph;
}

}  // namespace ampd::passes
