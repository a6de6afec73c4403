// What tests of passes ask of graphs.
#ifndef AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_
#define AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_

#include <gtest/gtest.h>

#include <utility>

#include "absl/status/statusor.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"

namespace ampd::passes {

// A pass's result, verified; an empty graph and a gtest failure where there is none.
inline ir::Graph Pass(absl::StatusOr<ir::Graph> graph) {
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  EXPECT_TRUE(ops::VerifyGraph(*graph).ok()) << ops::VerifyGraph(*graph) << "\n" << ir::GraphString(*graph);
  return *std::move(graph);
}

inline int Count(const ir::Graph& g, ir::OpKind op) {
  int count = 0;
  for (const ir::Node& node : g.nodes) count += node.op == op;
  return count;
}

}  // namespace ampd::passes

#endif  // AMPD_TESTS_UNIT_ENGINE_PASSES_GRAPH_CHECKS_H_
