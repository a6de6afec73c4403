// The forward graph of one phase of a job with networks.
#ifndef AMPD_ENGINE_MODELS_PHASE_FORWARD_H_
#define AMPD_ENGINE_MODELS_PHASE_FORWARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/job.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/build_layers.h"
#include "engine/models/model.h"

namespace ampd::models {

// Calls and losses of phase `phase` in f32, in training. `spec` is resolved. Inputs, as far as the phase reads them:
// "x", "labels" and "targets", as in Model. Output: "loss", the weighted sum. Where micro-batches share a
// mean over labels, the inputs that are added to `shares`. A node of a call is named
// "<phase>.<call>.<layer>.<op>", which makes random streams of their own; layers, parameters and states are
// "<network>.<layer>...". INVALID_ARGUMENT with a violation of "model.networks[i].layers[j]" or "phases[i]....".
absl::StatusOr<ir::Graph> BuildPhaseForward(const v1::JobSpec& spec, int phase, const SampleInfo& sample, int64_t batch,
                                            ElementBudget* budget, std::vector<PhaseGraph::LabelShare>* shares);

// By parameter of `graph`: whether the phase updates it. INVALID_ARGUMENT with a violation of "phases[i].trains[j]",
// which proposes near names, for an entry that matches no parameter. A phase of a job without networks updates all.
absl::StatusOr<std::vector<bool>> TrainedBy(const v1::JobSpec& spec, int phase, const ir::Graph& graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_PHASE_FORWARD_H_
