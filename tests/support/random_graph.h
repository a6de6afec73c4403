// Random forward graphs with a loss, of every op that the generator knows, for properties that must hold of any graph.
#ifndef AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_
#define AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_

#include <cstdint>

#include "engine/ir/graph.h"
#include "tests/support/graph_reference.h"

namespace ampd::testing {

// A valid f32 graph of about `nodes` nodes: a DAG over images that ends in a classifier and "loss", "losses". Equal
// seeds give equal graphs.
ir::Graph RandomForwardGraph(uint64_t seed, int nodes);

// Parameters, states and a batch, each number exact in f32.
GraphInputs RandomGraphInputs(const ir::Graph& graph, uint64_t seed);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_RANDOM_GRAPH_H_
