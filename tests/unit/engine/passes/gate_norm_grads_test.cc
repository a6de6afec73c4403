#include "engine/passes/gate_norm_grads.h"

#include <gtest/gtest.h>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/precision.h"
#include "engine/passes/split_norms.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;

// A product, a norm of it, and what `behind` makes of that; the step's gradient, the norm taken apart.
struct Network {
  ir::Graph g;
  ValueId x, product, norm;

  Network() {
    x = g.AddInput("x", {DType::kF32, {7, 5}});
    const ValueId w = g.AddParameter({.name = "fc.weight", .type = {DType::kF32, {3, 5}}});
    const ValueId scale = g.AddParameter({.name = "bn.weight", .type = {DType::kF32, {3}}});
    const ValueId bias = g.AddParameter({.name = "bn.bias", .type = {DType::kF32, {3}}});
    product = Emit(&g, OpKind::kMatmul, "fc", {x, w}, {{"transpose_b", int64_t{1}}});
    norm = Emit(&g, OpKind::kBatchNorm, "bn", {product, scale, bias}, {{"epsilon", 1e-5}});
  }

  ir::Graph Step(ValueId y, DType compute) {
    g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {Emit(&g, OpKind::kMul, "square", {y, y})});
    const ir::Graph forward = Pass(ApplyPrecision(g, {.compute = compute}));
    const ir::Graph step = Pass(RemoveDeadNodes(Pass(autodiff::Differentiate(forward, forward.outputs.at("loss")))));
    return Pass(SplitNorms(step, [](OpKind) { return true; }));
  }
};

TEST(GateNormGrads, TheReluBehindANormIsItsGradientsAffair) {
  for (DType compute : {DType::kF32, DType::kF16, DType::kBF16}) {
    Network network;
    const ir::Graph before = network.Step(Emit(&network.g, OpKind::kRelu, "act", {network.norm}), compute);
    ASSERT_EQ(Count(before, OpKind::kReluGrad), 1);
    const ir::Graph after = Pass(GateNormGrads(before));
    EXPECT_EQ(Count(after, OpKind::kReluGrad), 0) << ir::GraphString(after);
    for (const ir::Node& node : after.nodes) {
      if (node.op != OpKind::kBatchNormGrad) continue;
      ASSERT_EQ(node.inputs.size(), 7u);
      EXPECT_EQ(after.values[node.inputs[5]].name, "bn.batch_norm.factor");
      EXPECT_EQ(after.values[node.inputs[6]].name, "bn.bias");
    }
    const auto expected = GradientsOf(before, 256), found = GradientsOf(after, 256);
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(found[i].data, expected[i].data) << i;
  }
}

TEST(GateNormGrads, LeavesAReluOfMoreThanTheNorm) {
  Network network;
  const ValueId sum = Emit(&network.g, OpKind::kAdd, "sum", {network.norm, network.product});
  const ir::Graph before = network.Step(Emit(&network.g, OpKind::kRelu, "act", {sum}), DType::kF16);
  EXPECT_EQ(ir::GraphString(Pass(GateNormGrads(before))), ir::GraphString(before));
}

TEST(GateNormGrads, LeavesAGradientThatOthersRead) {
  Network network;
  ir::Graph before = network.Step(Emit(&network.g, OpKind::kRelu, "act", {network.norm}), DType::kBF16);
  for (const ir::Node& node : before.nodes) {
    if (node.op == OpKind::kReluGrad) before.outputs["gated"] = node.outputs[0];
  }
  EXPECT_EQ(ir::GraphString(Pass(GateNormGrads(before))), ir::GraphString(before));
}

TEST(GateNormGrads, LeavesOtherActivations) {
  Network network;
  const ir::Graph before = network.Step(Emit(&network.g, OpKind::kTanh, "act", {network.norm}), DType::kF16);
  EXPECT_EQ(ir::GraphString(Pass(GateNormGrads(before))), ir::GraphString(before));
}

}  // namespace
}  // namespace ampd::passes
