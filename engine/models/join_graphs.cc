#include "engine/models/join_graphs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/rng.h"
#include "engine/core/status.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

absl::Status CheckSame(const ir::Persistent& a, const ir::Persistent& b) {
  if (a.type == b.type && a.layout == b.layout && a.flattened == b.flattened) return absl::OkStatus();
  const auto text = [](const ir::Persistent& p) {
    return absl::StrCat(ir::TypeString(p.type),
                        p.flattened.empty() ? "" : absl::StrCat(" of a flattened image ", ShapeString(p.flattened)));
  };
  return absl::InvalidArgumentError(
      absl::StrCat(a.name, " is shared, but is ", text(a), " in one use and ", text(b), " in another"));
}

// The union of lists of parameters, or of states.
class Union {
 public:
  absl::Status Add(const std::vector<ir::Persistent>& list) {
    for (const ir::Persistent& p : list) {
      const auto [it, added] = index_.insert({p.name, static_cast<int32_t>(all_.size())});
      if (added) {
        all_.push_back(p);
      } else {
        AMPD_RETURN_IF_ERROR(CheckSame(all_[static_cast<size_t>(it->second)], p));
      }
    }
    return absl::OkStatus();
  }
  int32_t IndexOf(const std::string& name) const { return index_.at(name); }
  const std::vector<ir::Persistent>& all() const { return all_; }

 private:
  std::vector<ir::Persistent> all_;
  std::map<std::string, int32_t> index_;
};

}  // namespace

absl::StatusOr<std::vector<ir::ValueId>> GraphInliner::Inline(const ir::Graph& sub,
                                                              const std::vector<ir::ValueId>& inputs,
                                                              const std::string& node_prefix,
                                                              const std::string& layer_prefix) {
  std::vector<ir::ValueId> map;
  size_t next_input = 0;
  for (const ir::Value& value : sub.values) {
    if (value.kind == ir::ValueKind::kInput) {
      map.push_back(inputs[next_input++]);
    } else if (value.kind == ir::ValueKind::kActivation) {
      map.push_back(-1);
    } else {
      AMPD_ASSIGN_OR_RETURN(const ir::ValueId v, Copy(sub, value, node_prefix, layer_prefix));
      map.push_back(v);
    }
  }
  std::map<int64_t, int64_t> streams;  // of `sub`, and what they are in the graph
  for (ir::Node node : sub.nodes) {
    node.name = node_prefix + node.name;
    if (!node.layer.empty()) node.layer = layer_prefix + node.layer;
    if (node.attributes.Has("stream")) {
      const auto own = streams.try_emplace(node.attributes.Int("stream"), int64_t{RngStream(node.name)});
      node.attributes.Set("stream", own.first->second);
    }
    for (ir::ValueId& v : node.inputs) v = map[v];
    const std::vector<ir::ValueId> old = node.outputs;
    AMPD_ASSIGN_OR_RETURN(const std::vector<ir::ValueId> outputs, ops::Emit(graph_, std::move(node)));
    for (size_t i = 0; i < outputs.size(); ++i) map[old[i]] = outputs[i];
  }
  return map;
}

absl::StatusOr<ir::ValueId> GraphInliner::Copy(const ir::Graph& sub, const ir::Value& value,
                                               const std::string& node_prefix, const std::string& layer_prefix) {
  switch (value.kind) {
    case ir::ValueKind::kParameter:
    case ir::ValueKind::kState:
      return Persistent(sub, value, layer_prefix);
    case ir::ValueKind::kConstant:
      return graph_->AddConstant(node_prefix + value.name, value.data);
    default:
      return absl::InternalError(absl::StrCat("[inline] ", value.name, " does not belong in a forward graph"));
  }
}

absl::StatusOr<ir::ValueId> GraphInliner::Persistent(const ir::Graph& sub, const ir::Value& value,
                                                     const std::string& prefix) {
  const bool trained = value.kind == ir::ValueKind::kParameter;
  const auto slot = static_cast<size_t>(value.slot);
  ir::Persistent own = trained ? sub.parameters[slot] : sub.states[slot];
  own.name = prefix + own.name;
  const auto [it, added] = persistents_.insert({own.name, -1});
  if (added) {
    it->second = trained ? graph_->AddParameter(std::move(own)) : graph_->AddState(std::move(own));
    return it->second;
  }
  const ir::Value& shared = graph_->values[it->second];
  if (shared.kind != value.kind) return absl::InternalError(absl::StrCat("[inline] two kinds of ", own.name));
  const auto index = static_cast<size_t>(shared.slot);
  AMPD_RETURN_IF_ERROR(CheckSame(trained ? graph_->parameters[index] : graph_->states[index], own));
  return it->second;
}

absl::Status ShareParameters(const std::vector<ir::Graph*>& graphs) {
  Union parameters, states;
  for (const ir::Graph* graph : graphs) {
    AMPD_RETURN_IF_ERROR(parameters.Add(graph->parameters));
    AMPD_RETURN_IF_ERROR(states.Add(graph->states));
  }
  for (ir::Graph* graph : graphs) {
    for (ir::Value& value : graph->values) {
      if (value.slot < 0) continue;
      const auto slot = static_cast<size_t>(value.slot);
      value.slot = value.kind == ir::ValueKind::kState ? states.IndexOf(graph->states[slot].name)
                                                       : parameters.IndexOf(graph->parameters[slot].name);
    }
    graph->parameters = parameters.all();
    graph->states = states.all();
  }
  return absl::OkStatus();
}

}  // namespace ampd::models
