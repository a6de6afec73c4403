// Joins products with the bias, activation or sum behind them, where a library computes both at once.
#ifndef AMPD_ENGINE_PASSES_JOIN_PRODUCTS_H_
#define AMPD_ENGINE_PASSES_JOIN_PRODUCTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/graph.h"

namespace ampd::passes {

// A product and, in order, all of the elementwise ops behind it.
struct JoinPattern {
  ir::OpKind product = ir::OpKind::kMatmul;
  std::vector<ir::OpKind> behind;
};

// What a backend can join; by default nothing.
struct JoinPolicy {
  std::vector<JoinPattern> patterns;
  // Smaller results are left alone.
  int64_t fewest_bytes = 0;
};

// What cuBLASLt and cuDNN compute at once. Not a product's relu: cuBLASLt does not say that its relu keeps a NaN, which
// a step that is to be skipped must not lose; cuDNN's is told to. A result of 256 KiB is the least that fits in no
// multiprocessor's shared memory: networks with smaller ones are bound by launches, and may become one kernel as they
// are (docs/decisions/0048-resident-steps.md).
const JoinPolicy& LibraryJoins();

// Replaces a product and the elementwise node, or the chain that passes/fuse made, which alone reads its result (or a
// reshape of it) by one kRegion node, where all of the chain is the `behind` of a pattern. bias_add's bias is a vector
// of the result's dtype; gelu and gelu_grad are of the tanh form; what add adds, in either order, has as many elements.
// The operands' dtype is the result's, or they are 8-bit codes with scales (passes/scale_products); a matmul's right
// operand is one matrix for all rows of the left one. The region stands where the chain stood and is named after the
// product; its outputs are the values that others read, so a bias_add's is one if gelu's gradient reads it. What is
// only read inside need not be rounded to its dtype any more.
//
// Runs behind passes/fuse, since a bias or an activation that joins a longer chain costs no pass over memory there.
absl::StatusOr<ir::Graph> JoinProducts(ir::Graph graph, const JoinPolicy& policy);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_JOIN_PRODUCTS_H_
