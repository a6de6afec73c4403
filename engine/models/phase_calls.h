// The calls of a phase, network by network, in a forward graph.
#ifndef AMPD_ENGINE_MODELS_PHASE_CALLS_H_
#define AMPD_ENGINE_MODELS_PHASE_CALLS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/build_layers.h"
#include "engine/models/join_graphs.h"
#include "engine/models/layers.h"

namespace ampd::models {

// Adds calls of one phase to a graph, and the sources that they read, each once. Thread-compatible.
class PhaseCalls {
 public:
  // Adds the source `name` ("data", "labels", "targets" or of model.noise) to the graph. `field`: what reads it first.
  using AddSource = std::function<absl::StatusOr<LayerOutput>(const std::string& name, const std::string& field)>;

  // `spec` is resolved. All that is pointed to outlives this. `training` as LayerBuilder's.
  PhaseCalls(const v1::JobSpec& spec, int phase, bool training, AddSource add_source, ElementBudget* budget,
             ir::Graph* graph);

  // Adds call `index`, of which the calls that it reads have been added. Its nodes are named `node_prefix` and
  // "<layer>.<op>", which makes random streams of their own; layers, parameters and states "<network>.<layer>...".
  // INVALID_ARGUMENT with a violation of "model.networks[i].layers[j]" or "phases[i].calls[j]...".
  absl::Status Add(int index, const std::string& node_prefix);

  // The value of a call that has been added, or of a source. INVALID_ARGUMENT with a violation of `field`.
  absl::StatusOr<LayerOutput> ValueOf(const std::string& name, const std::string& field);

 private:
  const v1::JobSpec& spec_;
  const v1::PhaseSpec& phase_;
  const std::string field_;
  const bool training_;
  const AddSource add_source_;
  ElementBudget* budget_;
  ir::Graph* graph_;
  GraphInliner inliner_;
  std::map<std::string, int> networks_;
  std::map<std::string, LayerOutput> values_;
};

// Where model.noise has the source `name`; null where it has none.
const v1::NoiseSource* FindNoise(const v1::ModelSpec& model, const std::string& name);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_PHASE_CALLS_H_
