#include "engine/passes/turn_codes.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/pad_for_tensor_cores.h"

namespace ampd::passes {
namespace {

using ir::OpKind;

// The quantize whose codes reshapes show as `v`, or null.
ir::Node* QuantizeOf(ir::Graph* graph, ir::ValueId v) {
  while (graph->values[v].kind == ir::ValueKind::kActivation) {
    ir::Node& node = graph->nodes[graph->values[v].producer];
    if (node.op == OpKind::kQuantize) return node.outputs[0] == v ? &node : nullptr;
    if (node.op != OpKind::kReshape) break;
    v = node.inputs[0];
  }
  return nullptr;
}

ir::ValueId TurnedOf(ir::Graph* graph, ir::Node* quantize, const Shape& shape) {
  if (quantize->outputs.size() < 3) {
    const ir::ValueId codes = quantize->outputs[0];
    quantize->attributes.Set("turned", int64_t{1});
    quantize->outputs.push_back(
        graph->AddValue(absl::StrCat(graph->values[codes].name, ".turned"), {graph->type(codes).dtype, shape}));
  }
  return quantize->outputs[2];
}

// Has `product` read operand `i`, of which the rows in memory are not along the inner extent, from turned codes.
void Turn(ir::Graph* graph, size_t n, size_t i, const std::string& attribute) {
  const ir::ValueId operand = graph->nodes[n].inputs[i];
  const ir::TensorType type = graph->type(operand);
  if (!IsF8(type.dtype) || type.shape.size() != 2) return;
  constexpr int64_t kMultiple = kTensorCorePadding.multiple_8bit;
  if (type.shape[0] % kMultiple != 0 || type.shape[1] % kMultiple != 0) return;
  ir::Node* quantize = QuantizeOf(graph, operand);
  if (quantize == nullptr || !quantize->attributes.Bool("amax")) return;
  const Shape& shape = graph->type(quantize->outputs[0]).shape;
  if (shape.size() < 2 || shape.back() != type.shape[1]) return;
  const ir::ValueId turned = TurnedOf(graph, quantize, {type.shape[1], type.shape[0]});
  ir::Node& product = graph->nodes[n];
  product.inputs[i] = turned;
  product.attributes.Set(attribute, int64_t{!product.attributes.Bool(attribute)});
}

}  // namespace

absl::StatusOr<ir::Graph> TurnCodes(ir::Graph graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    if (node.op != OpKind::kMatmul) continue;
    if (node.attributes.Bool("transpose_a")) Turn(&graph, n, 0, "transpose_a");
    if (!node.attributes.Bool("transpose_b")) Turn(&graph, n, 1, "transpose_b");
  }
  graph.RefreshProducers();
  // Views of codes that nobody reads any more.
  return RemoveDeadNodes(std::move(graph));
}

}  // namespace ampd::passes
