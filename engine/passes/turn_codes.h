// Has 8-bit operands written the way round that products on matrix units read them.
#ifndef AMPD_ENGINE_PASSES_TURN_CODES_H_
#define AMPD_ENGINE_PASSES_TURN_CODES_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Matrix units multiply 8-bit codes that both have the inner extent contiguous, which the products of a backward pass
// have not: a gradient times weights [out, in], and gradients and inputs that are summed over their rows. Such an
// operand, where it is a matrix (or all rows of a tensor as one), its extents are multiples of 16, and it comes from a
// quantize that tracks its amax, is read from that quantize's `turned` codes, and the product's transpose_a or
// transpose_b says so. Values stay as they are, to the bit.
//
// Runs behind passes/quantize_fp8, for devices with 8-bit matrix units.
absl::StatusOr<ir::Graph> TurnCodes(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_TURN_CODES_H_
