// Random forward graphs with a loss, of every op that the generator knows, for properties that must hold of any graph.
#ifndef AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_
#define AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_

#include <cstdint>

#include "engine/ir/graph.h"
#include "tests/support/graph_reference.h"

namespace ampd::testing {

// A valid f32 graph of at least `nodes` nodes and about as many: a DAG over images, sequences or ids that ends in
// "loss" and "losses". Tensors and parameters have several readers, some nodes none; extents are small, odd and one.
// Only ops that are continuous in their floats: where a function jumps, a rounding may change everything behind it.
// Equal seeds give equal graphs.
ir::Graph RandomForwardGraph(uint64_t seed, int nodes);

// Parameters, states and a batch, each number exact in f32. `graph` may have gone through passes: inputs and parameters
// are those of the forward graph it came from. Scales of 8-bit operands are powers of two, other states zeros.
GraphInputs RandomGraphInputs(const ir::Graph& graph, uint64_t seed);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_
