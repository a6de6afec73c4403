// What a model's loss and metrics add to its graph. Used by model.cc.
#ifndef AMPD_ENGINE_MODELS_LOSS_H_
#define AMPD_ENGINE_MODELS_LOSS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/model.pb.h"
#include "engine/ir/graph.h"
#include "engine/models/layers.h"
#include "engine/models/model.h"

namespace ampd::models {

// Adds the inputs and outputs that model.h lists, behind `prediction`, the last layer's output.
// INVALID_ARGUMENT "[op] ..., node loss" when shapes, data and loss do not fit together.
absl::Status AddLoss(const v1::LossSpec& spec, const SampleInfo& sample, bool training, const LayerOutput& prediction,
                     ir::Graph* graph);

// Adds the mean of a loss of `prediction` against `target` and returns it, an f32 scalar: labels (i32, one a row of the
// prediction's last axis) or f32 of the prediction's shape. Nodes are named after `name`. Errors as above.
absl::StatusOr<ir::ValueId> AddLossTerm(const v1::LossSpec& spec, const std::string& name, const SampleInfo& sample,
                                        ir::ValueId prediction, ir::ValueId target, ir::Graph* graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_LOSS_H_
