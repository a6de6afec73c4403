// What passes/join_products joins behind passes/fuse, what it leaves alone, and that graphs still mean the same.
#include "engine/passes/join_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/autodiff/differentiate.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fuse.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/split_norms.h"
#include "tests/support/emit.h"
#include "tests/support/graph_reference.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ir::Attributes kTanh = {{"approximate", std::string("tanh")}};

JoinPolicy EverySize() {
  JoinPolicy policy = LibraryJoins();
  policy.fewest_bytes = 0;
  return policy;
}

// A graph with chains fused as for a backend that can fuse all that the CPU's can.
ir::Graph Fused(ir::Graph graph) {
  const auto backend = MakeCpuBackend(1);
  const auto can_fuse = [&](OpKind op) { return backend->CanFuse(op); };
  return Pass(Fuse(Pass(SplitNorms(std::move(graph), can_fuse)), can_fuse));
}

// "conv.conv2d: conv2d, bias_add, relu", by region in order.
std::vector<std::string> Regions(const ir::Graph& graph) {
  std::vector<std::string> regions;
  for (const ir::Node& node : graph.nodes) {
    if (node.op != OpKind::kRegion) continue;
    std::string text = node.name + ":";
    for (const ir::FusedStep& step : node.steps) text += " " + std::string(ir::OpName(step.op));
    regions.push_back(text);
  }
  return regions;
}

std::vector<std::string> RegionsOf(ir::Graph graph, const JoinPolicy& policy = EverySize()) {
  return Regions(Pass(JoinProducts(Fused(std::move(graph)), policy)));
}

struct Dense {
  ir::Graph g;
  ValueId x, w, b, product, sum;

  // `extents` of the input, whose last one is 6.
  explicit Dense(Shape extents = {4, 6}, DType dtype = DType::kF32) {
    x = g.AddInput("x", {dtype, std::move(extents)});
    w = g.AddInput("w", {dtype, {8, 6}});
    b = g.AddInput("b", {dtype, {8}});
    product = Emit(&g, OpKind::kMatmul, "fc", {x, w}, {{"transpose_b", int64_t{1}}});
    sum = Emit(&g, OpKind::kBiasAdd, "fc", {product, b});
  }
  void Return(const std::string& name, ValueId v) { g.outputs[name] = v; }
};

TEST(JoinProducts, ABiasJoinsWhatNothingElementwiseFollows) {
  Dense dense;
  dense.Return("y", dense.sum);
  EXPECT_THAT(RegionsOf(dense.g), ElementsAre("fc.matmul: matmul bias_add"));
}

TEST(JoinProducts, GeluJoinsWithTheBias) {
  Dense dense({2, 3, 6}, DType::kF16);
  dense.Return("y", Emit(&dense.g, OpKind::kGelu, "act", {dense.sum}, kTanh));
  EXPECT_THAT(RegionsOf(dense.g), ElementsAre("fc.matmul: matmul bias_add gelu"));
}

TEST(JoinProducts, CodesJoinWithTheirScales) {
  for (const bool scaled : {true, false}) {
    ir::Graph g;
    std::vector<ValueId> operands = {g.AddInput("x", {DType::kF8E4M3, {4, 32}}),
                                     g.AddInput("w", {DType::kF8E4M3, {48, 32}})};
    ir::Attributes attributes{{"transpose_b", int64_t{1}}};
    if (scaled) {
      for (const char* name : {"x.scale", "w.scale"}) operands.push_back(g.AddInput(name, {DType::kF32, {}}));
      attributes.Set("dtype", std::string("bf16"));
    }
    const ValueId product = Emit(&g, OpKind::kMatmul, "fc", operands, attributes);
    const ValueId bias = g.AddInput("b", {scaled ? DType::kBF16 : DType::kF32, {48}});
    g.outputs["y"] = Emit(&g, OpKind::kBiasAdd, "fc", {product, bias});
    const ir::Graph joined = Pass(JoinProducts(Fused(std::move(g)), EverySize()));
    if (!scaled) {
      EXPECT_THAT(Regions(joined), IsEmpty());
      continue;
    }
    ASSERT_THAT(Regions(joined), ElementsAre("fc.matmul: matmul bias_add"));
    EXPECT_THAT(joined.nodes[0].steps[0].operands, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(joined.nodes[0].steps[1].operands, ElementsAre(5, 4));
  }
}

TEST(JoinProducts, WhatIsAddedBehindJoinsInEitherOrder) {
  for (const bool first : {true, false}) {
    Dense plain({2, 3, 6}, DType::kBF16);
    const ValueId other = plain.g.AddInput("other", {DType::kBF16, {2, 3, 8}});
    const auto sum = [&](ValueId v) { return first ? std::vector<ValueId>{v, other} : std::vector<ValueId>{other, v}; };
    Dense biased = plain;
    plain.Return("y", Emit(&plain.g, OpKind::kAdd, "y", sum(plain.product)));
    EXPECT_THAT(RegionsOf(Pass(RemoveDeadNodes(plain.g))), ElementsAre("fc.matmul: matmul add"));
    biased.Return("y", Emit(&biased.g, OpKind::kAdd, "y", sum(biased.sum)));
    EXPECT_THAT(RegionsOf(biased.g), ElementsAre("fc.matmul: matmul bias_add add"));
    const ir::Graph before = Fused(biased.g), joined = Pass(JoinProducts(before, EverySize()));
    ampd::testing::Random random(3);
    ampd::testing::GraphInputs in;
    for (const ir::Value& value : before.values) {
      if (value.kind != ir::ValueKind::kInput) continue;
      in.inputs[value.name] = ampd::testing::RandomTensor(&random, value.type.shape, DType::kBF16);
    }
    EXPECT_EQ(RunGraphReference(joined, in).outputs.at("y").data, RunGraphReference(before, in).outputs.at("y").data);
  }
}

TEST(JoinProducts, WhatIsRepeatedAlongAnAxisIsNotAddedByTheProduct) {
  Dense dense({2, 3, 6}, DType::kBF16);
  const ValueId other = dense.g.AddInput("other", {DType::kBF16, {3, 8}});
  dense.Return("y", Emit(&dense.g, OpKind::kAdd, "y", {dense.product, other}));
  EXPECT_THAT(RegionsOf(dense.g), IsEmpty());
}

// [2, 3, 1, 8] + [2, 1, 3, 8]: as many elements, and three times as many in the sum.
TEST(JoinProducts, ASumThatRepeatsTheProductIsNotJoined) {
  Dense dense({2, 3, 6}, DType::kBF16);
  const ValueId other = dense.g.AddInput("other", {DType::kBF16, {2, 1, 3, 8}});
  const ValueId rows =
      Emit(&dense.g, OpKind::kReshape, "rows", {dense.product}, {{"shape", std::vector<int64_t>{2, 3, 1, 8}}});
  dense.Return("y", Emit(&dense.g, OpKind::kAdd, "y", {rows, other}));
  EXPECT_THAT(RegionsOf(Pass(RemoveDeadNodes(dense.g))), IsEmpty());
}

TEST(JoinProducts, WhatTheGradientReadsIsAResultToo) {
  Dense dense;
  dense.Return("y", Emit(&dense.g, OpKind::kGelu, "act", {dense.sum}, kTanh));
  dense.Return("h", dense.sum);
  const ir::Graph joined = Pass(JoinProducts(Fused(dense.g), EverySize()));
  ASSERT_EQ(joined.nodes.size(), 1u);
  EXPECT_THAT(joined.nodes[0].results, ElementsAre(1, 2));
  EXPECT_EQ(joined.nodes[0].outputs[0], joined.outputs.at("h"));
}

TEST(JoinProducts, LeavesAloneWhatTheLibraryCannotDo) {
  Dense exact;
  exact.Return("y", Emit(&exact.g, OpKind::kGelu, "act", {exact.sum}));
  EXPECT_THAT(RegionsOf(exact.g), IsEmpty()) << "gelu by erf";
  Dense relu;
  relu.Return("y", Emit(&relu.g, OpKind::kRelu, "act", {relu.sum}));
  EXPECT_THAT(RegionsOf(relu.g), IsEmpty()) << "relu behind a matmul";
  Dense read;
  read.Return("product", read.product);
  read.Return("y", read.sum);
  EXPECT_THAT(RegionsOf(read.g), IsEmpty()) << "the product is read from outside";
  Dense twice;
  twice.Return("y", twice.sum);
  twice.Return("z", Emit(&twice.g, OpKind::kSoftmax, "z", {twice.product}, {{"axis", int64_t{1}}}));
  EXPECT_THAT(RegionsOf(twice.g), IsEmpty()) << "the product has another reader";
  Dense longer;
  longer.Return("y", Emit(&longer.g, OpKind::kMul, "y", {longer.sum, longer.sum}));
  EXPECT_THAT(RegionsOf(longer.g), IsEmpty()) << "the bias costs nothing in a longer chain";
  ir::Graph batch;
  const ValueId a = batch.AddInput("a", {DType::kF32, {2, 6, 3}}), m = batch.AddInput("m", {DType::kF32, {6, 8}});
  const ValueId product = Emit(&batch, OpKind::kMatmul, "t", {a, m}, {{"transpose_a", int64_t{1}}});
  batch.outputs["y"] = Emit(&batch, OpKind::kBiasAdd, "t", {product, batch.AddInput("b", {DType::kF32, {8}})});
  EXPECT_THAT(RegionsOf(batch), IsEmpty()) << "several matrices";
}

TEST(JoinProducts, SmallResultsAreLeftAlone) {
  Dense dense;
  dense.Return("y", dense.sum);
  JoinPolicy policy = EverySize();
  policy.fewest_bytes = 4 * 8 * 4;
  EXPECT_THAT(RegionsOf(dense.g, policy), ElementsAre("fc.matmul: matmul bias_add"));
  ++policy.fewest_bytes;
  EXPECT_THAT(RegionsOf(dense.g, policy), IsEmpty());
  EXPECT_THAT(RegionsOf(dense.g, {}), IsEmpty());
}

TEST(JoinProducts, ConvolutionsJoinBiasAndRelu) {
  ir::Graph g;
  const ValueId x = g.AddInput("x", {DType::kBF16, {1, 4, 4, 3}});
  const ValueId w = g.AddInput("w", {DType::kBF16, {5, 3, 3, 3}}), b = g.AddInput("b", {DType::kBF16, {5}});
  const ir::Attributes attributes = {{"strides", std::vector<int64_t>{1, 1}},
                                     {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
  const ValueId conv = Emit(&g, OpKind::kConv2d, "conv", {x, w}, attributes);
  g.outputs["y"] = Emit(&g, OpKind::kRelu, "conv", {Emit(&g, OpKind::kBiasAdd, "conv", {conv, b})});
  EXPECT_THAT(RegionsOf(g), ElementsAre("conv.conv2d: conv2d bias_add relu"));
}

// The bias in front of a batch norm, whose statistics read the sum before the chain behind them does.
TEST(JoinProducts, ABiasInFrontOfStatisticsJoins) {
  Dense dense;
  const ValueId scale = dense.g.AddInput("scale", {DType::kF32, {8}}),
                shift = dense.g.AddInput("shift", {DType::kF32, {8}});
  dense.Return("y", Emit(&dense.g, OpKind::kBatchNorm, "norm", {dense.sum, scale, shift}, {{"epsilon", 1e-5}}));
  EXPECT_THAT(RegionsOf(dense.g), ElementsAre("fc.matmul: matmul bias_add"));
}

// A perceptron of one hidden layer on sequences, and its gradient: what a transformer's block has.
ir::Graph Perceptron(DType compute, int64_t width) {
  ir::Graph g;
  const ValueId x = g.AddInput("x", {DType::kF32, {2, 3, 6}});
  const auto dense = [&](const std::string& name, ValueId v, int64_t in, int64_t out) {
    const ValueId w = g.AddParameter({.name = name + ".weight", .type = {DType::kF32, {out, in}}});
    const ValueId b = g.AddParameter({.name = name + ".bias", .type = {DType::kF32, {out}}});
    const ValueId y = Emit(&g, OpKind::kMatmul, name, {v, w}, {{"transpose_b", int64_t{1}}});
    return Emit(&g, OpKind::kBiasAdd, name, {y, b});
  };
  ValueId v = dense("up", x, 6, width);
  v = dense("down", Emit(&g, OpKind::kGelu, "act", {v}, kTanh), width, 6);
  const ValueId labels = g.AddInput("labels", {DType::kI32, {2, 3}});
  v = Emit(&g, OpKind::kSoftmaxCrossEntropy, "", {v, labels});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  g = Pass(ApplyPrecision(g, {.compute = compute}));
  const ValueId loss = g.outputs.at("loss");
  g = Pass(autodiff::Differentiate(std::move(g), loss));
  return Pass(PublishParameters(Pass(RemoveDeadNodes(std::move(g)))));
}

TEST(JoinProducts, APerceptronsStepJoinsForwardAndBackward) {
  const ir::Graph before = Fused(Perceptron(DType::kF32, 9));
  const ir::Graph joined = Pass(JoinProducts(before, EverySize()));
  EXPECT_THAT(Regions(joined), ElementsAre("up.matmul: matmul bias_add gelu", "down.matmul: matmul bias_add",
                                           "down.matmul.grad_a: matmul gelu_grad"));
  ampd::testing::Random random(3);
  ampd::testing::GraphInputs in;
  in.inputs["x"] = ampd::testing::RandomTensor(&random, {2, 3, 6}, DType::kF32);
  in.inputs["labels"] = {{2, 3}, {0, 5, 2, 3, 1, 4}};
  for (const ir::Persistent& p : joined.parameters) {
    in.parameters.push_back(ampd::testing::RandomTensor(&random, p.type.shape, DType::kF32));
  }
  in.step.loss_seed = 1;
  const auto expected = RunGraphReference(before, in), found = RunGraphReference(joined, in);
  EXPECT_EQ(found.outputs.at("loss").data, expected.outputs.at("loss").data);
  ASSERT_EQ(found.gradients.size(), 4u);
  for (size_t i = 0; i < found.gradients.size(); ++i)
    EXPECT_EQ(found.gradients[i].data, expected.gradients[i].data) << i;
}

TEST(JoinProducts, ARegionCostsWhatItsPartsCost) {
  const ir::Graph before = Fused(Perceptron(DType::kF16, 8));
  const ir::Graph joined = Pass(JoinProducts(before, EverySize()));
  const auto cost = [](const ir::Graph& graph) {
    ops::Cost total;
    for (const ir::Node& node : graph.nodes) {
      std::vector<ir::TensorType> inputs, outputs;
      for (ValueId v : node.inputs) inputs.push_back(graph.type(v));
      for (ValueId v : node.outputs) outputs.push_back(graph.type(v));
      const ops::Cost own = ops::CostOf(node.op, {node.name, node.attributes, inputs, &node}, outputs);
      total.flops += own.flops;
      total.bytes += own.bytes;
    }
    return total;
  };
  EXPECT_GE(cost(joined).flops, cost(before).flops);
  EXPECT_LE(cost(joined).flops, cost(before).flops * 1.05);
  // Written and read once less: the result of `up` and the gradient of gelu, 6 rows each. The logits are cast to f32.
  EXPECT_EQ(cost(before).bytes - cost(joined).bytes, 2 * 6 * (8 + 8) * 2);
}

TEST(Region, BeginsWithAProduct) {
  Dense dense;
  dense.Return("y", dense.sum);
  ir::Graph joined = Pass(JoinProducts(Fused(dense.g), EverySize()));
  joined.nodes[0].steps[0].op = OpKind::kAdd;
  EXPECT_THAT(std::string(ops::VerifyGraph(joined).message()), ::testing::HasSubstr("step 0 (add) is no product"));
  joined = Pass(JoinProducts(Fused(dense.g), EverySize()));
  joined.nodes[0].steps[1].op = OpKind::kMatmul;
  EXPECT_THAT(std::string(ops::VerifyGraph(joined).message()),
              ::testing::HasSubstr("step 1 (matmul) is not elementwise"));
}

}  // namespace
}  // namespace ampd::passes
