#include "engine/passes/drop_norm_biases.h"

#include <gtest/gtest.h>

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

// A product with a bias and a norm behind it, whose running statistics follow.
struct Network {
  ir::Graph g;
  ValueId x, product, bias, sum, scale, shift;

  Network() {
    x = g.AddInput("x", {DType::kF32, {7, 5}});
    const ValueId w = g.AddParameter({.name = "fc.weight", .type = {DType::kF32, {3, 5}}});
    bias = Vector("fc.bias");
    scale = Vector("bn.weight");
    shift = Vector("bn.bias");
    product = Emit(&g, OpKind::kMatmul, "fc", {x, w}, {{"transpose_b", int64_t{1}}});
    sum = Emit(&g, OpKind::kBiasAdd, "fc", {product, bias});
  }

  ValueId Vector(const std::string& name) { return g.AddParameter({.name = name, .type = {DType::kF32, {3}}}); }

  ValueId Norm(const std::string& layer, ValueId of) {
    const ValueId y = Emit(&g, OpKind::kBatchNorm, layer, {of, scale, shift}, {{"epsilon", 1e-2}});
    const std::vector<ValueId> outputs = g.nodes.back().outputs;
    const ValueId mean = g.AddState({.name = layer + ".mean", .type = {DType::kF32, {3}}});
    const ValueId var = g.AddState({.name = layer + ".var", .type = {DType::kF32, {3}}});
    const ValueId batches = g.AddState({.name = layer + ".batches", .type = {DType::kI64, {}}});
    ops::Emit(&g, {.op = OpKind::kBatchNormUpdate,
                   .name = layer + ".update",
                   .inputs = {outputs[1], outputs[2], mean, var, batches},
                   .attributes = {{"momentum", 0.1}, {"count", int64_t{7}}}})
        .value();
    return y;
  }

  ir::Graph Step(ValueId y, DType compute = DType::kF32, const std::vector<bool>& trained = {}) {
    g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss",
                             {Emit(&g, OpKind::kTanh, "square", {Emit(&g, OpKind::kMul, "square", {y, y})})});
    const ir::Graph forward = Pass(ApplyPrecision(g, {.compute = compute}));
    return Pass(RemoveDeadNodes(Pass(autodiff::Differentiate(forward, forward.outputs.at("loss"), trained))));
  }
};

ir::Graph Dropped(const ir::Graph& step) { return Pass(RemoveDeadNodes(Pass(DropNormBiases(step)))); }

const ir::Node& Find(const ir::Graph& g, OpKind op) {
  for (const ir::Node& node : g.nodes) {
    if (node.op == op) return node;
  }
  ADD_FAILURE() << ir::OpName(op) << " is not in\n" << ir::GraphString(g);
  return g.nodes[0];
}

std::vector<double> AllZeros(size_t size) { return std::vector<double>(size, 0.0); }

// In float64, where both graphs give the same but for its roundings.
void ExpectSameGradients(const ir::Graph& before, const ir::Graph& after, const std::vector<size_t>& biases) {
  const auto expected = GradientsOf(before, 16), found = GradientsOf(after, 16);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t p = 0; p < found.size(); ++p) {
    const bool bias = std::find(biases.begin(), biases.end(), p) != biases.end();
    if (bias) {
      EXPECT_EQ(found[p].data, AllZeros(found[p].data.size())) << before.parameters[p].name;
    }
    for (size_t i = 0; i < found[p].data.size(); ++i) {
      EXPECT_NEAR(found[p].data[i], expected[p].data[i], 1e-12) << before.parameters[p].name;
    }
  }
  double size = 0;
  for (double v : found[0].data) size += std::abs(v);
  EXPECT_GT(size, 1e-3);
}

TEST(DropNormBiases, TheMeanTakesTheBiasAway) {
  for (DType compute : {DType::kF32, DType::kF16, DType::kBF16}) {
    Network network;
    const ir::Graph before = network.Step(network.Norm("bn", network.sum), compute);
    ASSERT_EQ(Count(before, OpKind::kBiasAddGrad), 1);
    const ir::Graph after = Dropped(before);
    EXPECT_EQ(Count(after, OpKind::kBiasAdd), 0) << ir::GraphString(after);
    EXPECT_EQ(Count(after, OpKind::kBiasAddGrad), 0) << ir::GraphString(after);
    EXPECT_EQ(Count(after, OpKind::kAccumulateGrad), 4);
    const ValueId x = Find(after, OpKind::kMatmul).outputs[0];
    EXPECT_EQ(Find(after, OpKind::kBatchNorm).inputs[0], x);
    EXPECT_EQ(Find(after, OpKind::kBatchNormGrad).inputs[1], x);
    ExpectSameGradients(before, after, {1});
  }
}

TEST(DropNormBiases, TheRunningMeanKeepsTheMaster) {
  for (DType compute : {DType::kF32, DType::kF16}) {
    Network network;
    const ir::Graph after = Dropped(network.Step(network.Norm("bn", network.sum), compute));
    const ir::Node& update = Find(after, OpKind::kBatchNormUpdate);
    ASSERT_EQ(update.inputs.size(), 6u);
    EXPECT_EQ(after.values[update.inputs[5]].name, "fc.bias");
    EXPECT_EQ(after.values[update.inputs[5]].kind, ir::ValueKind::kParameter);
  }
}

TEST(DropNormBiases, WithoutABackwardPass) {
  Network network;
  network.g.outputs["y"] = network.Norm("bn", network.sum);
  const ir::Graph after = Dropped(network.g);
  EXPECT_EQ(Count(after, OpKind::kBiasAdd), 0);
  EXPECT_EQ(Find(after, OpKind::kBatchNormUpdate).inputs.size(), 6u);
}

// It has no gradient, and gets none.
TEST(DropNormBiases, OfABiasThatIsNotTrained) {
  Network network;
  const ir::Graph after =
      Dropped(network.Step(network.Norm("bn", network.sum), DType::kF32, {true, false, true, true}));
  EXPECT_EQ(Count(after, OpKind::kBiasAdd), 0);
  EXPECT_EQ(Count(after, OpKind::kAccumulateGrad), 3);
  EXPECT_EQ(Find(after, OpKind::kBatchNormUpdate).inputs.size(), 6u);
}

// As a network that two calls of a phase share: each norm takes its own mean, both contribute zeros.
TEST(DropNormBiases, OfABiasWithTwoNorms) {
  Network network;
  const ValueId other = Emit(&network.g, OpKind::kTanh, "other", {network.product});
  const ValueId second = Emit(&network.g, OpKind::kBiasAdd, "again", {other, network.bias});
  const ValueId a = network.Norm("a", network.sum), b = network.Norm("b", second);
  const ir::Graph before = network.Step(Emit(&network.g, OpKind::kMul, "both", {a, b}), DType::kF16);
  const ir::Graph after = Dropped(before);
  EXPECT_EQ(Count(after, OpKind::kBiasAdd), 0);
  EXPECT_EQ(Count(after, OpKind::kBiasAddGrad), 0);
  ExpectSameGradients(before, after, {1});
}

// The update takes one; the other stays where it is, and its gradient is as empty.
TEST(DropNormBiases, OfTwoBiasesTheLast) {
  Network network;
  const ValueId second = network.Vector("second.bias");
  const ValueId sum = Emit(&network.g, OpKind::kBiasAdd, "second", {network.sum, second});
  const ir::Graph before = network.Step(network.Norm("bn", sum));
  const ir::Graph after = Dropped(before);
  EXPECT_EQ(after.values[Find(after, OpKind::kBatchNorm).inputs[0]].name, network.g.values[network.sum].name);
  EXPECT_EQ(Count(after, OpKind::kBiasAddGrad), 0);
  ExpectSameGradients(before, after, {1, 4});
}

TEST(DropNormBiases, LeavesASumThatOthersRead) {
  Network network;
  const ValueId norm = network.Norm("bn", network.sum);
  const ir::Graph residual = network.Step(Emit(&network.g, OpKind::kAdd, "residual", {norm, network.sum}));
  EXPECT_EQ(ir::GraphString(Pass(DropNormBiases(residual))), ir::GraphString(residual));
  Network shown;
  shown.g.outputs["sum"] = shown.sum;
  const ir::Graph output = shown.Step(shown.Norm("bn", shown.sum));
  EXPECT_EQ(ir::GraphString(Pass(DropNormBiases(output))), ir::GraphString(output));
}

TEST(DropNormBiases, LeavesAMeanThatOthersRead) {
  for (bool shown : {false, true}) {
    Network network;
    const ValueId norm = network.Norm("bn", network.sum), mean = Find(network.g, OpKind::kBatchNorm).outputs[1];
    network.g.outputs["mean"] = shown ? mean : Emit(&network.g, OpKind::kNeg, "reader", {mean});
    const ir::Graph step = network.Step(norm);
    EXPECT_EQ(ir::GraphString(Pass(DropNormBiases(step))), ir::GraphString(step));
  }
}

// Statistics of other batches do not hold this bias.
TEST(DropNormBiases, LeavesANormByRunningStatistics) {
  Network network;
  const ValueId mean = network.g.AddState({.name = "mean", .type = {DType::kF32, {3}}});
  const ValueId var = network.g.AddState({.name = "var", .type = {DType::kF32, {3}}});
  const ir::Graph step =
      network.Step(Emit(&network.g, OpKind::kBatchNormInference, "bn",
                        {network.sum, network.scale, network.shift, mean, var}, {{"epsilon", 1e-2}}));
  ASSERT_EQ(Count(step, OpKind::kBiasAddGrad), 1);
  EXPECT_EQ(ir::GraphString(Pass(DropNormBiases(step))), ir::GraphString(step));
}

TEST(DropNormBiases, LeavesABiasThatNeverWasF32) {
  ir::Graph g;
  const ValueId x = g.AddInput("x", {DType::kF16, {7, 3}}), bias = g.AddInput("bias", {DType::kF16, {3}});
  const ValueId scale = g.AddInput("scale", {DType::kF32, {3}}), shift = g.AddInput("shift", {DType::kF32, {3}});
  const ValueId sum = Emit(&g, OpKind::kBiasAdd, "fc", {x, bias});
  g.outputs["y"] = Emit(&g, OpKind::kBatchNorm, "bn", {sum, scale, shift}, {{"epsilon", 1e-5}});
  EXPECT_EQ(ir::GraphString(Pass(DropNormBiases(g))), ir::GraphString(g));
}

}  // namespace
}  // namespace ampd::passes
