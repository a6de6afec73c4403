#include "engine/passes/fuse.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/ops/op_def.h"
#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::NodeId;
using ir::ValueId;

class Fuser {
 public:
  Fuser(ir::Graph graph, const std::function<bool(ir::OpKind)>& can_fuse)
      : graph_(std::move(graph)), can_fuse_(can_fuse), group_of_(graph_.nodes.size(), -1) {
    readers_ = ReadersOf(graph_);
    for (const auto& [name, v] : graph_.outputs) is_output_.insert(v);
  }

  ir::Graph Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (IsFusible(graph_.nodes[n])) Place(static_cast<NodeId>(n));
    }
    return Rewrite();
  }

 private:
  // The inputs that a node of `shape` can read without leaving its place: the whole, a row, or a scalar.
  static bool Broadcasts(const Shape& input, const Shape& shape) {
    if (input == shape || NumElements(input) == 1) return true;
    return !shape.empty() && !input.empty() && input.back() == shape.back() && NumElements(input) == shape.back();
  }

  bool IsFusible(const ir::Node& node) const {
    if (!ops::GetOpDef(node.op).elementwise || !can_fuse_(node.op) || node.outputs.size() != 1) return false;
    const ir::TensorType& type = graph_.type(node.outputs[0]);
    // Rounding to 8 bits saturates or not as the cast says: that is its own kernel's affair.
    if (IsF8(type.dtype) || (!IsFloat(type.dtype) && type.dtype != DType::kBool)) return false;
    if (node.op == ir::OpKind::kCast && !(IsFloat(type.dtype) && IsFloat(graph_.type(node.inputs[0]).dtype)))
      return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      const ir::TensorType& input = graph_.type(v);
      return (IsFloat(input.dtype) || input.dtype == DType::kBool) && Broadcasts(input.shape, type.shape);
    });
  }

  // Joins node `n` with the groups of its producers, one after the other, as long as nothing between needs a result
  // before `n`.
  void Place(NodeId n) {
    std::vector<NodeId> members = {n};
    for (ValueId v : graph_.nodes[n].inputs) {
      const NodeId producer = graph_.values[v].producer;
      if (graph_.values[v].kind != ir::ValueKind::kActivation || producer < 0 || group_of_[producer] < 0) continue;
      const std::vector<NodeId>& other = groups_.at(group_of_[producer]);
      if (std::find(members.begin(), members.end(), producer) != members.end()) continue;
      std::vector<NodeId> joined = members;
      joined.insert(joined.end(), other.begin(), other.end());
      std::sort(joined.begin(), joined.end());
      if (CanJoin(joined, n)) members = std::move(joined);
    }
    const NodeId id = next_group_++;
    for (NodeId member : members) {
      if (group_of_[member] >= 0) groups_.erase(group_of_[member]);
      group_of_[member] = id;
    }
    groups_[id] = std::move(members);
  }

  bool CanJoin(const std::vector<NodeId>& members, NodeId last) const {
    if (members.size() > kMaxFusedSteps) return false;
    const Shape& shape = ShapeOf(last);
    const auto is_backward = [&](NodeId n) { return graph_.nodes[n].stage == ir::Stage::kGradient; };
    return std::all_of(members.begin(), members.end(), [&](NodeId member) {
      // A forward node moved into the backward pass would keep its inputs alive until then.
      if (ShapeOf(member) != shape || is_backward(member) != is_backward(last)) return false;
      const std::vector<NodeId>& readers = readers_[graph_.nodes[member].outputs[0]];
      return std::all_of(readers.begin(), readers.end(), [&](NodeId reader) {
        return reader > last || std::binary_search(members.begin(), members.end(), reader);
      });
    });
  }

  const Shape& ShapeOf(NodeId n) const { return graph_.type(graph_.nodes[n].outputs[0]).shape; }

  ir::Graph Rewrite() {
    std::vector<ir::Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const NodeId id = static_cast<NodeId>(n);
      const int32_t group = group_of_[n];
      if (group < 0 || groups_.at(group).size() == 1) {
        nodes.push_back(std::move(graph_.nodes[n]));
      } else if (groups_.at(group).back() == id) {
        nodes.push_back(Fused(groups_.at(group)));
      }
    }
    graph_.nodes = std::move(nodes);
    graph_.RefreshProducers();
    return std::move(graph_);
  }

  ir::Node Fused(const std::vector<NodeId>& members) const {
    const ir::Node& last = graph_.nodes[members.back()];
    ir::Node fused{.op = ir::OpKind::kFused, .name = last.name, .layer = last.layer, .stage = last.stage};
    std::map<ValueId, int32_t> step_of;
    for (NodeId member : members)
      step_of.emplace(graph_.nodes[member].outputs[0], static_cast<int32_t>(step_of.size()));
    for (NodeId member : members) {
      for (ValueId v : graph_.nodes[member].inputs) {
        const bool known = std::find(fused.inputs.begin(), fused.inputs.end(), v) != fused.inputs.end();
        if (step_of.count(v) == 0 && !known) fused.inputs.push_back(v);
      }
    }
    const auto inputs = static_cast<int32_t>(fused.inputs.size());
    for (NodeId member : members) {
      const ir::Node& node = graph_.nodes[member];
      ir::FusedStep step{.op = node.op, .attributes = node.attributes, .dtype = graph_.type(node.outputs[0]).dtype};
      for (ValueId v : node.inputs) {
        const auto it = step_of.find(v);
        const auto input = std::find(fused.inputs.begin(), fused.inputs.end(), v) - fused.inputs.begin();
        step.operands.push_back(it != step_of.end() ? inputs + it->second : static_cast<int32_t>(input));
      }
      if (IsRead(node.outputs[0], members)) {
        fused.results.push_back(static_cast<int32_t>(fused.steps.size()));
        fused.outputs.push_back(node.outputs[0]);
      }
      fused.steps.push_back(std::move(step));
    }
    return fused;
  }

  // By anyone outside the group.
  bool IsRead(ValueId v, const std::vector<NodeId>& members) const {
    return is_output_.count(v) > 0 || std::any_of(readers_[v].begin(), readers_[v].end(), [&](NodeId reader) {
             return !std::binary_search(members.begin(), members.end(), reader);
           });
  }

  ir::Graph graph_;
  const std::function<bool(ir::OpKind)>& can_fuse_;
  std::vector<int32_t> group_of_;                  // by node; -1: not fusible
  std::map<int32_t, std::vector<NodeId>> groups_;  // members in order
  std::vector<std::vector<NodeId>> readers_;       // by value
  std::set<ValueId> is_output_;
  int32_t next_group_ = 0;
};

}  // namespace

absl::StatusOr<ir::Graph> Fuse(ir::Graph graph, const std::function<bool(ir::OpKind)>& can_fuse) {
  return Fuser(std::move(graph), can_fuse).Run();
}

}  // namespace ampd::passes
