#include "engine/passes/gate_norm_grads.h"

#include <set>
#include <utility>
#include <vector>

#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;

class Gater {
 public:
  explicit Gater(ir::Graph graph) : graph_(std::move(graph)), reads_(ReadsOf(graph_)) {}

  ir::Graph Run() {
    for (ir::Node& node : graph_.nodes) {
      if (node.op == OpKind::kBatchNormGrad && node.inputs.size() == 5) Gate(&node);
    }
    RemoveNodes(gone_, &graph_);
    return std::move(graph_);
  }

 private:
  // The node of `op` that wrote `v`, or null.
  const ir::Node* Made(ValueId v, OpKind op) const {
    const ir::Value& value = graph_.values[v];
    if (value.kind != ir::ValueKind::kActivation) return nullptr;
    const ir::Node& node = graph_.nodes[value.producer];
    return node.op == op ? &node : nullptr;
  }

  void Gate(ir::Node* grad) {
    const ValueId dy = grad->inputs[0];
    const ir::Node* relu_grad = Made(dy, OpKind::kReluGrad);
    if (relu_grad == nullptr || reads_[dy] != 1) return;
    const ir::Node* relu = Made(relu_grad->inputs[1], OpKind::kRelu);
    if (relu == nullptr) return;
    ValueId factor, bias;
    if (!IsNorm(relu->inputs[0], grad->inputs[1], grad->inputs[3], &factor, &bias)) return;
    gone_.insert(graph_.values[dy].producer);
    grad->inputs[0] = relu_grad->inputs[0];
    grad->inputs.push_back(factor);
    grad->inputs.push_back(bias);
  }

  // Whether `n` is (x - mean) * factor + bias in f32, rounded to x's dtype.
  bool IsNorm(ValueId n, ValueId x, ValueId mean, ValueId* factor, ValueId* bias) const {
    const bool half = graph_.type(x).dtype != DType::kF32;
    if (half) {
      const ir::Node* rounded = Made(n, OpKind::kCast);
      if (rounded == nullptr || graph_.type(n) != graph_.type(x)) return false;
      n = rounded->inputs[0];
    }
    const ir::Node* shifted = Made(n, OpKind::kAdd);
    const ir::Node* scaled = shifted == nullptr ? nullptr : Made(shifted->inputs[0], OpKind::kMul);
    const ir::Node* centred = scaled == nullptr ? nullptr : Made(scaled->inputs[0], OpKind::kSub);
    if (centred == nullptr || centred->inputs[1] != mean) return false;
    const ir::Node* widened = half ? Made(centred->inputs[0], OpKind::kCast) : centred;
    if (widened == nullptr || widened->inputs[0] != x) return false;
    const ir::Node* statistics = Made(scaled->inputs[1], OpKind::kBatchNormStatistics);
    if (statistics == nullptr || statistics->outputs[0] != mean) return false;
    *factor = scaled->inputs[1];
    *bias = shifted->inputs[1];
    const ir::TensorType vector = {DType::kF32, {graph_.type(x).shape.back()}};
    return *factor == statistics->outputs[2] && graph_.type(*bias) == vector;
  }

  ir::Graph graph_;
  const std::vector<int> reads_;
  std::set<ir::NodeId> gone_;
};

}  // namespace

absl::StatusOr<ir::Graph> GateNormGrads(ir::Graph graph) { return Gater(std::move(graph)).Run(); }

}  // namespace ampd::passes
