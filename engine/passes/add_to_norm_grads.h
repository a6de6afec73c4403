// Has the gradient of a norm of rows add what else the gradient of its input is made of.
#ifndef AMPD_ENGINE_PASSES_ADD_TO_NORM_GRADS_H_
#define AMPD_ENGINE_PASSES_ADD_TO_NORM_GRADS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Where the x of a layer_norm or rms_norm with a scale goes on beside it, as it does past every block of a transformer,
// its gradient is a sum: layer_norm_grad, or rms_norm_grad, that alone is read by an add of another tensor like it gets
// that tensor as its last input. So a pass over three tensors is spared, and the sum is rounded once. Only where the
// other one is there before the norm's gradient is.
//
// Runs before passes/fuse, which takes adds into chains.
absl::StatusOr<ir::Graph> AddToNormGrads(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_ADD_TO_NORM_GRADS_H_
