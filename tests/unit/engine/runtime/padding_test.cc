// Tensor-core padding is storage: networks whose extents are odd give the same numbers with and without it.
#include "engine/passes/pad_for_tensor_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/autodiff/differentiate.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fuse.h"
#include "engine/passes/pipeline.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/split_norms.h"
#include "tests/support/emit.h"
#include "tests/support/small_networks.h"
#include "tests/unit/engine/runtime/machine.h"

namespace ampd::runtime {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using passes::PaddedExtent;
using ::testing::ElementsAre;
using testing::SmallNetwork;

std::vector<SmallNetwork> OddNetworks() {
  return {
      {"stem_and_head",
       R"pb(layers {
              name: "stem"
              conv2d { filters: 13 kernel: 3 stride: 2 padding: SAME activation: RELU }
            }
            layers {
              name: "conv"
              conv2d { filters: 11 kernel: 3 padding: SAME }
            }
            layers {
              name: "bn"
              batch_norm {}
            }
            layers {
              name: "relu"
              relu {}
            }
            layers {
              name: "drop"
              dropout { rate: 0.3 }
            }
            layers {
              name: "pool"
              global_avg_pool {}
            }
            layers {
              name: "head"
              dense { units: 10 }
            }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {9, 8, 3}, .classes = 10}},
      {"mlp",
       R"pb(layers {
              name: "fc1"
              dense { units: 13 activation: GELU }
            }
            layers {
              name: "fc2"
              dense { units: 21 activation: SIGMOID }
            }
            layers {
              name: "drop"
              dropout { rate: 0.3 }
            }
            layers {
              name: "fc3"
              dense { units: 10 activation: RELU }
            }
            layers {
              name: "head"
              dense { units: 5 }
            }
            loss { mean_squared_error {} })pb",
       {.input_shape = {7}, .target_features = 5}},
      {"vocabulary",
       R"pb(layers {
              name: "embed"
              embedding { vocabulary: 1001 features: 12 }
            }
            layers {
              name: "ln"
              layer_norm {}
            }
            layers {
              name: "attn"
              multi_head_attention { heads: 2 causal: true }
            }
            layers {
              name: "fc"
              dense { units: 27 activation: GELU }
            }
            layers {
              name: "fc2"
              dense { units: 12 }
            }
            layers {
              name: "sum"
              add {}
              inputs: "fc2"
              inputs: "attn"
            }
            layers {
              name: "head"
              dense { units: 1001 }
            }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {6}, .classes = 1001, .label_shape = {6}}},
      {"recurrent",
       R"pb(layers {
              name: "lstm"
              lstm { units: 50 }
            }
            layers {
              name: "gru"
              gru { units: 13 output: LAST_STEP }
            }
            layers {
              name: "head"
              dense { units: 10 }
            }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {4, 5}, .classes = 10}},
      {"transposed",
       R"pb(layers {
              name: "down"
              conv2d { filters: 12 kernel: 3 stride: 2 padding: SAME activation: LEAKY_RELU }
            }
            layers {
              name: "up"
              conv_transpose2d { filters: 5 kernel: 3 stride: 2 }
            }
            layers {
              name: "pool"
              global_avg_pool {}
            }
            layers {
              name: "head"
              dense { units: 10 }
            }
            loss { softmax_cross_entropy {} })pb",
       {.input_shape = {6, 6, 3}, .classes = 10}},
  };
}

GraphInputs InputsFor(const SmallNetwork& network, const ir::Graph& graph) {
  GraphInputs in = testing::RandomInputs(network, graph);
  RngSequence rng(8, "ids");
  if (network.name == "vocabulary") {
    for (double& id : in.inputs.at("x").data) id = static_cast<double>(rng.NextBelow(1001));
  }
  for (size_t s = 0; s < graph.states.size(); ++s) {
    const std::string& name = graph.states[s].name;
    for (double& v : in.states[s].data) {
      if (name.find("amax") != std::string::npos) v = 0;
      if (name.find(".scale") != std::string::npos) v = 64;
    }
  }
  in.step.loss_seed = 32;
  return in;
}

RefTensor AsReference(TensorView view) {
  RefTensor t{view.shape, {}};
  for (int64_t i = 0; i < view.size(); ++i) t.data.push_back(view.as<float>()[i]);
  return t;
}

ir::Graph Fused(ir::Graph graph) {
  const auto backend = MakeCpuBackend(1);
  const auto can_fuse = [&](ir::OpKind op) { return backend->CanFuse(op); };
  auto split = passes::SplitNorms(std::move(graph), can_fuse);
  EXPECT_TRUE(split.ok()) << split.status();
  auto fused = passes::Fuse(*std::move(split), can_fuse);
  EXPECT_TRUE(fused.ok()) << fused.status();
  return *std::move(fused);
}

// Outputs, gradients and states of both, within `bound` of the largest number.
void ExpectAlike(const ir::Graph& plain, const ir::Graph& padded, const GraphInputs& in, double bound,
                 const std::string& what) {
  Machine a(plain, in, 1), b(padded, in, 1);
  a.Run(in.step);
  b.Run(in.step);
  for (const auto& [name, v] : plain.outputs) {
    if (plain.type(v).dtype != DType::kF32) continue;
    const TensorView x = *a.executor().Output(name), y = *b.executor().Output(name);
    ASSERT_EQ(x.shape, y.shape) << what;
    // Whether a label is right may turn on the last bit.
    if (name == "correct" || name == "top5") continue;
    EXPECT_LE(Deviation(AsReference(x), y, 1), bound) << what << " " << name;
  }
  double scale = 1e-6;
  for (size_t p = 0; p < plain.parameters.size(); ++p) {
    scale = std::max(scale, 0.1 * Largest(AsReference(a.memory().Gradient(static_cast<int32_t>(p)))));
  }
  for (size_t p = 0; p < plain.parameters.size(); ++p) {
    const auto slot = static_cast<int32_t>(p);
    EXPECT_LE(Deviation(AsReference(a.memory().Gradient(slot)), b.memory().Gradient(slot), scale), bound)
        << what << " " << plain.parameters[p].name;
  }
  // Between slots there is nothing, so no gradient of padding went anywhere.
  EXPECT_EQ(a.memory().layout().arena_elements(), b.memory().layout().arena_elements());
  const int64_t n = a.memory().layout().arena_elements();
  std::vector<bool> owned(n);
  for (const ArenaSlot& slot : b.memory().layout().slots()) {
    std::fill_n(owned.begin() + slot.offset, slot.size, true);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (owned[i]) continue;
    EXPECT_EQ(b.memory().gradients()[i], 0) << what;
  }
}

double BoundOf(const std::string& mode) {
  // A sum in another order may round to the neighbouring number, a dozen times on the way through the network. 8-bit
  // codes on the edge between two numbers make a step of 1/16.
  return mode == "mode: FP16" ? 12 * UnitRoundoff(DType::kF16)
                              : (mode == "mode: BF16" ? 12 : 24) * UnitRoundoff(DType::kBF16);
}

TEST(Padding, OddNetworksGiveTheSameNumbersInEveryMode) {
  for (const std::string mode : {"mode: FP16", "mode: BF16", "mode: FP8"}) {
    for (const SmallNetwork& network : OddNetworks()) {
      const std::string what = network.name + " " + mode;
      const models::Model plain = testing::BuildSmallNetwork(network, mode, 6);
      const models::Model padded = testing::BuildSmallNetwork(network, mode, 6, passes::kTensorCorePadding);
      EXPECT_FALSE(padded.padding.empty()) << what;
      ASSERT_EQ(plain.layers.size(), padded.layers.size());
      for (size_t i = 0; i < plain.layers.size(); ++i) {
        EXPECT_EQ(plain.layers[i].ShortDebugString(), padded.layers[i].ShortDebugString()) << what;
      }
      const GraphInputs in = InputsFor(network, plain.phases[0].train);
      ExpectAlike(plain.phases[0].train, padded.phases[0].train, in, BoundOf(mode), what);
      ExpectAlike(plain.phases[0].train, Fused(padded.phases[0].train), in, BoundOf(mode), what + " fused");
      ExpectAlike(plain.eval, padded.eval, in, BoundOf(mode), what + " eval");
    }
  }
}

TEST(Padding, Fp32AndAlignedGraphsStayAsTheyAre) {
  for (const SmallNetwork& network : OddNetworks()) {
    const models::Model plain = testing::BuildSmallNetwork(network, "mode: FP32", 6);
    const models::Model padded = testing::BuildSmallNetwork(network, "mode: FP32", 6, passes::kTensorCorePadding);
    EXPECT_TRUE(padded.padding.empty());
    EXPECT_EQ(plain.phases[0].train.nodes.size(), padded.phases[0].train.nodes.size());
  }
}

// Every product's 16-bit operands have rows of whole multiples, but where it was said that they would not.
TEST(Padding, ProductsReadAlignedRows) {
  for (const SmallNetwork& network : OddNetworks()) {
    const models::Model model = testing::BuildSmallNetwork(network, "mode: FP16", 6, passes::kTensorCorePadding);
    for (const ir::Node& node : model.phases[0].train.nodes) {
      const bool product = node.op == ir::OpKind::kMatmul || node.op == ir::OpKind::kConv2d ||
                           node.op == ir::OpKind::kConv2dGradFilter || node.op == ir::OpKind::kConv2dGradInput ||
                           node.op == ir::OpKind::kConvTranspose2d;
      if (!product || model.phases[0].train.type(node.inputs[0]).dtype != DType::kF16) continue;
      for (ir::ValueId v : {node.inputs[0], node.inputs[1], node.outputs[0]}) {
        EXPECT_EQ(model.phases[0].train.type(v).shape.back() % 8, 0) << network.name << " " << node.name;
      }
    }
  }
}

// The f16 step of `forward`, padded or not.
ir::Graph Step(ir::Graph forward, const passes::PaddingPolicy& padding, std::vector<PaddedExtent>* padded = nullptr) {
  passes::Pipeline pipeline;
  pipeline.Add("precision", [&](ir::Graph g) { return passes::ApplyPrecision(g, {.compute = DType::kF16}); })
      .Add("differentiate",
           [](ir::Graph g) {
             const ir::ValueId loss = g.outputs.at("loss");
             return autodiff::Differentiate(std::move(g), loss);
           })
      .Add("pad", [&](ir::Graph g) { return passes::PadForTensorCores(std::move(g), padding, padded); })
      .Add("publish_parameters", passes::PublishParameters)
      .Add("dead_nodes", passes::RemoveDeadNodes);
  auto graph = pipeline.Run(std::move(forward));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// Rows of a table of 21 tokens by 9 features, read as the network's input and, the same table, as its last product.
ir::Graph TiedHeads() {
  ir::Graph g;
  const ir::ValueId ids = g.AddInput("x", {DType::kI32, {8}}), labels = g.AddInput("labels", {DType::kI32, {8}});
  const ir::ValueId table = g.AddParameter({.name = "table", .type = {DType::kF32, {21, 9}}});
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {9, 9}}});
  ir::ValueId v = Emit(&g, OpKind::kEmbedding, "embed", {table, ids});
  v = Emit(&g, OpKind::kMatmul, "hidden", {v, w}, {{"transpose_b", int64_t{1}}});
  v = Emit(&g, OpKind::kTanh, "hidden", {v});
  v = Emit(&g, OpKind::kMatmul, "head", {v, table}, {{"transpose_b", int64_t{1}}});
  v = Emit(&g, OpKind::kSoftmaxCrossEntropy, "loss", {v, labels});
  g.outputs = {{"losses", v}, {"loss", Emit(&g, OpKind::kReduceMean, "mean", {v})}};
  return g;
}

TEST(Padding, ATableMayBeEmbeddingAndHead) {
  std::vector<PaddedExtent> padded;
  const ir::Graph plain = Step(TiedHeads(), {}), wide = Step(TiedHeads(), passes::kTensorCorePadding, &padded);
  GraphInputs in;
  RngSequence rng(4, "tied");
  for (const char* name : {"x", "labels"}) {
    in.inputs[name] = testing::RandomTensor({8}, &rng, 0, 21);
    for (double& id : in.inputs[name].data) id = std::floor(id);
  }
  for (const ir::Persistent& p : plain.parameters) {
    in.parameters.push_back(testing::RandomTensor(p.type.shape, &rng, -1, 1));
  }
  in.step.loss_seed = 64;
  ExpectAlike(plain, wide, in, 12 * UnitRoundoff(DType::kF16), "tied");
}

// Neither logits nor their gradient are copied.
TEST(Padding, LogitsArePaddedAllTheWay) {
  const ir::Graph wide = Step(TiedHeads(), passes::kTensorCorePadding);
  int of_logits = 0;
  for (const ir::Node& node : wide.nodes) {
    const Shape& shape = wide.type(node.inputs[0]).shape;
    const bool moves = node.op == ir::OpKind::kSlice || node.op == ir::OpKind::kPad || node.op == ir::OpKind::kWhere;
    of_logits += moves && (shape == Shape{8, 21} || shape == Shape{8, 24});
    if (node.op == ir::OpKind::kSoftmaxCrossEntropy) {
      EXPECT_EQ(node.attributes.Int("classes"), 21);
    }
  }
  EXPECT_EQ(of_logits, 0);
}

TEST(Padding, TellsWhatItDid) {
  std::vector<PaddedExtent> padded;
  Step(TiedHeads(), passes::kTensorCorePadding, &padded);
  std::vector<std::string> forward;
  for (const PaddedExtent& p : padded) {
    if (p.stage != ir::Stage::kForward) continue;
    forward.push_back(absl::StrCat(p.layer, " ", p.node, " ", p.dimension, " ", p.from, " ", p.to));
  }
  EXPECT_THAT(forward, ElementsAre("hidden hidden.matmul inner 9 16", "hidden hidden.matmul columns 9 16",
                                   "head head.matmul inner 9 16", "head head.matmul columns 21 24"));
}

// A padded weight is a published copy, the way from product to product needs no cut, and what was cut is the logits
// and the gradients of parameters.
TEST(Padding, CutsAndPadsCancel) {
  const ir::Graph g = Step(TiedHeads(), passes::kTensorCorePadding);
  std::vector<std::string> cuts, pads;
  for (const ir::Node& node : g.nodes) {
    if (node.op == OpKind::kSlice) cuts.push_back(node.name);
    if (node.op == OpKind::kPad) pads.push_back(g.values[node.inputs[0]].name);
  }
  EXPECT_THAT(pads, ElementsAre("embed.embedding"));
  EXPECT_EQ(cuts.size(), 3) << absl::StrJoin(cuts, " ");
}

TEST(Padding, LeavesWhatWouldCostMoreThanItBrings) {
  for (const auto& [inner, columns] : {std::pair{1, 8}, {8, 1}, {2, 7}, {3, 3}}) {
    ir::Graph g;
    const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, inner}});
    const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {columns, inner}}});
    const ir::ValueId y = Emit(&g, OpKind::kMatmul, "fc", {x, w}, {{"transpose_b", int64_t{1}}});
    g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {y});
    std::vector<PaddedExtent> padded;
    Step(g, passes::kTensorCorePadding, &padded);
    EXPECT_TRUE(padded.empty()) << inner << " " << columns;
  }
}

TEST(Padding, RefusesAMultipleOfNothing) { EXPECT_FALSE(passes::PadForTensorCores(TiedHeads(), {0, 16}).ok()); }

// An infinity in a row stays in it, and the others are what they were.
TEST(Padding, AnInfinityStaysInItsRow) {
  const SmallNetwork network = OddNetworks()[1];
  const models::Model plain = testing::BuildSmallNetwork(network, "mode: FP16", 6);
  const models::Model padded = testing::BuildSmallNetwork(network, "mode: FP16", 6, passes::kTensorCorePadding);
  GraphInputs in = InputsFor(network, plain.eval);
  in.inputs.at("x").data[2 * 7 + 3] = INFINITY;
  Machine a(plain.eval, in, 1), b(padded.eval, in, 1);
  a.Run(in.step);
  b.Run(in.step);
  const TensorView x = *a.executor().Output("logits"), y = *b.executor().Output("logits");
  for (int64_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::isfinite(x.as<float>()[i]), i / 5 != 2);
    EXPECT_EQ(std::isfinite(y.as<float>()[i]), i / 5 != 2) << i;
  }
}

// sigmoid(x u^T) sigmoid(x w^T)^T: the padding of both operands of the last product is 0.5 before it is zeroed. And
// relu(x u^T) w^T, where an infinity makes padding NaN that relu makes a zero of in the logical row.
ir::Graph TwoProducts(bool relu) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {8, 9}});
  const ir::ValueId u = g.AddParameter({.name = "u", .type = {DType::kF32, {11, 9}}});
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {relu ? 13 : 11, relu ? 11 : 9}}});
  const ir::Attributes transpose{{"transpose_b", int64_t{1}}};
  const ir::ValueId a = Emit(&g, OpKind::kMatmul, "a", {x, u}, transpose);
  const ir::ValueId left = Emit(&g, relu ? OpKind::kRelu : OpKind::kSigmoid, "left", {a});
  ir::ValueId right = w;
  if (!relu) right = Emit(&g, OpKind::kSigmoid, "right", {Emit(&g, OpKind::kMatmul, "b", {x, w}, transpose)});
  const ir::ValueId y = Emit(&g, OpKind::kMatmul, "y", {left, right}, transpose);
  g.outputs = {{"y", y}, {"loss", Emit(&g, OpKind::kReduceMean, "mean", {y})}};
  return g;
}

TEST(Padding, IsZeroedBeforeAProductReadsIt) {
  for (bool relu : {false, true}) {
    const ir::Graph plain = Step(TwoProducts(relu), {}), wide = Step(TwoProducts(relu), passes::kTensorCorePadding);
    GraphInputs in;
    RngSequence rng(6, "two");
    in.inputs["x"] = testing::RandomTensor({8, 9}, &rng, -1, 1);
    if (relu) in.inputs["x"].data[4] = -INFINITY;
    for (const ir::Persistent& p : plain.parameters) {
      in.parameters.push_back(testing::RandomTensor(p.type.shape, &rng, 0.25, 1));
    }
    Machine a(plain, in, 1), b(wide, in, 1);
    a.Run(in.step);
    b.Run(in.step);
    const RefTensor y = AsReference(*a.executor().Output("y"));
    for (double v : y.data) EXPECT_TRUE(std::isfinite(v));
    EXPECT_LE(Deviation(y, *b.executor().Output("y")), 4 * UnitRoundoff(DType::kF16)) << relu;
  }
}

}  // namespace
}  // namespace ampd::runtime
