// Every gradient rule against finite differences in float64: each op by itself, and whole small networks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/autodiff/differentiate.h"
#include "engine/core/rng.h"
#include "engine/ops/op_def.h"
#include "tests/support/graph_reference.h"
#include "tests/support/op_rows.h"
#include "tests/support/small_networks.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

double LossOf(const ir::Graph& graph, const GraphInputs& in) {
  return RunGraphReference(graph, in).outputs.at("loss").data[0];
}

// Central differences of the loss against the accumulated gradients, for up to `probes` elements of each parameter. The
// difference's error is about step^2 (truncation) and 1e-16 / step (cancellation): 1e-9 at a step of 1e-6.
void CheckGradients(const ir::Graph& forward, const ir::Graph& graph, GraphInputs in, int probes,
                    const std::string& what) {
  in.step.loss_seed = 1;
  const std::vector<RefTensor> gradients = RunGraphReference(graph, in).gradients;
  for (size_t p = 0; p < in.parameters.size(); ++p) {
    RngSequence rng(p, "probes");
    const int64_t size = static_cast<int64_t>(in.parameters[p].data.size());
    for (int k = 0; k < std::min<int64_t>(probes, size); ++k) {
      const int64_t i = size <= probes ? k : static_cast<int64_t>(rng.NextBelow(size));
      double& x = in.parameters[p].data[i];
      const double saved = x, step = 1e-6;
      x = saved + step;
      const double above = LossOf(forward, in);
      x = saved - step;
      const double below = LossOf(forward, in);
      x = saved;
      const double expected = (above - below) / (2 * step);
      EXPECT_NEAR(gradients[p].data[i], expected, 1e-7 * (1 + std::abs(expected)))
          << what << ", " << graph.parameters[p].name << "[" << i << "]";
    }
  }
}

struct OpCase {
  OpKind op;
  std::vector<Shape> inputs;  // each a parameter, but for the last `constants`, which are in [0.5, 2)
  ir::Attributes attributes;
  size_t constants = 0;
};

std::vector<OpCase> DifferentiableOps() {
  const ir::Attributes same{{"size", Ints{2, 3}}, {"strides", Ints{1, 2}}, {"pads", Ints{0, 1, 1, 1}}};
  const ir::Attributes dilated{{"size", Ints{2, 3}},      {"strides", Ints{1, 2}},   {"pads", Ints{0, 1, 1, 1}},
                               {"dilations", Ints{3, 2}}, {"ceil_pads", Ints{1, 0}}, {"count_include_pad", int64_t{1}}};
  const ir::Attributes t{{"transpose_a", int64_t{1}}}, tt{{"transpose_a", int64_t{1}}, {"transpose_b", int64_t{1}}},
      nt{{"transpose_b", int64_t{1}}};
  return {
      {OpKind::kReshape, {{2, 6}}, {{"shape", Ints{3, 4}}}},
      {OpKind::kDropout, {{4, 5}}, {{"rate", 0.4}, {"stream", int64_t{17}}}},
      {OpKind::kMatmul, {{2, 3}, {3, 4}}, {}},
      {OpKind::kMatmul, {{3, 2}, {3, 4}}, t},
      {OpKind::kMatmul, {{2, 3}, {4, 3}}, nt},
      {OpKind::kMatmul, {{3, 2}, {4, 3}}, tt},
      {OpKind::kBiasAdd, {{2, 3, 4}, {4}}, {}},
      {OpKind::kConv2d, {{2, 5, 6, 3}, {4, 3, 2, 3}}, {{"strides", Ints{1, 1}}, {"pads", Ints{0, 0, 0, 0}}}},
      {OpKind::kConv2d, {{2, 5, 6, 3}, {4, 3, 2, 3}}, {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 2, 1}}}},
      {OpKind::kConv2d, {{1, 1, 1, 1}, {1, 1, 1, 1}}, {{"strides", Ints{1, 1}}, {"pads", Ints{0, 0, 0, 0}}}},
      {OpKind::kConv2d,
       {{2, 7, 6, 4}, {6, 3, 2, 2}},
       {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 2, 1}}, {"dilations", Ints{2, 3}}, {"groups", int64_t{2}}}},
      {OpKind::kMatmul, {{3, 2, 3}, {3, 3, 4}}, {}},
      {OpKind::kMatmul, {{2, 3, 4}, {4, 5}}, {}},
      {OpKind::kMatmul, {{4, 3}, {2, 4, 5}}, t},
      {OpKind::kMatmul, {{2, 1, 3, 4}, {3, 4, 2}}, {}},
      {OpKind::kMatmul, {{2, 3, 4}, {5, 4}}, nt},
      {OpKind::kMatmul, {{2, 4, 3}, {2, 5, 4}}, tt},
      {OpKind::kMatmul, {{1, 2, 3, 4}, {3, 1, 4, 2}}, {}},
      {OpKind::kMatmul, {{2, 3, 4}, {3, 2, 5, 4}}, nt},
      {OpKind::kMaxPool2d, {{2, 9, 8, 3}}, dilated},
      {OpKind::kAvgPool2d, {{2, 9, 8, 3}}, dilated},
      {OpKind::kMaxPool2d, {{2, 5, 6, 3}}, same},
      {OpKind::kAvgPool2d, {{2, 5, 6, 3}}, same},
      {OpKind::kGlobalAvgPool, {{2, 3, 4, 5}}, {}},
      {OpKind::kBatchNorm, {{6, 3}, {3}, {3}}, {{"epsilon", 1e-5}}},
      {OpKind::kBatchNorm, {{2, 3, 2, 4}, {4}, {4}}, {{"epsilon", 1e-3}}},
      {OpKind::kBatchNormInference, {{6, 3}, {3}, {3}, {3}, {3}}, {{"epsilon", 1e-3}}, 2},
      {OpKind::kBatchNormInference, {{2, 3, 2, 4}, {4}, {4}, {4}, {4}}, {{"epsilon", 0.1}}, 2},
  };
}

// The loss: for each of the first `count` outputs the mean squared distance from random targets, which gives every
// element a weight of its own.
ir::ValueId AddLoss(const std::vector<ir::ValueId>& outputs, int count, ir::Graph* g, GraphInputs* in) {
  RngSequence rng(4, "targets");
  ir::ValueId total = -1;
  for (int i = 0; i < count; ++i) {
    const std::string id = std::to_string(i);
    const int64_t size = NumElements(g->type(outputs[i]).shape);
    const auto emit = [&](OpKind op, const std::string& name, std::vector<ir::ValueId> inputs, ir::Attributes a) {
      auto values =
          ops::Emit(g, {.op = op, .name = name + id, .inputs = std::move(inputs), .attributes = std::move(a)});
      EXPECT_TRUE(values.ok()) << values.status();
      return (*values)[0];
    };
    const ir::ValueId flat = emit(OpKind::kReshape, "flat", {outputs[i]}, {{"shape", Ints{1, size}}});
    const ir::ValueId target = g->AddInput("target" + id, {DType::kF32, {1, size}});
    in->inputs["target" + id] = RandomTensor({1, size}, &rng, -2, 2);
    const ir::ValueId losses = emit(OpKind::kSquaredError, "losses", {flat, target}, {});
    const ir::ValueId mean = emit(OpKind::kReduceMean, "mean", {losses}, {});
    total = total < 0 ? mean : emit(OpKind::kAdd, "total", {total, mean}, {});
  }
  return total;
}

void CheckOp(ir::Graph g, GraphInputs in, OpKind op, const std::vector<ir::ValueId>& operands,
             const ir::Attributes& attributes, int differentiable_outputs, const std::string& what) {
  auto y = ops::Emit(&g, {.op = op, .name = "op", .inputs = operands, .attributes = attributes});
  ASSERT_TRUE(y.ok()) << y.status();
  const ir::ValueId loss = AddLoss(*y, differentiable_outputs, &g, &in);
  g.outputs["loss"] = loss;
  auto graph = autodiff::Differentiate(g, loss);
  ASSERT_TRUE(graph.ok()) << what << graph.status();
  ASSERT_TRUE(ops::VerifyGraph(*graph).ok()) << what << ops::VerifyGraph(*graph);
  CheckGradients(g, *graph, in, 50, what);
}

TEST(GradientCheck, EachOp) {
  for (const OpCase& c : DifferentiableOps()) {
    const std::string what(ir::OpName(c.op));
    RngSequence rng(1, what);
    ir::Graph g;
    GraphInputs in;
    std::vector<ir::ValueId> operands;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (i + c.constants >= c.inputs.size()) {
        const std::string name = "c" + std::to_string(i);
        operands.push_back(g.AddInput(name, {DType::kF32, c.inputs[i]}));
        in.inputs[name] = RandomTensor(c.inputs[i], &rng, 0.5, 2);
        continue;
      }
      operands.push_back(g.AddParameter({.name = "p" + std::to_string(i), .type = {DType::kF32, c.inputs[i]}}));
      in.parameters.push_back(RandomTensor(c.inputs[i], &rng, -1, 1));
    }
    CheckOp(g, in, c.op, operands, c.attributes, 1, what);
  }
}

// The first signature of as many inputs, with every float as f32.
std::vector<ir::TensorType> GradientTypes(const OpRow& row, const OpShapes& shapes) {
  std::vector<ir::TensorType> types;
  for (const auto& signature : row.signatures) {
    const auto& dtypes = signature.first;
    if (dtypes.size() != shapes.inputs.size() && !ops::GetOpDef(row.op).variadic) continue;
    for (size_t i = 0; i < shapes.inputs.size(); ++i) {
      const DType dtype = dtypes[std::min(i, dtypes.size() - 1)];
      types.push_back({IsFloat(dtype) ? DType::kF32 : dtype, shapes.inputs[i]});
    }
    break;
  }
  return types;
}

void CheckRow(const OpRow& row, const OpShapes& shapes, const std::string& what) {
  Random random(11);
  RngSequence rng(1, what);
  ir::Graph g;
  GraphInputs in;
  const runtime::NodeDesc desc{
      .op = row.op, .name = "op", .attributes = shapes.attributes, .inputs = GradientTypes(row, shapes)};
  ASSERT_EQ(desc.inputs.size(), shapes.inputs.size()) << what << ": no signature of as many inputs";
  RefTensors drawn = DrawInputs(row, desc, &random);
  std::vector<ir::ValueId> operands;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    const auto& constants = row.constant_inputs;
    const bool constant = std::find(constants.begin(), constants.end(), static_cast<int>(i)) != constants.end();
    if (constant || !IsFloat(desc.inputs[i].dtype)) {
      operands.push_back(g.AddInput(name, desc.inputs[i]));
      in.inputs[name] = drawn[i];
      continue;
    }
    operands.push_back(g.AddParameter({.name = name, .type = desc.inputs[i]}));
    in.parameters.push_back(row.gradient_input ? row.gradient_input(desc, static_cast<int>(i), &random)
                                               : RandomTensor(desc.inputs[i].shape, &rng, -1, 1));
  }
  CheckOp(g, in, row.op, operands, shapes.attributes, row.differentiable_outputs, what);
}

TEST(GradientCheck, EachRow) {
  for (const OpRow& row : AllOpRows()) {
    for (size_t i = 0; i < row.gradient_cases.size(); ++i) {
      CheckRow(row, row.gradient_cases[i], std::string(ir::OpName(row.op)) + " case " + std::to_string(i));
    }
  }
}

TEST(GradientCheck, CoversEveryDifferentiableOp) {
  for (OpKind kind : ir::kAllOpKinds) {
    if (ops::GetOpDef(kind).gradient == nullptr) continue;
    bool covered = false;
    for (const OpCase& c : DifferentiableOps()) covered = covered || c.op == kind;
    const OpRow* row = FindOpRow(kind);
    covered = covered || (row != nullptr && !row->gradient_cases.empty());
    EXPECT_TRUE(covered) << ir::OpName(kind);
  }
}

TEST(GradientCheck, SoftmaxCrossEntropyWithAnIgnoredLabel) {
  ir::Graph g;
  GraphInputs in;
  RngSequence rng(2, "logits");
  const ir::ValueId logits = g.AddParameter({.name = "logits", .type = {DType::kF32, {4, 5}}});
  in.parameters.push_back(RandomTensor({4, 5}, &rng, -3, 3));
  const ir::ValueId labels = g.AddInput("labels", {DType::kI32, {4}});
  in.inputs["labels"] = {{4}, {0, 4, -1, 2}};
  auto losses = ops::Emit(&g, {.op = OpKind::kSoftmaxCrossEntropy, .name = "losses", .inputs = {logits, labels}});
  auto loss = ops::Emit(&g, {.op = OpKind::kReduceMean, .name = "mean", .inputs = {(*losses)[0]}});
  g.outputs["loss"] = (*loss)[0];
  auto graph = autodiff::Differentiate(g, (*loss)[0]);
  ASSERT_TRUE(graph.ok()) << graph.status();
  CheckGradients(g, *graph, in, 50, "softmax_cross_entropy");
}

TEST(GradientCheck, AParameterUsedTwiceSumsBothUses) {
  ir::Graph g;
  GraphInputs in;
  RngSequence rng(3, "twice");
  const ir::ValueId w = g.AddParameter({.name = "w", .type = {DType::kF32, {3, 3}}});
  in.parameters.push_back(RandomTensor({3, 3}, &rng, -1, 1));
  auto squared = ops::Emit(&g, {.op = OpKind::kMatmul, .name = "ww", .inputs = {w, w}});
  auto sum = ops::Emit(&g, {.op = OpKind::kAdd, .name = "ww+w", .inputs = {(*squared)[0], w}});
  auto again = ops::Emit(&g, {.op = OpKind::kAdd, .name = "(ww+w)+ww", .inputs = {(*sum)[0], (*squared)[0]}});
  const ir::ValueId target = g.AddInput("target", {DType::kF32, {3, 3}});
  in.inputs["target"] = RandomTensor({3, 3}, &rng, -1, 1);
  auto losses = ops::Emit(&g, {.op = OpKind::kSquaredError, .name = "losses", .inputs = {(*again)[0], target}});
  auto loss = ops::Emit(&g, {.op = OpKind::kReduceMean, .name = "mean", .inputs = {(*losses)[0]}});
  g.outputs["loss"] = (*loss)[0];
  auto graph = autodiff::Differentiate(g, (*loss)[0]);
  ASSERT_TRUE(graph.ok()) << graph.status();
  CheckGradients(g, *graph, in, 50, "w used twice");
}

TEST(GradientCheck, WholeNetworks) {
  for (const SmallNetwork& network : SmallNetworks()) {
    const models::Model model = BuildSmallNetwork(network, "mode: FP32", 4);
    CheckGradients(model.phases[0].train, model.phases[0].train, RandomInputs(network, model.phases[0].train), 12,
                   network.name);
  }
}

// Batch norm gives its statistics away, but has no gradient through them: they must not silently count for nothing.
TEST(Differentiate, RefusesALossOfStatistics) {
  ir::Graph g;
  std::vector<ir::ValueId> inputs;
  for (const Shape& shape : {Shape{6, 3}, Shape{3}, Shape{3}}) {
    const std::string name = "p" + std::to_string(inputs.size());
    inputs.push_back(g.AddParameter({.name = name, .type = {DType::kF32, shape}}));
  }
  const auto outputs =
      ops::Emit(&g, {.op = OpKind::kBatchNorm, .name = "bn", .inputs = inputs, .attributes = {{"epsilon", 1e-5}}});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  const auto mean = ops::Emit(&g, {.op = OpKind::kReduceMean, .name = "mean", .inputs = {(*outputs)[1]}});
  const auto of_y = ops::Emit(&g, {.op = OpKind::kReduceMean, .name = "of_y", .inputs = {(*outputs)[0]}});
  const auto both = ops::Emit(&g, {.op = OpKind::kAdd, .name = "both", .inputs = {(*mean)[0], (*of_y)[0]}});
  ASSERT_TRUE(both.ok()) << both.status();
  for (ir::ValueId loss : {(*mean)[0], (*both)[0]}) {
    const auto graph = autodiff::Differentiate(g, loss);
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(graph.status().message().find("bn"), absl::string_view::npos) << graph.status();
  }
}

// Of z = x * other and sum = z^2 x, with both x and z held as variables: z does not change with x.
TEST(AddGradients, LeavesAreIndependentOfEachOther) {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {}}), other = g.AddInput("other", {DType::kF32, {}});
  const auto mul = [&g](const char* name, ir::ValueId a, ir::ValueId b) {
    return ops::Emit(&g, {.op = OpKind::kMul, .name = name, .inputs = {a, b}}).value()[0];
  };
  const ir::ValueId z = mul("z", x, other), y = mul("y", z, z), sum = mul("sum", y, x);
  const auto gradients = autodiff::AddGradients(&g, sum, {x, z, other});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  EXPECT_EQ((*gradients)[2], -1);
  g.outputs = {{"x", (*gradients)[0]}, {"z", (*gradients)[1]}};
  GraphInputs in;
  in.inputs = {{"x", {{}, {3}}}, {"other", {{}, {5}}}};
  const GraphResults results = RunGraphReference(g, in);
  EXPECT_EQ(results.outputs.at("x").data[0], 15 * 15);
  EXPECT_EQ(results.outputs.at("z").data[0], 2 * 15 * 3);
}

}  // namespace
}  // namespace ampd::testing
