// What tests of passes ask of graphs.
#ifndef AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_
#define AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "tests/support/graph_reference.h"
#include "tests/support/reference.h"

namespace ampd::passes {

// A pass's result, verified; an empty graph and a gtest failure where there is none.
inline ir::Graph Pass(absl::StatusOr<ir::Graph> graph) {
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  EXPECT_TRUE(ops::VerifyGraph(*graph).ok()) << ops::VerifyGraph(*graph) << "\n" << ir::GraphString(*graph);
  return *std::move(graph);
}

// By parameter, in float64: of random numbers for the f32 inputs and the parameters, the same for graphs that have the
// same of both. States are zeros.
inline std::vector<ampd::testing::RefTensor> GradientsOf(const ir::Graph& g, float loss_seed) {
  ampd::testing::Random random(5);
  ampd::testing::GraphInputs in;
  for (const ir::Value& value : g.values) {
    if (value.kind != ir::ValueKind::kInput) continue;
    in.inputs[value.name] = ampd::testing::RandomTensor(&random, value.type.shape, DType::kF32);
  }
  for (const ir::Persistent& p : g.parameters) {
    in.parameters.push_back(ampd::testing::RandomTensor(&random, p.type.shape, DType::kF32));
  }
  for (const ir::Persistent& s : g.states) in.states.push_back(ampd::testing::Filled(s.type.shape));
  in.step.loss_seed = loss_seed;
  return RunGraphReference(g, in).gradients;
}

inline int Count(const ir::Graph& g, ir::OpKind op) {
  int count = 0;
  for (const ir::Node& node : g.nodes) count += node.op == op;
  return count;
}

}  // namespace ampd::passes

#endif  // AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_
