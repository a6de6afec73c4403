#include "engine/passes/dead_nodes.h"

#include <gtest/gtest.h>

#include "engine/ops/op_def.h"

namespace ampd::passes {
namespace {

TEST(RemoveDeadNodes, KeepsOutputsEffectsAndWhatTheyRead) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {8}});
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {8}}});
  const auto emit = [&](const char* name, ir::OpKind op, std::vector<ir::ValueId> inputs) {
    auto outputs = ops::Emit(&g, {.op = op, .name = name, .inputs = inputs});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    return outputs->empty() ? -1 : (*outputs)[0];
  };
  const ir::ValueId used = emit("used", ir::OpKind::kRelu, {x});
  const ir::ValueId dead = emit("dead", ir::OpKind::kRelu, {x});
  emit("dead2", ir::OpKind::kAdd, {dead, used});
  const ir::ValueId gradient = emit("gradient", ir::OpKind::kAdd, {used, x});
  emit("effect", ir::OpKind::kAccumulateGrad, {gradient, w});
  g.outputs["loss"] = emit("mean", ir::OpKind::kReduceMean, {used});
  auto pruned = RemoveDeadNodes(g);
  ASSERT_TRUE(pruned.ok());
  std::vector<std::string> names;
  for (const ir::Node& node : pruned->nodes) names.push_back(node.name);
  EXPECT_EQ(names, (std::vector<std::string>{"used", "gradient", "effect", "mean"}));
  EXPECT_TRUE(ops::VerifyGraph(*pruned).ok());
}

}  // namespace
}  // namespace ampd::passes
