#include "engine/models/phase_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::models {

using ir::ValueId;

PhaseCalls::PhaseCalls(const v1::JobSpec& spec, int phase, bool training, AddSource add_source, ElementBudget* budget,
                       ir::Graph* graph)
    : spec_(spec),
      phase_(spec.phases(phase)),
      field_(absl::StrCat("phases[", phase, "].calls[")),
      training_(training),
      add_source_(std::move(add_source)),
      budget_(budget),
      graph_(graph),
      inliner_(graph) {
  for (int i = 0; i < spec.model().networks_size(); ++i) networks_[spec.model().networks(i).name()] = i;
}

absl::StatusOr<LayerOutput> PhaseCalls::ValueOf(const std::string& name, const std::string& field) {
  const auto known = values_.find(name);
  if (known != values_.end()) return known->second;
  AMPD_ASSIGN_OR_RETURN(const LayerOutput source, add_source_(name, field));
  AMPD_RETURN_IF_ERROR(budget_->Count(graph_->type(source.value).shape, field));
  values_[name] = source;
  return source;
}

absl::Status PhaseCalls::Add(int index, const std::string& node_prefix) {
  const v1::NetworkCall& call = phase_.calls(index);
  const std::string field = absl::StrCat(field_, index, "]");
  const int of = networks_.at(call.network());
  const v1::Network& network = spec_.model().networks(of);
  ir::Graph sub;
  std::vector<ValueId> values;
  std::vector<std::pair<std::string, LayerOutput>> inputs;
  for (int i = 0; i < call.inputs_size(); ++i) {
    AMPD_ASSIGN_OR_RETURN(const LayerOutput read, ValueOf(call.inputs(i), absl::StrCat(field, ".inputs[", i, "]")));
    values.push_back(read.value);
    inputs.push_back({network.inputs(i), read});
    inputs.back().second.value = sub.AddInput(network.inputs(i), graph_->type(read.value));
  }
  LayerBuilder layers(&sub, training_);
  AMPD_ASSIGN_OR_RETURN(LayerOutput last, AddLayers(network.layers(), absl::StrCat("model.networks[", of, "].layers"),
                                                    inputs, &layers, budget_, &sub));
  const auto map = inliner_.Inline(sub, values, node_prefix, absl::StrCat(network.name(), "."));
  if (!map.ok()) return InvalidField(field, map.status().message());
  last.value = (*map)[static_cast<size_t>(last.value)];
  values_[call.name()] = last;
  return absl::OkStatus();
}

const v1::NoiseSource* FindNoise(const v1::ModelSpec& model, const std::string& name) {
  const auto& all = model.noise();
  const auto it = std::find_if(all.begin(), all.end(), [&](const v1::NoiseSource& n) { return n.name() == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace ampd::models
