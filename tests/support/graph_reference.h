// Runs a whole graph in float64, op by op, with the references of reference.h: what plans and gradients are compared
// to.
#ifndef AMPD_TESTS_SUPPORT_GRAPH_REFERENCE_H_
#define AMPD_TESTS_SUPPORT_GRAPH_REFERENCE_H_

#include <map>
#include <string>
#include <vector>

#include "engine/ir/graph.h"
#include "engine/runtime/step_state.h"
#include "tests/support/reference.h"

namespace ampd::testing {

struct GraphInputs {
  std::map<std::string, RefTensor> inputs;  // by name
  std::vector<RefTensor> parameters;        // by slot
  std::vector<RefTensor> states;            // by slot
  runtime::StepState step;
};

struct GraphResults {
  std::map<std::string, RefTensor> outputs;  // by name
  std::vector<RefTensor> gradients;          // by parameter slot; zeros where nothing was accumulated
  std::vector<RefTensor> values;             // by value
};

// Casts change nothing: everything is exact float64. Untrained state is read, never written.
GraphResults RunGraphReference(const ir::Graph& graph, const GraphInputs& in);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_GRAPH_REFERENCE_H_
