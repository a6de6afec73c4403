#include "engine/passes/add_to_norm_grads.h"

#include <set>
#include <utility>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::NodeId;
using ir::OpKind;
using ir::ValueId;

// Inputs of a gradient with a scale, and nothing added yet; 0: no gradient of a norm of rows.
size_t InputsOf(OpKind op) {
  if (op == OpKind::kLayerNormGrad) return 5;
  return op == OpKind::kRmsNormGrad ? 4 : 0;
}

class Adder {
 public:
  explicit Adder(ir::Graph graph) : graph_(std::move(graph)), reads_(ReadsOf(graph_)) {}

  ir::Graph Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const ir::Node& node = graph_.nodes[n];
      if (node.op != OpKind::kAdd) continue;
      if (!Add(node.inputs[0], node.inputs[1], node.outputs[0])) Add(node.inputs[1], node.inputs[0], node.outputs[0]);
    }
    RemoveNodes(gone_, &graph_);
    return std::move(graph_);
  }

 private:
  // Whether `sum`, of `dx` and `other`, is made where `dx` was.
  bool Add(ValueId dx, ValueId other, ValueId sum) {
    const ir::Value& value = graph_.values[dx];
    if (value.kind != ir::ValueKind::kActivation || reads_[dx] != 1 || value.type != graph_.type(other)) return false;
    ir::Node& grad = graph_.nodes[value.producer];
    if (InputsOf(grad.op) != grad.inputs.size() || grad.outputs[0] != dx) return false;
    if (graph_.values[other].producer >= value.producer) return false;
    gone_.insert(graph_.values[sum].producer);
    grad.inputs.push_back(other);
    grad.outputs[0] = sum;
    graph_.values[sum].producer = value.producer;
    return true;
  }

  ir::Graph graph_;
  const std::vector<int> reads_;
  std::set<NodeId> gone_;
};

}  // namespace

absl::StatusOr<ir::Graph> AddToNormGrads(ir::Graph graph) { return Adder(std::move(graph)).Run(); }

}  // namespace ampd::passes
