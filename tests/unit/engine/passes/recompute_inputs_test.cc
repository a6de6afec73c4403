#include "engine/passes/recompute_inputs.h"

#include <gtest/gtest.h>

#include "engine/ops/op_def.h"

namespace ampd::passes {
namespace {

using ir::OpKind;
using ir::Stage;
using ir::ValueId;

ValueId Emit(ir::Graph* g, OpKind op, const std::string& name, std::vector<ValueId> inputs, Stage stage,
             ir::Attributes attributes = {}) {
  auto outputs =
      ops::Emit(g, {.op = op, .name = name, .inputs = std::move(inputs), .attributes = attributes, .stage = stage});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return (*outputs)[0];
}

// The backward pass reads a padded cast of x, twice, and an activation: it gets one cast and one padding of its own.
TEST(RecomputeInputs, TheBackwardPassGetsItsOwn) {
  ir::Graph g;
  const ValueId x = g.AddInput("x", {DType::kF32, {4, 3}});
  const ValueId cast = Emit(&g, OpKind::kCast, "x:f16", {x}, Stage::kInput, {{"dtype", std::string("f16")}});
  const ValueId wide =
      Emit(&g, OpKind::kPad, "x:f16.padded", {cast}, Stage::kForward, {{"pads", std::vector<int64_t>{0, 0, 0, 5}}});
  const ValueId y = Emit(&g, OpKind::kRelu, "y", {wide}, Stage::kForward);
  const ValueId dy = Emit(&g, OpKind::kMul, "dy", {wide, y}, Stage::kGradient);
  g.outputs["dx"] = Emit(&g, OpKind::kAdd, "dx", {dy, wide}, Stage::kGradient);
  const auto result = RecomputeInputs(g);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(ops::VerifyGraph(*result).ok());
  ASSERT_EQ(result->nodes.size(), g.nodes.size() + 2);
  EXPECT_EQ(result->nodes[3].name, "x:f16:again");
  EXPECT_EQ(result->nodes[3].inputs[0], x);
  EXPECT_EQ(result->nodes[4].name, "x:f16.padded:again");
  const ValueId again = result->nodes[4].outputs[0];
  EXPECT_EQ(result->nodes[5].inputs, (std::vector<ValueId>{again, y}));
  EXPECT_EQ(result->nodes[6].inputs, (std::vector<ValueId>{dy, again}));
  EXPECT_EQ(result->nodes[2].inputs[0], wide);
}

}  // namespace
}  // namespace ampd::passes
