#include "engine/passes/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/publish_parameters.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"
#include "tests/unit/engine/runtime/machine.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using Ints = std::vector<int64_t>;

// x -> hidden (matmul, bias, relu) -> head (matmul) -> cross-entropy -> mean.
ir::Graph TwoLayers() {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, 6}});
  const ir::ValueId labels = g.AddInput("labels", {DType::kI32, {4}});
  const ir::ValueId w1 = g.AddParameter({.name = "hidden.weight", .type = {DType::kF32, {5, 6}}});
  const ir::ValueId b1 = g.AddParameter({.name = "hidden.bias", .type = {DType::kF32, {5}}});
  const ir::ValueId w2 = g.AddParameter({.name = "head.weight", .type = {DType::kF32, {3, 5}}});
  ir::ValueId v = Emit(&g, OpKind::kMatmul, "hidden", {x, w1}, {{"transpose_b", int64_t{1}}});
  v = Emit(&g, OpKind::kBiasAdd, "hidden", {v, b1});
  v = Emit(&g, OpKind::kRelu, "hidden", {v});
  v = Emit(&g, OpKind::kMatmul, "head", {v, w2}, {{"transpose_b", int64_t{1}}});
  v = Emit(&g, OpKind::kSoftmaxCrossEntropy, "", {v, labels});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  return g;
}

const ir::Node& Find(const ir::Graph& g, const std::string& name) {
  for (const ir::Node& node : g.nodes) {
    if (node.name == name) return node;
  }
  ADD_FAILURE() << "no node " << name << " in\n" << ir::GraphString(g);
  static const ir::Node none;
  return none;
}

DType OutputOf(const ir::Graph& g, const std::string& name) {
  const ir::Node& node = Find(g, name);
  return node.outputs.empty() ? DType::kBool : g.type(node.outputs[0]).dtype;
}

TEST(ApplyPrecision, Fp32InsertsNothing) {
  auto g = ApplyPrecision(TwoLayers(), {DType::kF32, {}});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(Count(*g, OpKind::kCast), 0);
}

TEST(ApplyPrecision, AllowInferAndDeny) {
  auto g = ApplyPrecision(TwoLayers(), {DType::kF16, {}});
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
  EXPECT_EQ(OutputOf(*g, "hidden.matmul"), DType::kF16);
  EXPECT_EQ(OutputOf(*g, "hidden.bias_add"), DType::kF16);
  EXPECT_EQ(OutputOf(*g, "hidden.relu"), DType::kF16);
  EXPECT_EQ(OutputOf(*g, ".softmax_cross_entropy"), DType::kF32);
  // x, three parameters, and the logits back to f32.
  EXPECT_EQ(Count(*g, OpKind::kCast), 5);
  EXPECT_EQ(Find(*g, "x:f16").stage, ir::Stage::kInput);
}

TEST(ApplyPrecision, RulesNameLayers) {
  auto g = ApplyPrecision(TwoLayers(), {DType::kBF16, {{"he*", DType::kF32}}});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(OutputOf(*g, "hidden.matmul"), DType::kBF16);
  EXPECT_EQ(OutputOf(*g, "head.matmul"), DType::kF32);
}

// x -> act (relu) -> tail (relu), and a sum that belongs to the loss.
ir::Graph Activations() {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, 6}});
  ir::ValueId v = Emit(&g, OpKind::kRelu, "act", {x});
  v = Emit(&g, OpKind::kRelu, "tail", {v});
  auto sum =
      ops::Emit(&g, {.op = OpKind::kAdd, .name = "loss.add", .layer = "", .inputs = {v, v}, .stage = ir::Stage::kLoss});
  EXPECT_TRUE(sum.ok()) << sum.status();
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {(*sum)[0]});
  return g;
}

TEST(ApplyPrecision, RulesHoldForLayersWithoutProducts) {
  const struct {
    ComputeType job, rule;
    DType act;
  } cases[] = {{DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16, DType::kF16},
               {DType::kF16, DType::kBF16, DType::kBF16},  {kFp8, kFp8, DType::kBF16},
               {DType::kBF16, kTf32, DType::kF32},         {DType::kBF16, DType::kF32, DType::kF32}};
  for (const auto& c : cases) {
    auto g = ApplyPrecision(Activations(), {c.job, {{"act", c.rule}}});
    ASSERT_TRUE(g.ok()) << g.status();
    ASSERT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
    EXPECT_EQ(OutputOf(*g, "act.relu"), c.act);
    EXPECT_EQ(OutputOf(*g, "tail.relu"), c.act) << "follows";
    // Nothing makes the first layer 16-bit by itself; a rule makes the last one f32 again.
    g = ApplyPrecision(Activations(), {c.job, {{"act", c.rule}, {"tail", DType::kF32}}});
    ASSERT_TRUE(g.ok()) << g.status();
    EXPECT_EQ(OutputOf(*g, "tail.relu"), DType::kF32);
    EXPECT_EQ(OutputOf(*ApplyPrecision(Activations(), {c.job, {}}), "act.relu"), DType::kF32);
  }
}

TEST(ApplyPrecision, RulesLeaveTheLossAlone) {
  auto g = ApplyPrecision(Activations(), {DType::kBF16, {{"*", DType::kBF16}, {"tail", DType::kF32}}});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(OutputOf(*g, "act.relu"), DType::kBF16);
  EXPECT_EQ(OutputOf(*g, "tail.relu"), DType::kF32);
  EXPECT_EQ(OutputOf(*g, "loss.add"), DType::kF32);
}

// What rules may do to all layers.
const PrecisionPolicy kNarrow[] = {{DType::kBF16, {{"*", DType::kBF16}}},
                                   {DType::kF16, {{"*", DType::kBF16}}},
                                   {DType::kF16, {{"*", DType::kF16}}},
                                   {kFp8, {{"*", kFp8}}},
                                   {DType::kF32, {}}};

constexpr int64_t kTokens = 4096;

// Ids, as the samples have them, moved about before they are looked up.
ir::Graph Lookup() {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {2, 4}});
  const ir::ValueId table = g.AddParameter({.name = "e.weight", .type = {DType::kF32, {kTokens, 2}}});
  ir::ValueId v =
      Emit(&g, OpKind::kSlice, "cut", {x}, {{"starts", Ints{0, 1}}, {"ends", Ints{2, 4}}, {"steps", Ints{1, 1}}});
  v = Emit(&g, OpKind::kTranspose, "turn", {v}, {{"perm", Ints{1, 0}}});
  v = Emit(&g, OpKind::kReshape, "rows", {v}, {{"shape", Ints{2, 3}}});
  v = Emit(&g, OpKind::kConcat, "both", {v, x}, {{"axis", int64_t{1}}});
  v = Emit(&g, OpKind::kCast, "e", {v}, {{"dtype", std::string("i32")}});
  g.outputs["rows"] = Emit(&g, OpKind::kEmbedding, "e", {table, v});
  return g;
}

// Output `name` of the graph with the policy applied, on the CPU.
std::vector<float> OutputOnCpu(const ir::Graph& forward, const PrecisionPolicy& policy, const testing::GraphInputs& in,
                               const std::string& name) {
  auto g = ApplyPrecision(forward, policy);
  EXPECT_TRUE(g.ok()) << g.status();
  g = PublishParameters(*std::move(g));
  runtime::Machine machine(*g, in, 1);
  machine.Run({});
  const TensorView view = machine.executor().Output(name).value();
  return {view.as<float>(), view.as<float>() + view.size()};
}

TEST(ApplyPrecision, RulesDoNotRoundIds) {
  testing::GraphInputs in;
  // Above 256 bf16 has no odd numbers, above 2048 f16 has none.
  in.inputs["x"] = {{2, 4}, {257, 2049, 4095, 513, 1, 2051, 3001, 4093}};
  testing::RefTensor table = testing::Filled({kTokens, 2});
  // Which every dtype holds.
  for (size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = i % 2 == 0 ? static_cast<double>(i / 2 / 64) : static_cast<double>(i / 2 % 64);
  }
  in.parameters = {table};
  std::vector<float> expected;
  for (const int id : {2049, 2051, 4095, 257, 2049, 4095, 513, 3001, 513, 4093, 1, 2051, 3001, 4093}) {
    expected.push_back(static_cast<float>(id / 64));
    expected.push_back(static_cast<float>(id % 64));
  }
  for (const PrecisionPolicy& policy : kNarrow) {
    EXPECT_EQ(OutputOnCpu(Lookup(), policy, in, "rows"), expected) << DTypeName(policy.compute.dtype);
  }
}

// Numbers that went through integers, and a reduction, are ids still.
TEST(ApplyPrecision, IdsOfIdsAreNotRounded) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {2, 3}});
  ir::ValueId v = Emit(&g, OpKind::kCast, "a", {x}, {{"dtype", std::string("i64")}});
  v = Emit(&g, OpKind::kCast, "b", {v}, {{"dtype", std::string("f32")}});
  v = Emit(&g, OpKind::kReshape, "c", {v}, {{"shape", Ints{3, 2}}});
  v = Emit(&g, OpKind::kReduceMax, "d", {v}, {{"axes", Ints{1}}});
  v = Emit(&g, OpKind::kCast, "e", {v}, {{"dtype", std::string("i32")}});
  g.outputs["ids"] = Emit(&g, OpKind::kCast, "f", {v}, {{"dtype", std::string("f32")}});
  testing::GraphInputs in;
  in.inputs["x"] = {{2, 3}, {257, 1, 2, 2049, 4095, 3}};
  for (const PrecisionPolicy& policy : kNarrow) {
    EXPECT_EQ(OutputOnCpu(g, policy, in, "ids"), (std::vector<float>{257, 2049, 4095}))
        << DTypeName(policy.compute.dtype);
  }
}

TEST(ApplyPrecision, RulesDoNotMakeIdsEqual) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {2, 3}});
  auto number = std::make_shared<Tensor>(DType::kF32, Shape{});
  number->as<float>()[0] = 2049;
  const ir::ValueId pad = g.AddConstant("pad", number);
  ir::ValueId v =
      Emit(&g, OpKind::kSlice, "cut", {x}, {{"starts", Ints{0, 0}}, {"ends", Ints{2, 2}}, {"steps", Ints{1, 1}}});
  v = Emit(&g, OpKind::kEqual, "equal", {v, pad});
  g.outputs["pad"] = Emit(&g, OpKind::kCast, "mask", {v}, {{"dtype", std::string("f32")}});
  testing::GraphInputs in;
  in.inputs["x"] = {{2, 3}, {2048, 2049, 0, 2047, 2050, 0}};
  for (const PrecisionPolicy& policy : kNarrow) {
    EXPECT_EQ(OutputOnCpu(g, policy, in, "pad"), (std::vector<float>{0, 1, 0, 0})) << DTypeName(policy.compute.dtype);
  }
}

// An activation that asks for its input's sign keeps its dtype.
TEST(ApplyPrecision, ComparedActivationsFollowTheirRule) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, 6}});
  const ir::ValueId w = g.AddParameter({.name = "p.weight", .type = {DType::kF32, {6, 6}}});
  const ir::ValueId b = g.AddParameter({.name = "p.bias", .type = {DType::kF32, {6}}});
  ir::ValueId v = Emit(&g, OpKind::kMatmul, "p", {x, w});
  v = Emit(&g, OpKind::kBiasAdd, "p", {v, b});
  const ir::ValueId zero = Emit(&g, OpKind::kZerosLike, "q", {v});
  v = Emit(&g, OpKind::kWhere, "q", {Emit(&g, OpKind::kLess, "q", {v, zero}), zero, v});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  auto half = ApplyPrecision(g, {DType::kBF16, {{"*", DType::kBF16}}});
  ASSERT_TRUE(half.ok()) << half.status();
  for (const char* name : {"p.bias_add", "q.zeros_like", "q.where"}) EXPECT_EQ(OutputOf(*half, name), DType::kBF16);
}

TEST(ApplyPrecision, PartsOfParametersFollowTheData) {
  // dense, + rows of a table, norm, + a bias that is a matrix in the file.
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {2, 3, 8}});
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {16, 8}}});
  const ir::ValueId table = g.AddParameter({.name = "table", .type = {DType::kF32, {10, 8}}});
  const ir::ValueId bias = g.AddParameter({.name = "bias", .type = {DType::kF32, {8, 1}}});
  const auto cut = [&](ir::ValueId v, int64_t rows, const std::string& layer) {
    return Emit(&g, OpKind::kSlice, layer, {v},
                {{"starts", Ints{0, 0}}, {"ends", Ints{rows, 8}}, {"steps", Ints{1, 1}}});
  };
  ir::ValueId v = Emit(&g, OpKind::kMatmul, "dense", {x, cut(w, 8, "dense")}, {{"transpose_b", int64_t{1}}});
  v = Emit(&g, OpKind::kAdd, "positions", {v, cut(table, 3, "positions")});
  v = Emit(&g, OpKind::kAdd, "shift", {v, Emit(&g, OpKind::kReshape, "shift", {bias}, {{"shape", Ints{8}}})});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  auto forward = ApplyPrecision(g, {DType::kBF16, {}});
  ASSERT_TRUE(forward.ok()) << forward.status();
  for (const char* name : {"positions.add", "shift.add"}) EXPECT_EQ(OutputOf(*forward, name), DType::kBF16) << name;
  const ir::ValueId loss = forward->outputs.at("loss");
  auto step = autodiff::Differentiate(*std::move(forward), loss);
  ASSERT_TRUE(step.ok()) << step.status();
  step = PublishParameters(*std::move(step));
  step = RemoveDeadNodes(*std::move(step));
  ASSERT_TRUE(ops::VerifyGraph(*step).ok()) << ops::VerifyGraph(*step);
  // Sums over samples are not rounded on their way to the master.
  for (const char* name : {"table.grad", "bias.grad"}) {
    EXPECT_EQ(step->type(Find(*step, name).inputs[0]).dtype, DType::kF32) << name;
  }
  // Each parameter is cast once, when it is published; what is left are x, and the mean's operand and gradient.
  EXPECT_EQ(Count(*step, OpKind::kCast), 3);
}

TEST(ApplyPrecision, CodesOfPartsAreMadeFromTheMasters) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {16, 16}});
  ir::ValueId v = x;
  for (const char* layer : {"first", "middle", "last"}) {
    const ir::ValueId w = g.AddParameter({.name = absl::StrCat(layer, ".w"), .type = {DType::kF32, {16, 16}}});
    const ir::ValueId turned = Emit(&g, OpKind::kTranspose, layer, {w}, {{"perm", Ints{1, 0}}});
    v = Emit(&g, OpKind::kMatmul, layer, {v, turned}, {});
  }
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  PrecisionPolicy policy;
  policy.compute = DType::kF8E4M3;
  auto forward = ApplyPrecision(g, policy);
  ASSERT_TRUE(forward.ok()) << forward.status();
  const auto producer_of_weights = [&](const char* name) {
    const ir::Node& product = Find(*forward, name);
    return forward->nodes[static_cast<size_t>(forward->values[static_cast<size_t>(product.inputs[1])].producer)].op;
  };
  EXPECT_EQ(producer_of_weights("first.matmul"), OpKind::kTranspose);
  EXPECT_EQ(producer_of_weights("middle.matmul"), OpKind::kCast);
}

std::set<std::string> LayersInFp8(const ir::Graph& g) {
  std::set<std::string> layers;
  for (const ir::Node& node : g.nodes) {
    if (node.attributes.String(ops::kComputeAttribute) == ops::kComputeFp8) layers.insert(node.layer);
  }
  return layers;
}

// Adds `layer`, a product of 16 numbers and a relu, that reads `x`.
ir::ValueId AddProduct(ir::Graph* g, const std::string& layer, ir::ValueId x) {
  ir::ValueId w = -1;
  for (size_t v = 0; v < g->values.size(); ++v) {
    if (g->values[v].name == layer + ".w") w = static_cast<ir::ValueId>(v);
  }
  if (w < 0) w = g->AddParameter({.name = layer + ".w", .type = {DType::kF32, {16, 16}}});
  return Emit(g, OpKind::kRelu, layer, {Emit(g, OpKind::kMatmul, layer, {x, w})});
}

TEST(ApplyPrecision, Fp8SparesEveryHeadAndWhateverReadsTheInput) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {16, 16}});
  const ir::ValueId left = AddProduct(&g, "left", x);
  const ir::ValueId right = AddProduct(&g, "right", x);
  const ir::ValueId trunk = AddProduct(&g, "trunk", Emit(&g, OpKind::kAdd, "join", {left, right}));
  const ir::ValueId first = AddProduct(&g, "head0", trunk);
  const ir::ValueId deep = AddProduct(&g, "deep", trunk);
  const ir::ValueId second = AddProduct(&g, "head1", deep);
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {Emit(&g, OpKind::kAdd, "sum", {first, second})});
  PrecisionPolicy policy;
  policy.compute = DType::kF8E4M3;
  const auto fp8 = ApplyPrecision(g, policy);
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_THAT(LayersInFp8(*fp8), ::testing::ElementsAre("deep", "trunk"));
}

// As a GAN's discriminator reads images and what the generator makes.
TEST(ApplyPrecision, Fp8SparesTheEndsOfEachNetwork) {
  ir::Graph g;
  const ir::ValueId noise = g.AddInput("noise", {DType::kF32, {16, 16}});
  const ir::ValueId images = g.AddInput("images", {DType::kF32, {16, 16}});
  ir::ValueId fake = noise;
  for (const char* layer : {"g.project", "g.up", "g.paint"}) fake = AddProduct(&g, layer, fake);
  std::vector<ir::ValueId> told;
  for (ir::ValueId v : {images, fake}) {
    for (const char* layer : {"trunk.0", "trunk.1", "trunk.2", "source.fc"}) v = AddProduct(&g, layer, v);
    told.push_back(v);
  }
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {Emit(&g, OpKind::kAdd, "sum", {told[0], told[1]})});
  PrecisionPolicy policy;
  policy.compute = DType::kF8E4M3;
  policy.networks = {"g", "trunk", "source"};
  const auto fp8 = ApplyPrecision(g, policy);
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_THAT(LayersInFp8(*fp8), ::testing::ElementsAre("g.up", "trunk.1"));
}

TEST(ApplyPrecision, MovedConstantsThatSixteenBitsDoNotHoldKeepTheirNode) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {2, 4}});
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {4, 4}}});
  auto mask = std::make_shared<Tensor>(DType::kF32, Shape{4, 1});
  for (float& m : mask->as<float>()) m = -1e9f;
  const ir::ValueId column = g.AddConstant("mask", mask);
  ir::ValueId v = Emit(&g, OpKind::kMatmul, "dense", {x, w}, {});
  v = Emit(&g, OpKind::kAdd, "masked",
           {v, Emit(&g, OpKind::kReshape, "masked", {column}, {{"shape", std::vector<int64_t>{4}}})});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  auto half = ApplyPrecision(g, {DType::kF16, {}});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(OutputOf(*half, "masked.add"), DType::kF32);
}

TEST(ApplyPrecision, GradientsTakeTheirValuesDTypeAndReachTheMastersUncast) {
  auto forward = ApplyPrecision(TwoLayers(), {DType::kF16, {}});
  ASSERT_TRUE(forward.ok());
  const ir::ValueId loss = forward->outputs.at("loss");
  auto g = autodiff::Differentiate(*std::move(forward), loss);
  ASSERT_TRUE(g.ok()) << g.status();
  g = PublishParameters(*std::move(g));
  ASSERT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
  EXPECT_EQ(OutputOf(*g, "head.matmul.grad_b"), DType::kF16);
  EXPECT_EQ(OutputOf(*g, "hidden.bias_add.grad_bias"), DType::kF32);
  EXPECT_EQ(g->type(Find(*g, "hidden.weight.grad").inputs[0]).dtype, DType::kF16);
  // Casts left in the step: x, logits, and the gradient of the logits. No weight is cast.
  EXPECT_EQ(Count(*g, OpKind::kCast), 3);
  EXPECT_EQ(Count(*g, OpKind::kAccumulateGrad), 3);
  // Nothing asks for the gradient of the batch.
  for (const ir::Node& node : g->nodes) EXPECT_NE(node.name, "hidden.matmul.grad_a");
}

TEST(ApplyPrecision, ConstantsThatSixteenBitsDoNotHoldKeepTheirNode) {
  const struct {
    float constant;
    DType in_f16, in_bf16;
  } cases[] = {{-1e9f, DType::kF32, DType::kBF16},
               {std::numeric_limits<float>::lowest(), DType::kF32, DType::kF32},
               {-std::numeric_limits<float>::infinity(), DType::kF16, DType::kBF16},
               {1e-8f, DType::kF32, DType::kBF16},
               {6e-8f, DType::kF16, DType::kBF16},
               {0, DType::kF16, DType::kBF16},
               {0.044715f, DType::kF16, DType::kBF16},
               {65504, DType::kF16, DType::kBF16}};
  for (const auto& c : cases) {
    ir::Graph g;
    const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, 8}});
    const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {8, 8}}});
    auto numbers = std::make_shared<Tensor>(DType::kF32, Shape{8});
    std::fill(numbers->as<float>().begin(), numbers->as<float>().end(), 1.0f);
    numbers->as<float>()[5] = c.constant;
    ir::ValueId v = Emit(&g, OpKind::kMatmul, "a", {x, w}, {{"transpose_b", int64_t{1}}});
    v = Emit(&g, OpKind::kAdd, "masked", {v, g.AddConstant("mask", numbers)});
    g.outputs["y"] = Emit(&g, OpKind::kMatmul, "b", {v, w}, {{"transpose_b", int64_t{1}}});
    for (const auto& [compute, expected] : {std::pair(DType::kF16, c.in_f16), std::pair(DType::kBF16, c.in_bf16)}) {
      // A rule for the layer makes no other number of it either.
      for (const std::vector<PrecisionRule>& rules : {std::vector<PrecisionRule>{}, {{"masked", compute}}}) {
        auto cast = ApplyPrecision(g, {compute, rules});
        ASSERT_TRUE(cast.ok()) << cast.status();
        ASSERT_TRUE(ops::VerifyGraph(*cast).ok()) << ops::VerifyGraph(*cast);
        EXPECT_EQ(OutputOf(*cast, "masked.add"), expected) << c.constant << " " << DTypeName(compute);
        EXPECT_EQ(OutputOf(*cast, "b.matmul"), compute);
      }
    }
  }
}

TEST(ApplyPrecision, NumbersThatANodeHasItselfAreKeptToo) {
  const double lowest = std::numeric_limits<float>::lowest(), infinity = std::numeric_limits<double>::infinity();
  const struct {
    OpKind op;
    ir::Attributes attributes;
    DType in_f16, in_bf16;
  } cases[] = {{OpKind::kClip, {{"min", 1e-8}, {"max", 1.0}}, DType::kF32, DType::kBF16},
               {OpKind::kClip, {{"max", -1e-8}}, DType::kF32, DType::kBF16},
               {OpKind::kClip, {{"min", 1e-41}}, DType::kF32, DType::kF32},
               {OpKind::kClip, {{"min", 1e6}}, DType::kF32, DType::kBF16},
               {OpKind::kClip, {{"min", 0.0}, {"max", 6.0}}, DType::kF16, DType::kBF16},
               // No bounds.
               {OpKind::kClip, {{"min", 0.0}, {"max", -lowest}}, DType::kF16, DType::kBF16},
               {OpKind::kClip, {{"min", lowest}, {"max", 1.0}}, DType::kF16, DType::kBF16},
               {OpKind::kClip, {{"min", -infinity}, {"max", infinity}}, DType::kF16, DType::kBF16},
               {OpKind::kPad,
                {{"pads", std::vector<int64_t>{0, 1, 0, 0}}, {"mode", "constant"}, {"value", -1e9}},
                DType::kF32,
                DType::kBF16},
               {OpKind::kPad,
                {{"pads", std::vector<int64_t>{0, 1, 0, 0}}, {"mode", "constant"}, {"value", 0.0}},
                DType::kF16,
                DType::kBF16}};
  for (const auto& c : cases) {
    ir::Graph g;
    const ir::ValueId x = g.AddInput("x", {DType::kF32, {4, 8}});
    const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {8, 8}}});
    const ir::ValueId v = Emit(&g, OpKind::kMatmul, "a", {x, w}, {{"transpose_b", int64_t{1}}});
    g.outputs["y"] = Emit(&g, c.op, "bounded", {v}, c.attributes);
    for (const auto& [compute, expected] : {std::pair(DType::kF16, c.in_f16), std::pair(DType::kBF16, c.in_bf16)}) {
      auto cast = ApplyPrecision(g, {compute, {}});
      ASSERT_TRUE(cast.ok()) << cast.status();
      const std::string name = absl::StrCat("bounded.", ir::OpName(c.op));
      EXPECT_EQ(OutputOf(*cast, name), expected) << c.attributes.items().size() << " " << DTypeName(compute);
    }
  }
}

TEST(GlobMatch, StarsAndQuestionMarks) {
  EXPECT_TRUE(GlobMatch("head", "head"));
  EXPECT_FALSE(GlobMatch("head", "header"));
  EXPECT_TRUE(GlobMatch("h*d", "head"));
  EXPECT_TRUE(GlobMatch("*", ""));
  EXPECT_TRUE(GlobMatch("conv?_*", "conv1_a"));
  EXPECT_FALSE(GlobMatch("conv?", "conv"));
  EXPECT_TRUE(GlobMatch("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(GlobMatch("*a*b*", "xxbxxaxx"));
}

}  // namespace
}  // namespace ampd::passes
