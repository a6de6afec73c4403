// Has a batch norm's gradient close the gates of the relu behind the norm itself.
#ifndef AMPD_ENGINE_PASSES_GATE_NORM_GRADS_H_
#define AMPD_ENGINE_PASSES_GATE_NORM_GRADS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Where y = relu(n), n a norm of x that passes/split_norms took apart, and batch_norm_grad alone reads relu_grad(dz,
// y): batch_norm_grad gets dz, and the norm's factor and bias, by which it computes n anew from the x that it reads
// anyway. So a pass over dz, y and the gated gradient is spared. Results have the same bits: n is computed and rounded
// as the forward pass does it.
//
// Runs behind passes/split_norms and before passes/fuse.
absl::StatusOr<ir::Graph> GateNormGrads(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_GATE_NORM_GRADS_H_
