// Adds no bias to what a batch norm takes the mean away from.
#ifndef AMPD_ENGINE_PASSES_DROP_NORM_BIASES_H_
#define AMPD_ENGINE_PASSES_DROP_NORM_BIASES_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// y = batch_norm(x + b), where nothing else reads x + b: the mean over the batch holds b and is taken away again, so y
// and every gradient are those of batch_norm(x), and b's gradient is zero. The norm and its gradient read x then;
// batch_norm_update is given b, as f32, and moves the running mean by mean + b as before, which is what inference needs
// that adds b; and a constant of zeros takes the place of the sum over rows that was b's gradient, so that b stays a
// parameter with a gradient, which checks, norms, decay and optimizers see. Equal in exact arithmetic; what goes is
// the rounding of x + b to its dtype, and in b's gradient nothing but rounding errors. A b that is not finite shows in
// the running mean alone. The running mean holds b in f32, to which an evaluation in 16 bits adds b rounded: it is off
// by that rounding.
//
// Left alone: batch_norm_inference, whose statistics do not follow b; sums that are cast or masked before the norm or
// that are read by others; batch means that are read by others; biases that are narrower than f32 and no cast of f32.
//
// Runs on a differentiated graph (a forward one works too), before passes/dead_nodes, which takes the additions and
// sums away that nobody reads any more, and before passes/pad_for_tensor_cores, publish_parameters and split_norms.
absl::StatusOr<ir::Graph> DropNormBiases(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_DROP_NORM_BIASES_H_
