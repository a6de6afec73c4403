// TF32 and FP8 as marks on nodes, and FP8's quantization of the differentiated graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/fp8_scales.h"
#include "engine/passes/precision.h"
#include "engine/passes/publish_parameters.h"
#include "engine/passes/quantize_fp8.h"
#include "engine/passes/scale_products.h"
#include "engine/passes/turn_codes.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ::testing::ElementsAre;

// x -> matmul and relu of layers l0, l1, ... -> cross-entropy -> mean; every layer 6 wide.
ir::Graph Chain(int layers) {
  ir::Graph g;
  ir::ValueId v = g.AddInput("x", {DType::kF32, {4, 6}});
  const ir::ValueId labels = g.AddInput("labels", {DType::kI32, {4}});
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "l" + std::to_string(i);
    const ir::ValueId w = g.AddParameter({.name = layer + ".weight", .type = {DType::kF32, {6, 6}}});
    v = Emit(&g, OpKind::kMatmul, layer, {v, w}, {{"transpose_b", int64_t{1}}});
    v = Emit(&g, OpKind::kRelu, layer, {v});
  }
  v = Emit(&g, OpKind::kSoftmaxCrossEntropy, "", {v, labels});
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  return g;
}

ir::Graph Forward(int layers, const PrecisionPolicy& policy) {
  auto g = ApplyPrecision(Chain(layers), policy);
  EXPECT_TRUE(g.ok()) << g.status();
  return *std::move(g);
}

ir::Graph Step(int layers, const PrecisionPolicy& policy) {
  ir::Graph forward = Forward(layers, policy);
  const ir::ValueId loss = forward.outputs.at("loss");
  auto g = autodiff::Differentiate(std::move(forward), loss);
  EXPECT_TRUE(g.ok()) << g.status();
  g = QuantizeFp8(*std::move(g), true);
  EXPECT_TRUE(g.ok()) << g.status();
  EXPECT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g) << "\n" << ir::GraphString(*g);
  g = RemoveDeadNodes(*PublishParameters(*std::move(g)));
  EXPECT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
  return *std::move(g);
}

// "compute" of every ALLOW node, by name; "" for none.
std::map<std::string, std::string> Marks(const ir::Graph& g) {
  std::map<std::string, std::string> marks;
  for (const ir::Node& node : g.nodes) {
    if (ops::GetOpDef(node.op).precision != ops::PrecisionClass::kAllow) continue;
    marks[node.name] = node.attributes.String(ops::kComputeAttribute);
  }
  return marks;
}

const ir::Node& Find(const ir::Graph& g, const std::string& name) {
  for (const ir::Node& node : g.nodes) {
    if (node.name == name) return node;
  }
  ADD_FAILURE() << "no node " << name << " in\n" << ir::GraphString(g);
  static const ir::Node none;
  return none;
}

std::vector<DType> Operands(const ir::Graph& g, const std::string& name) {
  std::vector<DType> dtypes;
  for (ir::ValueId v : Find(g, name).inputs) dtypes.push_back(g.type(v).dtype);
  return dtypes;
}

TEST(Tf32, MarksEveryAllowNodeAndItsGradientsAndCastsNothing) {
  const ir::Graph g = Step(2, {kTf32, {{"l1", DType::kF32}}});
  for (const auto& [name, mark] : Marks(g)) EXPECT_EQ(mark, name.rfind("l0", 0) == 0 ? "tf32" : "") << name;
  EXPECT_EQ(Marks(g).size(), 5u);
  EXPECT_EQ(Count(g, OpKind::kCast), 0);
  for (const ir::Value& value : g.values) EXPECT_FALSE(IsHalf(value.type.dtype)) << value.name;
}

// Of ops whose gradients have products inside; the recurrences' are not ALLOW and bring the mark by themselves.
TEST(Tf32, ReachesTheGradientsOfAttentionRecurrencesAndTransposedConvolutions) {
  ir::Graph g;
  const auto parameter = [&](const char* name, Shape shape) {
    return g.AddParameter({.name = name, .type = {DType::kF32, std::move(shape)}});
  };
  ir::ValueId v = parameter("x", {2, 4, 6});
  v = Emit(&g, OpKind::kLstm, "a", {v, parameter("a.ih", {24, 6}), parameter("a.hh", {24, 6})},
           {{"direction", std::string("forward")}});
  v = Emit(&g, OpKind::kGru, "b", {v, parameter("b.ih", {18, 6}), parameter("b.hh", {18, 6})},
           {{"direction", std::string("forward")}});
  v = Emit(&g, OpKind::kAttention, "c", {v, v, v}, {{"heads", int64_t{2}}});
  v = Emit(&g, OpKind::kReshape, "d", {v}, {{"shape", std::vector<int64_t>{2, 2, 2, 6}}});
  v = Emit(&g, OpKind::kConvTranspose2d, "e", {v, parameter("e.weight", {6, 2, 2, 3})},
           {{"strides", std::vector<int64_t>{1, 1}}, {"pads", std::vector<int64_t>{0, 0, 0, 0}}});
  const ir::ValueId loss = Emit(&g, OpKind::kReduceMean, "loss", {v});
  g.outputs["loss"] = loss;
  auto step = ApplyPrecision(g, {kTf32, {}});
  ASSERT_TRUE(step.ok()) << step.status();
  const ir::ValueId marked_loss = step->outputs.at("loss");
  step = autodiff::Differentiate(*std::move(step), marked_loss);
  ASSERT_TRUE(step.ok()) << step.status();
  std::set<OpKind> marked;
  for (const ir::Node& node : step->nodes) {
    if (node.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32) marked.insert(node.op);
  }
  EXPECT_THAT(marked,
              ::testing::UnorderedElementsAre(OpKind::kLstm, OpKind::kLstmGrad, OpKind::kGru, OpKind::kGruGrad,
                                              OpKind::kAttention, OpKind::kAttentionGrad, OpKind::kConvTranspose2d,
                                              OpKind::kConv2d, OpKind::kConv2dGradFilter, OpKind::kMatmul));
  for (const auto& [name, mark] : Marks(*step)) EXPECT_EQ(mark, "tf32") << name;
}

TEST(Fp8, TheFirstAndTheLastLayerComputeInBf16) {
  const ir::Graph g = Forward(4, {kFp8, {}});
  EXPECT_EQ(Marks(g), (std::map<std::string, std::string>{
                          {"l0.matmul", ""}, {"l1.matmul", "fp8"}, {"l2.matmul", "fp8"}, {"l3.matmul", ""}}));
  EXPECT_THAT(Operands(g, "l0.matmul"), ElementsAre(DType::kBF16, DType::kBF16));
  EXPECT_THAT(Operands(g, "l3.matmul"), ElementsAre(DType::kBF16, DType::kBF16));
}

TEST(Fp8, RulesOverrideTheEdges) {
  const ir::Graph g = Forward(4, {kFp8, {{"l0", DType::kF32}, {"l?", kFp8}, {"l2", kTf32}, {"l3", DType::kF16}}});
  EXPECT_EQ(Marks(g), (std::map<std::string, std::string>{
                          {"l0.matmul", "fp8"}, {"l1.matmul", "fp8"}, {"l2.matmul", "tf32"}, {"l3.matmul", ""}}));
  EXPECT_THAT(Operands(g, "l2.matmul"), ElementsAre(DType::kF32, DType::kF32));
  EXPECT_THAT(Operands(g, "l3.matmul"), ElementsAre(DType::kF16, DType::kF16));
}

TEST(Fp8, AddsTheStateOfThreeScalesANodeOutsideTheModelFile) {
  const ir::Graph g = Forward(3, {kFp8, {}});
  ASSERT_EQ(g.states.size(), 9u);
  std::set<std::string> names;
  for (const ir::Persistent& state : g.states) {
    names.insert(state.name);
    EXPECT_FALSE(state.in_model_file) << state.name;
  }
  for (const char* operand : {"a", "b", "grad"}) {
    EXPECT_EQ(names.count(Fp8ScaleName("l1.matmul", operand)), 1u);
    EXPECT_EQ(names.count(Fp8CountName("l1.matmul", operand)), 1u);
    EXPECT_EQ(names.count(Fp8HistoryName("l1.matmul", operand)), 1u);
  }
}

TEST(QuantizeFp8, ForwardIsE4M3AndGradientsAreE5M2) {
  const ir::Graph g = Step(3, {kFp8, {}});
  EXPECT_THAT(Operands(g, "l1.matmul"), ElementsAre(DType::kF8E4M3, DType::kF8E4M3));
  EXPECT_THAT(Operands(g, "l1.matmul.grad_a"), ElementsAre(DType::kF8E5M2, DType::kF8E4M3));
  EXPECT_THAT(Operands(g, "l1.matmul.grad_b"), ElementsAre(DType::kF8E5M2, DType::kF8E4M3));
  for (const char* name : {"l1.matmul", "l1.matmul.grad_a", "l1.matmul.grad_b"}) {
    EXPECT_EQ(g.type(Find(g, name).outputs[0]).dtype, DType::kF32);
    const ir::Node& dequantize = Find(g, std::string(name) + ".dequantize");
    EXPECT_EQ(dequantize.inputs[0], Find(g, name).outputs[0]);
    EXPECT_EQ(g.type(dequantize.outputs[0]).dtype, DType::kBF16);
  }
}

TEST(QuantizeFp8, EachTensorOnceFromItsWidestValue) {
  const ir::Graph g = Step(3, {kFp8, {}});
  EXPECT_EQ(Count(g, OpKind::kQuantize), 3);
  EXPECT_EQ(Count(g, OpKind::kAmaxUpdate), 3);
  const ir::Node& weight = Find(g, "l1.matmul.b.quantize");
  EXPECT_EQ(g.values[weight.inputs[0]].kind, ir::ValueKind::kParameter);
  EXPECT_EQ(g.values[Find(g, "l1.matmul.a.quantize").inputs[0]].name, "l0.relu");
  // The pass over a tensor that makes its codes finds its largest magnitude, too.
  const ir::Node& amax = Find(g, "l1.matmul.a.quantize.amax");
  EXPECT_EQ(amax.inputs[0], Find(g, "l1.matmul.a.quantize").outputs[1]);
  // One operand's scale never meets another's tensor.
  const ir::Node& grad_a = Find(g, "l1.matmul.grad_a.dequantize");
  EXPECT_EQ(g.values[grad_a.inputs[1]].name, "l1.matmul.grad.scale");
  EXPECT_EQ(g.values[grad_a.inputs[2]].name, "l1.matmul.b.scale");
}

TEST(ScaleProducts, ProductsOfCodesGiveWhatTheyStandFor) {
  const ir::Graph before = Step(3, {kFp8, {}});
  auto g = ScaleProducts(before);
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
  EXPECT_EQ(Count(*g, OpKind::kDequantize), 0);
  EXPECT_EQ(g->nodes.size() + 3, before.nodes.size());
  const ir::Node& grad_a = Find(*g, "l1.matmul.grad_a");
  ASSERT_EQ(grad_a.inputs.size(), 4u);
  EXPECT_EQ(g->values[grad_a.inputs[2]].name, "l1.matmul.grad.scale");
  EXPECT_EQ(g->values[grad_a.inputs[3]].name, "l1.matmul.b.scale");
  EXPECT_EQ(g->type(grad_a.outputs[0]), before.type(Find(before, "l1.matmul.grad_a.dequantize").outputs[0]));
}

TEST(ScaleProducts, SumsThatOthersReadStay) {
  ir::Graph before = Step(3, {kFp8, {}});
  before.outputs["sums"] = Find(before, "l1.matmul").outputs[0];
  const auto g = ScaleProducts(before);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(Count(*g, OpKind::kDequantize), 1);
  EXPECT_EQ(Find(*g, "l1.matmul").inputs.size(), 2u);
}

// Three products over [batch, time, features], of which the middle one has operands of 8 bits.
absl::StatusOr<ir::Graph> StepOverTime(int64_t time, int64_t features) {
  ir::Graph g;
  ir::ValueId v = g.AddInput("x", {DType::kF32, {2, time, features}});
  for (const char* layer : {"l0", "l1", "l2"}) {
    const ir::ValueId w = g.AddParameter({.name = layer, .type = {DType::kF32, {features, features}}});
    v = Emit(&g, OpKind::kMatmul, layer, {v, w}, {{"transpose_b", int64_t{1}}});
  }
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {v});
  g = *ApplyPrecision(g, {kFp8, {}});
  const ir::ValueId loss = g.outputs.at("loss");
  return QuantizeFp8(*autodiff::Differentiate(std::move(g), loss), true);
}

// The backward pass of a product over [batch, time, features] makes rows of what the forward pass read whole.
TEST(QuantizeFp8, ViewsOfATensorAreItsCodes) {
  const auto step = StepOverTime(3, 6);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_TRUE(ops::VerifyGraph(*step).ok()) << ops::VerifyGraph(*step) << ir::GraphString(*step);
  EXPECT_EQ(Count(*step, OpKind::kQuantize), 3);
  EXPECT_EQ(Count(*step, OpKind::kAmaxUpdate), 3);
  EXPECT_THAT(Operands(*step, "l1.matmul.grad_b"), ElementsAre(DType::kF8E5M2, DType::kF8E4M3));
  const ir::Node& dequantize = Find(*step, "l1.matmul.grad_b.dequantize");
  EXPECT_EQ(step->values[dequantize.inputs[1]].name, "l1.matmul.grad.scale");
  EXPECT_EQ(step->values[dequantize.inputs[2]].name, "l1.matmul.a.scale");
}

TEST(TurnCodes, BackwardProductsReadBothOperandsAlongTheInnerExtent) {
  const auto before = StepOverTime(8, 32);
  ASSERT_TRUE(before.ok()) << before.status();
  const auto g = TurnCodes(*before);
  ASSERT_TRUE(g.ok()) << g.status();
  ASSERT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g) << ir::GraphString(*g);
  const auto reads = [&](const char* product, size_t operand) {
    return g->values[Find(*g, product).inputs[operand]].name;
  };
  const auto turned = [&](const char* quantize) {
    const ir::Node& node = Find(*g, quantize);
    EXPECT_EQ(node.outputs.size(), 3u) << quantize;
    return g->values[node.outputs[2]].name;
  };
  EXPECT_EQ(reads("l1.matmul.grad_a", 1), turned("l1.matmul.b.quantize"));
  EXPECT_EQ(reads("l1.matmul.grad_b", 0), turned("l1.matmul.grad.quantize"));
  EXPECT_EQ(reads("l1.matmul.grad_b", 1), turned("l1.matmul.a.quantize"));
  for (const char* product : {"l1.matmul", "l1.matmul.grad_a", "l1.matmul.grad_b"}) {
    EXPECT_FALSE(Find(*g, product).attributes.Bool("transpose_a")) << product;
    EXPECT_TRUE(Find(*g, product).attributes.Bool("transpose_b")) << product;
  }
  EXPECT_EQ(g->type(Find(*g, "l1.matmul.a.quantize").outputs[2]).shape, (Shape{32, 16}));
}

TEST(TurnCodes, OtherExtentsAndOtherModesStay) {
  const auto is_turned = [](const absl::StatusOr<ir::Graph>& before, const std::string& operand) {
    const auto g = TurnCodes(*before);
    EXPECT_TRUE(g.ok()) << g.status();
    return Find(*g, absl::StrCat("l1.matmul.", operand, ".quantize")).outputs.size() > 2;
  };
  const auto six_rows = StepOverTime(3, 32), no_multiple = StepOverTime(8, 24);
  ASSERT_TRUE(six_rows.ok() && no_multiple.ok());
  EXPECT_FALSE(is_turned(six_rows, "a"));
  EXPECT_FALSE(is_turned(six_rows, "grad"));
  EXPECT_TRUE(is_turned(six_rows, "b"));
  for (const char* operand : {"a", "b", "grad"}) EXPECT_FALSE(is_turned(no_multiple, operand)) << operand;
  const ir::Graph wide = Step(32, {DType::kBF16, {}});
  const auto same = TurnCodes(wide);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(ir::GraphString(*same), ir::GraphString(wide));
}

TEST(QuantizeFp8, EvaluationReadsScalesAndTracksNothing) {
  const auto g = QuantizeFp8(Forward(3, {kFp8, {}}), false);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_TRUE(ops::VerifyGraph(*g).ok()) << ops::VerifyGraph(*g);
  EXPECT_EQ(Count(*g, OpKind::kQuantize), 2);
  EXPECT_EQ(Count(*g, OpKind::kAmaxUpdate), 0);
  EXPECT_EQ(g->states.size(), 9u);
}

TEST(QuantizeFp8, LeavesOtherModesAlone) {
  const ir::Graph g = Forward(3, {DType::kBF16, {}});
  const auto same = QuantizeFp8(g, true);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(ir::GraphString(*same), ir::GraphString(g));
}

TEST(QuantizeFp8, AMissingScaleIsAnError) {
  ir::Graph g = Forward(3, {kFp8, {}});
  for (ir::Value& value : g.values) {
    if (value.kind == ir::ValueKind::kState) value.name = "gone";
  }
  const auto status = QuantizeFp8(g, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("l1.matmul.a.scale"), absl::string_view::npos) << status;
}

// A cast that names its gradient's dtype rounds the gradient through it.
TEST(Cast, CarriesAGradientDType) {
  ir::Graph g;
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {4}}});
  const ir::ValueId half =
      Emit(&g, OpKind::kCast, "a", {w}, {{"dtype", std::string("bf16")}, {"gradient_dtype", std::string("e5m2")}});
  const ir::ValueId wide = Emit(&g, OpKind::kCast, "b", {half}, {{"dtype", std::string("f32")}});
  const ir::ValueId loss = Emit(&g, OpKind::kReduceMean, "loss", {wide});
  const auto step = autodiff::Differentiate(g, loss);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->type(Find(*step, "a.cast.grad_rounded").outputs[0]).dtype, DType::kF8E5M2);
  EXPECT_EQ(step->type(Find(*step, "w.grad").inputs[0]).dtype, DType::kF32);
}

}  // namespace
}  // namespace ampd::passes
