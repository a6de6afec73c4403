#include "engine/passes/recompute_inputs.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/op_def.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::ValueId;

class Recomputer {
 public:
  explicit Recomputer(ir::Graph graph) : graph_(std::move(graph)), old_(std::move(graph_.nodes)) {
    graph_.nodes.clear();
    for (const ir::Node& node : old_) names_.insert(node.name);
  }

  absl::StatusOr<ir::Graph> Run() {
    for (ir::Node node : old_) {
      if (node.stage == ir::Stage::kGradient) {
        for (ValueId& v : node.inputs) {
          AMPD_ASSIGN_OR_RETURN(v, Again(v));
        }
      } else if (IsConversion(node)) {
        conversions_[node.outputs[0]] = node;
      }
      graph_.nodes.push_back(std::move(node));
    }
    graph_.RefreshProducers();
    return std::move(graph_);
  }

 private:
  bool IsConversion(const ir::Node& node) const {
    if (node.op != OpKind::kCast && node.op != OpKind::kPad) return false;
    return graph_.values[node.inputs[0]].kind == ir::ValueKind::kInput || conversions_.count(node.inputs[0]) > 0;
  }

  // `v`, or, if it is a conversion, its second making.
  absl::StatusOr<ValueId> Again(ValueId v) {
    auto it = conversions_.find(v);
    if (it == conversions_.end()) return v;
    const auto [made, inserted] = again_.insert({v, -1});
    if (!inserted) return made->second;
    ir::Node node = it->second;
    AMPD_ASSIGN_OR_RETURN(node.inputs[0], Again(node.inputs[0]));
    for (node.name += ":again"; !names_.insert(node.name).second;) node.name += "_";
    node.stage = ir::Stage::kGradient;
    node.outputs.clear();
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs, ops::Emit(&graph_, std::move(node)));
    again_[v] = outputs[0];
    return outputs[0];
  }

  ir::Graph graph_;
  const std::vector<ir::Node> old_;
  std::map<ValueId, ir::Node> conversions_;
  std::map<ValueId, ValueId> again_;
  std::set<std::string> names_;
};

}  // namespace

absl::StatusOr<ir::Graph> RecomputeInputs(ir::Graph graph) { return Recomputer(std::move(graph)).Run(); }

}  // namespace ampd::passes
