// Makes the ALLOW nodes that passes/precision marked FP8 compute on 8-bit operands.
#ifndef AMPD_ENGINE_PASSES_QUANTIZE_FP8_H_
#define AMPD_ENGINE_PASSES_QUANTIZE_FP8_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// Runs after differentiation (or on a forward graph), before casts are fused or parameters published. Each marked node
// becomes
//     quantize(a), quantize(b) -> the op on 8-bit operands, f32 result -> dequantize into the node's own dtype,
// in place of its 16-bit casts: what a cast narrowed is quantized from the wider value, and views of one value are
// views of its codes. Values that the backward pass made become e5m2, all others e4m3fn. A value is quantized once for
// a forward node and its gradient nodes, with the scale of that forward node; the first such use is followed by
// amax_update of what it found as its largest magnitude where `train` is set. The states that hold scales must exist
// (passes/precision adds them). INTERNAL, naming the node, if one does not.
absl::StatusOr<ir::Graph> QuantizeFp8(ir::Graph graph, bool train);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_QUANTIZE_FP8_H_
