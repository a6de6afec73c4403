// Reverse-mode differentiation: one walk over the ops' gradient rules.
#ifndef AMPD_ENGINE_AUTODIFF_DIFFERENTIATE_H_
#define AMPD_ENGINE_AUTODIFF_DIFFERENTIATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::autodiff {

// `forward` with the backward pass of `loss` (an f32 scalar) behind it. The gradient of the loss is the graph's loss
// seed; every contribution to a parameter's gradient ends in an accumulate_grad node, so that several uses add up in
// fp32. Only what parameters depend on is differentiated. `trained`: by parameter, whether it counts as one; the others
// are constants, through whose uses gradients pass. Empty: all count. Gradients that are zero are constants without
// data (Value::data is null), so that they take no memory before they are read. INVALID_ARGUMENT when an op on the way
// has no gradient (or none through the output that the loss depends on), or when no parameter reaches the loss.
absl::StatusOr<ir::Graph> Differentiate(ir::Graph forward, ir::ValueId loss, const std::vector<bool>& trained = {});

// Adds to `graph` the gradients of the sum of the elements of `y` (f32, f16 or bf16) by each of `leaves`, which count
// as independent: -1 where y does not depend on one. INVALID_ARGUMENT when an op on the way has no gradient.
absl::StatusOr<std::vector<ir::ValueId>> AddGradients(ir::Graph* graph, ir::ValueId y,
                                                      const std::vector<ir::ValueId>& leaves);

}  // namespace ampd::autodiff

#endif  // AMPD_ENGINE_AUTODIFF_DIFFERENTIATE_H_
