// Brings a batch to 16 bits and to the extents that tensor cores want in one pass.
#ifndef AMPD_ENGINE_PASSES_ROUND_PADS_H_
#define AMPD_ENGINE_PASSES_ROUND_PADS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"
#include "engine/passes/read_narrow.h"

namespace ampd::passes {

// A graph input that is cast from f32 to f16 or bf16 for nothing but a padding with a constant, of which at least
// `fewest_bytes` come, is rounded by the padding: the pad reads f32, and the narrow tensor without padding never
// crosses memory. Same bits. Casts of what a node computes are left to passes/fuse, which joins them with that.
//
// Runs behind passes/pad_for_tensor_cores, publish_parameters and recompute_inputs, so each of the batch's two
// conversions is one pass then, and before fuse.
absl::StatusOr<ir::Graph> RoundPads(ir::Graph graph, int64_t fewest_bytes = kFewestNarrowBytes);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_ROUND_PADS_H_
