// Has products of 8-bit operands give what their codes stand for.
#ifndef AMPD_ENGINE_PASSES_SCALE_PRODUCTS_H_
#define AMPD_ENGINE_PASSES_SCALE_PRODUCTS_H_

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// A matmul of 8-bit codes and the dequantize that alone reads its f32 sums become one matmul that is given both scales
// and writes the dequantize's dtype: the sums, four times as wide as the codes, never reach memory. One rounding more
// or less in f32 than before; the node keeps the product's name, and its result the dequantize's.
//
// Runs behind passes/quantize_fp8.
absl::StatusOr<ir::Graph> ScaleProducts(ir::Graph graph);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_SCALE_PRODUCTS_H_
