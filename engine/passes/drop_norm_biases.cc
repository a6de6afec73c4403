#include "engine/passes/drop_norm_biases.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/ir/printer.h"
#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::NodeId;
using ir::OpKind;
using ir::ValueId;

class Dropper {
 public:
  explicit Dropper(ir::Graph graph)
      : graph_(std::move(graph)), readers_(ReadersOf(graph_)), shown_(graph_.values.size(), false) {
    for (const auto& [name, v] : graph_.outputs) shown_[static_cast<size_t>(v)] = true;
  }

  ir::Graph Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op == OpKind::kBatchNorm) Drop(static_cast<NodeId>(n));
    }
    return std::move(graph_);
  }

 private:
  void Drop(NodeId norm) {
    const ValueId sum = graph_.nodes[norm].inputs[0], mean = graph_.nodes[norm].outputs[1];
    const ir::Node* add = Made(sum, OpKind::kBiasAdd);
    if (add == nullptr || shown_[sum] || shown_[mean]) return;
    const ValueId x = add->inputs[0], bias = InF32(add->inputs[1]);
    std::vector<NodeId> grads, updates;
    for (NodeId reader : readers_[sum]) {
      if (reader != norm && !IsGrad(reader, sum, mean)) return;
    }
    for (NodeId reader : readers_[mean]) {
      const bool update =
          graph_.nodes[reader].op == OpKind::kBatchNormUpdate && graph_.nodes[reader].inputs.size() == 5;
      if (!update && !IsGrad(reader, sum, mean)) return;
      (update ? updates : grads).push_back(reader);
    }
    if (bias < 0) return;
    graph_.nodes[norm].inputs[0] = x;
    for (NodeId update : updates) graph_.nodes[update].inputs.push_back(bias);
    for (NodeId grad : grads) {
      graph_.nodes[grad].inputs[1] = x;
      ZeroBiasGradients(graph_.nodes[grad].outputs[0]);
    }
  }

  // The node of `op` that wrote `v`, or null.
  const ir::Node* Made(ValueId v, OpKind op) const {
    const ir::Value& value = graph_.values[v];
    if (value.kind != ir::ValueKind::kActivation) return nullptr;
    const ir::Node& node = graph_.nodes[value.producer];
    return node.op == op ? &node : nullptr;
  }

  // `bias` before it was narrowed, or -1.
  ValueId InF32(ValueId bias) const {
    if (graph_.type(bias).dtype == DType::kF32) return bias;
    const ir::Node* cast = Made(bias, OpKind::kCast);
    return cast != nullptr && graph_.type(cast->inputs[0]).dtype == DType::kF32 ? cast->inputs[0] : -1;
  }

  bool IsGrad(NodeId n, ValueId sum, ValueId mean) const {
    const ir::Node& node = graph_.nodes[n];
    return node.op == OpKind::kBatchNormGrad && node.inputs[0] != sum && node.inputs[1] == sum &&
           node.inputs[3] == mean;
  }

  // The norm's gradient by its input adds up to zero in each channel.
  void ZeroBiasGradients(ValueId dx) {
    for (NodeId reader : readers_[dx]) {
      if (graph_.nodes[reader].op != OpKind::kBiasAddGrad) continue;
      const ValueId gradient = graph_.nodes[reader].outputs[0];
      const ValueId zeros = Zeros(graph_.type(gradient));
      for (NodeId n : readers_[gradient]) {
        for (ValueId& v : graph_.nodes[n].inputs) v = v == gradient ? zeros : v;
      }
      for (auto& [name, v] : graph_.outputs) v = v == gradient ? zeros : v;
    }
  }

  // One constant for all norms of as many channels.
  ValueId Zeros(const ir::TensorType& type) {
    const auto [it, added] = zeros_.insert({type.shape[0], -1});
    if (added) {
      it->second = graph_.AddConstant(absl::StrCat("zero_gradient:", ir::TypeString(type)),
                                      std::make_shared<Tensor>(type.dtype, type.shape));
    }
    return it->second;
  }

  ir::Graph graph_;
  const std::vector<std::vector<NodeId>> readers_;  // as the graph was
  std::vector<bool> shown_;
  std::map<int64_t, ValueId> zeros_;
};

}  // namespace

absl::StatusOr<ir::Graph> DropNormBiases(ir::Graph graph) { return Dropper(std::move(graph)).Run(); }

}  // namespace ampd::passes
