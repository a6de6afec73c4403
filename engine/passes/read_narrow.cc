#include "engine/passes/read_narrow.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/op_def.h"
#include "engine/passes/readers.h"

namespace ampd::passes {
namespace {

using ir::NodeId;
using ir::OpKind;
using ir::ValueId;

class Narrower {
 public:
  Narrower(ir::Graph graph, int64_t fewest_bytes)
      : graph_(std::move(graph)), fewest_bytes_(fewest_bytes), readers_(ReadersOf(graph_)) {
    for (const auto& [name, v] : graph_.outputs) is_output_.insert(v);
  }

  absl::StatusOr<ir::Graph> Run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (IsLargeWidening(graph_.nodes[n])) AMPD_RETURN_IF_ERROR(Remove(static_cast<NodeId>(n)));
    }
    for (ir::Node& node : graph_.nodes) {
      for (ValueId& v : node.inputs) v = instead_.count(v) > 0 ? instead_.at(v) : v;
    }
    RemoveNodes(gone_, &graph_);
    return std::move(graph_);
  }

 private:
  bool IsLargeWidening(const ir::Node& node) const {
    if (node.op != OpKind::kCast || !IsHalf(graph_.type(node.inputs[0]).dtype)) return false;
    const ValueId wide = node.outputs[0];
    const ir::TensorType& narrow = graph_.type(node.inputs[0]);
    if (graph_.type(wide).dtype != DType::kF32 || is_output_.count(wide) > 0) return false;
    if (NumElements(narrow.shape) * SizeOf(narrow.dtype) < fewest_bytes_) return false;
    return std::all_of(readers_[wide].begin(), readers_[wide].end(), [&](NodeId reader) {
      const ir::Node& by = graph_.nodes[reader];
      const ops::OpDef& def = ops::GetOpDef(by.op);
      for (size_t i = 0; i < by.inputs.size(); ++i) {
        if (by.inputs[i] == wide && ops::RoleOf(def, i) != ops::Role::kWide) return false;
      }
      return true;
    });
  }

  // The types of `node`'s results if it read `to` where it reads `from`.
  absl::StatusOr<std::vector<ir::TensorType>> TypesReading(const ir::Node& node, ValueId from, ValueId to) const {
    std::vector<ir::TensorType> inputs;
    for (ValueId v : node.inputs) inputs.push_back(graph_.type(v == from ? to : v));
    return ops::InferTypes(node.op, {node.name, node.attributes, inputs, &node});
  }

  // The cast to `dtype` that alone reads `v`, or -1.
  NodeId OnlyCast(ValueId v, DType dtype) const {
    if (is_output_.count(v) > 0 || readers_[v].size() != 1) return -1;
    const ir::Node& node = graph_.nodes[readers_[v][0]];
    return node.op == OpKind::kCast && graph_.type(node.outputs[0]).dtype == dtype ? readers_[v][0] : -1;
  }

  absl::Status Remove(NodeId cast) {
    const ValueId narrow = graph_.nodes[cast].inputs[0], wide = graph_.nodes[cast].outputs[0];
    const DType dtype = graph_.type(narrow).dtype;
    // By result that would be narrow: the cast back that goes.
    std::map<ValueId, NodeId> back;
    for (NodeId reader : readers_[wide]) {
      const ir::Node& node = graph_.nodes[reader];
      AMPD_ASSIGN_OR_RETURN(const std::vector<ir::TensorType> types, TypesReading(node, wide, narrow));
      for (size_t i = 0; i < types.size(); ++i) {
        const ValueId result = node.outputs[i];
        if (types[i] == graph_.type(result)) continue;
        const NodeId away = OnlyCast(result, dtype);
        if (away < 0) return absl::OkStatus();
        back[result] = away;
      }
    }
    gone_.insert(cast);
    instead_[wide] = narrow;
    for (const auto& [result, away] : back) {
      graph_.values[result].type.dtype = dtype;
      gone_.insert(away);
      instead_[graph_.nodes[away].outputs[0]] = result;
      if (is_output_.count(graph_.nodes[away].outputs[0]) == 0) continue;
      for (auto& [name, v] : graph_.outputs) v = v == graph_.nodes[away].outputs[0] ? result : v;
    }
    return absl::OkStatus();
  }

  ir::Graph graph_;
  const int64_t fewest_bytes_;
  const std::vector<std::vector<NodeId>> readers_;
  std::set<ValueId> is_output_;
  std::set<NodeId> gone_;
  std::map<ValueId, ValueId> instead_;  // what is read in place of a value that is gone
};

}  // namespace

absl::StatusOr<ir::Graph> ReadNarrow(ir::Graph graph, int64_t fewest_bytes) {
  return Narrower(std::move(graph), fewest_bytes).Run();
}

}  // namespace ampd::passes
