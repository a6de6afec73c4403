// The multibox loss of single-shot detectors (Liu et al. 2016).
#ifndef AMPD_ENGINE_MODELS_MULTIBOX_H_
#define AMPD_ENGINE_MODELS_MULTIBOX_H_

#include "absl/status/statusor.h"
#include "ampd/v1/model.pb.h"
#include "engine/core/tensor.h"
#include "engine/ir/graph.h"

namespace ampd::models {

// Every prior as (center x, center y, width, height) in shares of the image's sides: f32 [priors, 4], in the order of
// the network's predictions.
Tensor PriorsOf(const v1::MultiboxLoss& loss);

// Adds the loss of each sample, f32 [batch], and returns it. `prediction` is [batch, priors, 5 + classes], `targets` f32
// [batch, boxes * 5]. INVALID_ARGUMENT "[multibox] ..., node loss" when shapes do not fit.
absl::StatusOr<ir::ValueId> AddMultiboxLosses(const v1::MultiboxLoss& loss, ir::ValueId prediction, ir::ValueId targets,
                                              ir::Graph* graph);

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_MULTIBOX_H_
