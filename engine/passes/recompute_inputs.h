// Does not keep what is a conversion of the batch.
#ifndef AMPD_ENGINE_PASSES_RECOMPUTE_INPUTS_H_
#define AMPD_ENGINE_PASSES_RECOMPUTE_INPUTS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// A cast or a padding of a graph input that the backward pass reads again is made again for it, since the input stays
// where it is for the whole step and its 16-bit copy need not. Same bits, one more pass over the batch. Runs after
// differentiation.
absl::StatusOr<ir::Graph> RecomputeInputs(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_RECOMPUTE_INPUTS_H_
