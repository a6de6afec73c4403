// What a model's loss and metrics add to its graph. Used by model.cc.
#ifndef AMPD_ENGINE_MODELS_LOSS_H_
#define AMPD_ENGINE_MODELS_LOSS_H_

#include "absl/status/status.h"
#include "ampd/v1/model.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/layers.h"
#include "engine/models/model.h"

namespace ampd::models {

// Adds the inputs and outputs that model.h lists, behind `prediction`, the last layer's output. `lengths`: the graph's
// input of that name, or -1. INVALID_ARGUMENT "[op] ..., node loss" when shapes, data and loss do not fit together.
absl::Status AddLoss(const v1::LossSpec& spec, const SampleInfo& sample, bool training, const LayerOutput& prediction,
                     ir::ValueId lengths, ir::Graph* graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_LOSS_H_
