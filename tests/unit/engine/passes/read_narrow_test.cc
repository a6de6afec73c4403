#include "engine/passes/read_narrow.h"

#include <gtest/gtest.h>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/precision.h"
#include "tests/support/emit.h"
#include "tests/support/graph_reference.h"
#include "tests/support/reference.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;

// A model of three positions over six tokens.
struct Tokens {
  ir::Graph g;
  ValueId logits;
  ValueId labels;

  Tokens() {
    const ValueId x = g.AddInput("x", {DType::kF32, {2, 3, 4}});
    const ValueId w = g.AddParameter({.name = "head.weight", .type = {DType::kF32, {6, 4}}});
    logits = Emit(&g, OpKind::kMatmul, "head", {x, w}, {{"transpose_b", int64_t{1}}});
    labels = g.AddInput("labels", {DType::kI32, {2, 3}});
  }

  ValueId Loss(const std::string& name, const ir::Attributes& attributes = {}) {
    return Emit(&g, OpKind::kReduceMean, name,
                {Emit(&g, OpKind::kSoftmaxCrossEntropy, name, {logits, labels}, attributes)});
  }

  ir::Graph Step(DType compute) {
    const ir::Graph forward = Pass(ApplyPrecision(g, {.compute = compute}));
    return Pass(RemoveDeadNodes(Pass(autodiff::Differentiate(forward, forward.outputs.at("loss")))));
  }
};

// Casts of tensors of the logits' shape.
int Casts(const ir::Graph& g) {
  int casts = 0;
  for (const ir::Node& node : g.nodes) {
    casts += node.op == OpKind::kCast && g.type(node.inputs[0]).shape == Shape{2, 3, 6};
  }
  return casts;
}

void ExpectSameResults(const ir::Graph& a, const ir::Graph& b) {
  ampd::testing::Random random(3);
  ampd::testing::GraphInputs in;
  in.inputs["x"] = ampd::testing::RandomTensor(&random, {2, 3, 4}, DType::kF32);
  in.inputs["labels"] = {{2, 3}, {0, 5, 2, 3, 1, 4}};
  in.parameters.push_back(ampd::testing::RandomTensor(&random, {6, 4}, DType::kF32));
  in.step.loss_seed = 1024;
  const auto expected = RunGraphReference(a, in), found = RunGraphReference(b, in);
  EXPECT_EQ(found.outputs.at("loss").data, expected.outputs.at("loss").data);
  ASSERT_EQ(found.gradients.size(), 1u);
  EXPECT_EQ(found.gradients[0].data, expected.gradients[0].data);
}

TEST(ReadNarrow, LogitsAndTheirGradientStayIn16Bits) {
  for (DType compute : {DType::kF16, DType::kBF16}) {
    Tokens tokens;
    tokens.g.outputs["loss"] = tokens.Loss("loss");
    const ir::Graph before = tokens.Step(compute);
    ASSERT_EQ(Casts(before), 2);
    const ir::Graph after = Pass(ReadNarrow(before, 0));
    EXPECT_EQ(Casts(after), 0) << ir::GraphString(after);
    EXPECT_EQ(after.nodes.size() + 2, before.nodes.size());
    for (const ir::Node& node : after.nodes) {
      if (node.op == OpKind::kSoftmaxCrossEntropy) {
        EXPECT_EQ(after.type(node.inputs[0]).dtype, compute);
      } else if (node.op == OpKind::kSoftmaxCrossEntropyGrad) {
        EXPECT_EQ(after.type(node.outputs[0]).dtype, compute);
      }
    }
    ExpectSameResults(before, after);
  }
}

TEST(ReadNarrow, SmallOnesAndThoseOf32BitsAreLeftAlone) {
  Tokens tokens;
  tokens.g.outputs["loss"] = tokens.Loss("loss");
  EXPECT_EQ(Casts(Pass(ReadNarrow(tokens.Step(DType::kBF16)))), 2);
  EXPECT_EQ(Casts(Pass(ReadNarrow(tokens.Step(DType::kBF16), 2 * 3 * 6 * 2))), 0);
  EXPECT_EQ(Casts(Pass(ReadNarrow(tokens.Step(DType::kBF16), 2 * 3 * 6 * 2 + 1))), 2);
  const ir::Graph wide = tokens.Step(DType::kF32);
  EXPECT_EQ(ir::GraphString(Pass(ReadNarrow(wide, 0))), ir::GraphString(wide));
}

TEST(ReadNarrow, LogitsThatOthersReadIn32BitsAreLeftAlone) {
  Tokens tokens;
  tokens.g.outputs["loss"] = tokens.Loss("loss");
  tokens.g.outputs["logits"] = tokens.logits;
  const ir::Graph before = tokens.Step(DType::kF16);
  EXPECT_EQ(ir::GraphString(Pass(ReadNarrow(before, 0))), ir::GraphString(before));
}

// Their gradients are added in f32 before one rounding.
TEST(ReadNarrow, LogitsOfTwoLossesAreLeftAlone) {
  Tokens tokens;
  const ValueId first = tokens.Loss("first"), second = tokens.Loss("second", {{"smoothing", 0.5}});
  tokens.g.outputs["loss"] = Emit(&tokens.g, OpKind::kAdd, "loss", {first, second});
  const ir::Graph before = tokens.Step(DType::kF16);
  EXPECT_EQ(ir::GraphString(Pass(ReadNarrow(before, 0))), ir::GraphString(before));
}

TEST(ReadNarrow, ForwardAloneReads16Bits) {
  Tokens tokens;
  tokens.g.outputs["loss"] = tokens.Loss("loss");
  const ir::Graph before = Pass(ApplyPrecision(tokens.g, {.compute = DType::kBF16}));
  ASSERT_EQ(Casts(before), 1);
  EXPECT_EQ(Casts(Pass(ReadNarrow(before, 0))), 0);
}

}  // namespace
}  // namespace ampd::passes
