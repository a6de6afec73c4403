// Biases in front of batch norms that are not added: what a step leaves behind, against the step that adds them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/passes/drop_norm_biases.h"
#include "tests/support/emit.h"
#include "tests/support/random_graph.h"
#include "tests/unit/engine/runtime/machine.h"
#include "tests/unit/engine/runtime/random_step.h"

namespace ampd::runtime {
namespace {

using ir::OpKind;
using ir::ValueId;
using testing::Emit;

constexpr int64_t kChannels = 6;
constexpr double kMomentum = 0.25;

// Two convolutions with biases and norms, a relu between them.
ir::Graph Forward() {
  ir::Graph g;
  const auto parameter = [&](const std::string& name, Shape shape) {
    return g.AddParameter({.name = name, .type = {DType::kF32, std::move(shape)}});
  };
  ValueId x = g.AddInput("x", {DType::kF32, {4, 9, 9, 3}});
  for (const std::string layer : {"a", "b"}) {
    const Shape filter = {kChannels, 3, 3, g.type(x).shape.back()};
    const ValueId w = parameter(layer + ".weight", filter), bias = parameter(layer + ".bias", {kChannels});
    const ir::Attributes window{{"strides", std::vector<int64_t>{2, 2}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
    x = Emit(&g, OpKind::kBiasAdd, layer, {Emit(&g, OpKind::kConv2d, layer, {x, w}, window), bias});
    const ValueId scale = parameter(layer + ".scale", {kChannels}), shift = parameter(layer + ".shift", {kChannels});
    const int64_t count = NumElements(g.type(x).shape) / kChannels;
    x = Emit(&g, OpKind::kBatchNorm, layer, {x, scale, shift}, {{"epsilon", 0.1}});
    const std::vector<ValueId> norm = g.nodes.back().outputs;
    const auto state = [&](const std::string& name) {
      return g.AddState({.name = layer + name, .type = {DType::kF32, {kChannels}}});
    };
    const ValueId mean = state(".mean"), var = state(".var");
    const ValueId batches = g.AddState({.name = layer + ".batches", .type = {DType::kI64, {}}});
    ops::Emit(&g, {.op = OpKind::kBatchNormUpdate,
                   .name = layer + ".update",
                   .inputs = {norm[1], norm[2], mean, var, batches},
                   .attributes = {{"momentum", kMomentum}, {"count", count}}})
        .value();
    x = Emit(&g, layer == "a" ? OpKind::kRelu : OpKind::kTanh, layer, {x});
  }
  g.outputs["losses"] = x = Emit(&g, OpKind::kMul, "square", {x, x});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {x});
  return g;
}

// `graph` without the additions, as models have it dropped: right behind differentiation.
ir::Graph Without(const ir::Graph& graph) {
  auto dropped = passes::DropNormBiases(graph);
  EXPECT_TRUE(dropped.ok()) << dropped.status();
  auto tidied = passes::RemoveDeadNodes(*std::move(dropped));
  EXPECT_TRUE(tidied.ok() && ops::VerifyGraph(*tidied).ok());
  return *std::move(tidied);
}

int CountOf(const ir::Graph& graph, OpKind op) {
  int count = 0;
  for (const ir::Node& node : graph.nodes) count += node.op == op;
  return count;
}

RefTensor Copied(TensorView view) {
  RefTensor t{view.shape, {}};
  for (int64_t i = 0; i < view.size(); ++i) t.data.push_back(view.as<float>()[i]);
  return t;
}

// What state `s`, f32 by channel, becomes when the step is committed.
TensorView Pending(Machine& machine, int32_t s) {
  const int64_t at = machine.memory().layout().state_offsets()[static_cast<size_t>(s)];
  return {machine.memory().pending_state() + at, DType::kF32, {kChannels}};
}

double SizeOf(const RefTensor& t) {
  double sum = 0;
  for (double v : t.data) sum += v * v;
  return std::sqrt(sum);
}

// `graph` with a bias in front of every norm, of which random graphs have few.
ir::Graph WithBiases(ir::Graph graph) {
  std::vector<ir::Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (ir::Node& node : nodes) {
    if (node.op == OpKind::kBatchNorm) {
      const ir::ValueId bias = graph.AddParameter(
          {.name = node.name + ".before", .type = {DType::kF32, {graph.type(node.inputs[0]).shape.back()}}});
      node.inputs[0] = Emit(&graph, OpKind::kBiasAdd, node.name, {node.inputs[0], bias});
    }
    graph.nodes.push_back(std::move(node));
  }
  graph.RefreshProducers();
  return graph;
}

class NormBiases : public ::testing::TestWithParam<Mode> {};

TEST_P(NormBiases, AStepLeavesBehindWhatItDidWithThem) {
  const ir::Graph with = StepOf(Forward(), GetParam(), Passes::kTidied), without = Without(with);
  ASSERT_EQ(CountOf(with, OpKind::kBiasAdd), 2);
  ASSERT_EQ(CountOf(without, OpKind::kBiasAdd), 0);
  ASSERT_EQ(CountOf(without, OpKind::kBiasAddGrad), 0);
  const GraphInputs in = testing::RandomGraphInputs(with, 11);
  Machine a(with, in, 2), b(without, in, 2);
  a.Run(in.step);
  b.Run(in.step);
  const DType dtype = GetParam().compute.dtype;
  // Values move by a few roundings, those of 8 bits to the next code; of f32 they are sums in double.
  const double bound = dtype == DType::kF32 ? 1e-5 : IsF8(dtype) ? 0.2 : 16 * UnitRoundoff(dtype);
  EXPECT_LE(Deviation(Copied(*a.executor().Output("losses")), *b.executor().Output("losses")), bound);
  for (int32_t p = 0; p < static_cast<int32_t>(with.parameters.size()); ++p) {
    const std::string& name = with.parameters[static_cast<size_t>(p)].name;
    const RefTensor expected = Copied(a.memory().Gradient(p));
    if (name.find(".bias") == std::string::npos) {
      EXPECT_GT(SizeOf(expected), 1e-3) << name;
      EXPECT_LE(Deviation(expected, b.memory().Gradient(p)), bound) << name;
      continue;
    }
    EXPECT_LE(SizeOf(expected), bound) << name;
    for (double v : Copied(b.memory().Gradient(p)).data) EXPECT_EQ(v, 0) << name;
  }
  for (int32_t s = 0; s < static_cast<int32_t>(with.states.size()); ++s) {
    const ir::Persistent& state = with.states[static_cast<size_t>(s)];
    if (state.type.dtype != DType::kF32 || state.type.shape != Shape{kChannels}) continue;
    const RefTensor expected = Copied(Pending(a, s));
    EXPECT_GT(SizeOf(expected), 1e-2) << state.name;
    EXPECT_LE(Deviation(expected, Pending(b, s)), bound) << state.name;
  }
}

// In float64, whatever stands around the norm.
TEST_P(NormBiases, AnyGraphMeansTheSameWithoutThem) {
  int dropped = 0;
  for (uint64_t seed = 1; seed <= RandomGraphCount(); ++seed) {
    const ir::Graph forward = WithBiases(testing::RandomForwardGraph(seed, 20));
    const ir::Graph with = StepOf(forward, GetParam(), Passes::kTidied), without = Without(with);
    if (CountOf(with, OpKind::kBatchNormGrad) == 0) continue;
    dropped += CountOf(with, OpKind::kBiasAdd) - CountOf(without, OpKind::kBiasAdd);
    const GraphInputs in = testing::RandomGraphInputs(with, seed);
    const GraphResults expected = testing::RunGraphReference(with, in);
    const GraphResults actual = testing::RunGraphReference(without, in);
    const auto compare = [&](const RefTensor& a, const RefTensor& b, const std::string& what) {
      ASSERT_EQ(a.shape, b.shape) << seed << what;
      for (int64_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.data[i], b.data[i], 1e-9 * (1 + Largest(a))) << seed << what;
    };
    compare(expected.outputs.at("losses"), actual.outputs.at("losses"), " losses");
    for (size_t p = 0; p < expected.gradients.size(); ++p) {
      compare(expected.gradients[p], actual.gradients[p], " gradient of p" + std::to_string(p));
    }
  }
  EXPECT_GE(dropped, 10);
}

INSTANTIATE_TEST_SUITE_P(Modes, NormBiases, ::testing::ValuesIn(AllModes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::runtime
