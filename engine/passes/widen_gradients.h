// Gradients of parameters that products leave in f32.
#ifndef AMPD_ENGINE_PASSES_WIDEN_GRADIENTS_H_
#define AMPD_ENGINE_PASSES_WIDEN_GRADIENTS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// A matmul of 16-bit or scaled 8-bit operands that alone makes what an accumulate_grad takes, at most through views,
// slices and transpositions that nobody else reads, leaves its sums in f32, which are not rounded to the operands'
// dtype then and cannot overflow it. Products in f32 stay as they are.
absl::StatusOr<ir::Graph> WidenGradients(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_WIDEN_GRADIENTS_H_
