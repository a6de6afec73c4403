// Has what computes in fp32 read large 16-bit tensors as they are.
#ifndef AMPD_ENGINE_PASSES_READ_NARROW_H_
#define AMPD_ENGINE_PASSES_READ_NARROW_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// In 16 bits; what fits in no multiprocessor's shared memory, as of JoinPolicy: a small network's step may become one
// kernel, which reads fp32.
inline constexpr int64_t kFewestNarrowBytes = 256 * 1024;

// A cast to f32 of an f16 or bf16 tensor of at least `fewest_bytes` is taken away where only inputs of role kWide read
// its result: their ops widen as they read. Where a result of such an op has the dtype of what it reads, as a gradient
// of logits has, it must have been read by one cast back alone, which goes too; else all stays. Widening is exact and
// the one rounding of the gradient is the cast's, so no value is another; a kernel may add up a row in another order.
// The logits of a language model and their gradient, its largest tensors, then cross memory in 16 bits, and one may lie
// over the other.
//
// Runs after differentiation and before passes/fuse.
absl::StatusOr<ir::Graph> ReadNarrow(ir::Graph graph, int64_t fewest_bytes = kFewestNarrowBytes);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_READ_NARROW_H_
