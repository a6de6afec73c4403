#include "engine/passes/add_to_norm_grads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/precision.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;

const ir::Attributes kRows = {{"axis", int64_t{1}}, {"epsilon", 1e-5}};
const ir::Attributes kTransposed = {{"transpose_b", int64_t{1}}};

ValueId Weight(ir::Graph* g, const std::string& name, const Shape& shape) {
  return g->AddParameter({.name = name, .type = {DType::kF32, shape}});
}

// A step over what `build` makes of a product of x, so that its gradient is wanted.
ir::Graph Step(const std::function<ValueId(ir::Graph*, ValueId)>& build, DType compute) {
  ir::Graph g;
  const ValueId x = g.AddInput("x", {DType::kF32, {6, 16}});
  const ValueId y =
      build(&g, Emit(&g, OpKind::kMatmul, "first", {x, Weight(&g, "first.weight", {16, 16})}, kTransposed));
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {Emit(&g, OpKind::kMul, "square", {y, y})});
  const ir::Graph forward = Pass(ApplyPrecision(g, {.compute = compute}));
  return Pass(RemoveDeadNodes(Pass(autodiff::Differentiate(forward, forward.outputs.at("loss")))));
}

ValueId Norm(ir::Graph* g, OpKind op, ValueId x) {
  std::vector<ValueId> inputs = {x, Weight(g, "norm.weight", {16})};
  if (op == OpKind::kLayerNorm) inputs.push_back(Weight(g, "norm.bias", {16}));
  return Emit(g, op, "norm", inputs, kRows);
}

// x + fc(norm(x))
ValueId Block(ir::Graph* g, OpKind op, ValueId x) {
  const ValueId y = Emit(g, OpKind::kMatmul, "fc", {Norm(g, op, x), Weight(g, "fc.weight", {16, 16})}, kTransposed);
  return Emit(g, OpKind::kAdd, "sum", {x, y});
}

void ExpectSameGradients(const ir::Graph& a, const ir::Graph& b) {
  const auto expected = GradientsOf(a, 1), found = GradientsOf(b, 1);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t p = 0; p < expected.size(); ++p) {
    for (size_t i = 0; i < expected[p].data.size(); ++i) {
      EXPECT_NEAR(found[p].data[i], expected[p].data[i], 1e-12 * std::fabs(expected[p].data[i]) + 1e-14) << p;
    }
  }
}

TEST(AddToNormGrads, WhatGoesPastABlockIsAddedByItsNorm) {
  for (OpKind op : {OpKind::kLayerNorm, OpKind::kRmsNorm}) {
    for (DType compute : {DType::kF32, DType::kF16, DType::kBF16}) {
      const ir::Graph before = Step([op](ir::Graph* g, ValueId x) { return Block(g, op, x); }, compute);
      const ir::Graph after = Pass(AddToNormGrads(before));
      // The forward one stays.
      EXPECT_EQ(Count(after, OpKind::kAdd), Count(before, OpKind::kAdd) - 1) << ir::GraphString(after);
      ExpectSameGradients(before, after);
    }
  }
}

// The other way goes through a product, whose gradient comes after the norm's.
TEST(AddToNormGrads, LeavesASumWithWhatIsNotThereYet) {
  const auto build = [](ir::Graph* g, ValueId x) {
    const ValueId side = Emit(g, OpKind::kMatmul, "side", {x, Weight(g, "side.weight", {16, 16})}, kTransposed);
    return Emit(g, OpKind::kAdd, "sum", {side, Norm(g, OpKind::kLayerNorm, x)});
  };
  const ir::Graph before = Step(build, DType::kF32);
  ASSERT_GE(Count(before, OpKind::kAdd), 2) << ir::GraphString(before);
  EXPECT_EQ(ir::GraphString(Pass(AddToNormGrads(before))), ir::GraphString(before));
}

TEST(AddToNormGrads, AddsOnceToEach) {
  const auto build = [](ir::Graph* g, ValueId x) {
    const ValueId sum = Block(g, OpKind::kLayerNorm, x);
    return Emit(g, OpKind::kMul, "gated", {sum, Emit(g, OpKind::kTanh, "gate", {x})});
  };
  const ir::Graph before = Step(build, DType::kBF16);
  const ir::Graph after = Pass(AddToNormGrads(before));
  EXPECT_EQ(Count(after, OpKind::kAdd), Count(before, OpKind::kAdd) - 1) << ir::GraphString(after);
  ExpectSameGradients(before, after);
}

TEST(AddToNormGrads, LeavesAGradientThatOthersRead) {
  ir::Graph before = Step([](ir::Graph* g, ValueId x) { return Block(g, OpKind::kLayerNorm, x); }, DType::kF16);
  for (const ir::Node& node : before.nodes) {
    if (node.op == OpKind::kLayerNormGrad) before.outputs["dx"] = node.outputs[0];
  }
  EXPECT_EQ(ir::GraphString(Pass(AddToNormGrads(before))), ir::GraphString(before));
}

TEST(AddToNormGrads, LeavesANormWithoutAScale) {
  const auto build = [](ir::Graph* g, ValueId x) {
    return Emit(g, OpKind::kAdd, "sum", {x, Emit(g, OpKind::kLayerNorm, "norm", {x}, kRows)});
  };
  const ir::Graph before = Step(build, DType::kF32);
  EXPECT_EQ(ir::GraphString(Pass(AddToNormGrads(before))), ir::GraphString(before));
}

}  // namespace
}  // namespace ampd::passes
