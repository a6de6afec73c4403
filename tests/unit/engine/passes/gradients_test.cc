// Gradients that stay in f32, and that are written once.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/autodiff/differentiate.h"
#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "engine/passes/dead_nodes.h"
#include "engine/passes/overwrite_gradients.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "engine/passes/precision.h"
#include "engine/passes/widen_gradients.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;

const ir::Attributes kTransposed = {{"transpose_b", int64_t{1}}};

// A step over y, which `build` makes of x [6, 12] and weights of its own.
ir::Graph Step(const std::function<ValueId(ir::Graph*, ValueId)>& build, DType compute) {
  ir::Graph g;
  const ValueId y = build(&g, g.AddInput("x", {DType::kF32, {6, 12}}));
  g.outputs["loss"] = Emit(&g, OpKind::kReduceMean, "loss", {Emit(&g, OpKind::kMul, "square", {y, y})});
  const ir::Graph forward = Pass(ApplyPrecision(g, {.compute = compute}));
  return Pass(RemoveDeadNodes(Pass(autodiff::Differentiate(forward, forward.outputs.at("loss")))));
}

ValueId Weight(ir::Graph* g, const std::string& name, const Shape& shape) {
  return g->AddParameter({.name = name, .type = {DType::kF32, shape}});
}

// Two layers, and the first one's weights once more.
ValueId Tied(ir::Graph* g, ValueId x) {
  const ValueId a = Weight(g, "a.weight", {12, 12}), b = Weight(g, "b.weight", {4, 12});
  const ValueId h = Emit(g, OpKind::kTanh, "act", {Emit(g, OpKind::kMatmul, "a", {x, a}, kTransposed)});
  return Emit(g, OpKind::kMatmul, "b", {Emit(g, OpKind::kMatmul, "a2", {h, a}, kTransposed), b}, kTransposed);
}

void ExpectSameGradients(const ir::Graph& a, const ir::Graph& b) {
  const auto expected = GradientsOf(a, 64), found = GradientsOf(b, 64);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i].data, expected[i].data) << i;
}

// The types of what is added to gradients, in order.
std::vector<DType> Added(const ir::Graph& g) {
  std::vector<DType> dtypes;
  for (const ir::Node& node : g.nodes) {
    if (node.op == OpKind::kAccumulateGrad) dtypes.push_back(g.type(node.inputs[0]).dtype);
  }
  return dtypes;
}

TEST(WidenGradients, ProductsOfSixteenBitsLeaveThemInF32) {
  for (DType compute : {DType::kF16, DType::kBF16}) {
    const ir::Graph before = Step(Tied, compute);
    ASSERT_EQ(Added(before), std::vector<DType>(3, compute));
    const ir::Graph after = Pass(WidenGradients(before));
    EXPECT_EQ(Added(after), std::vector<DType>(3, DType::kF32)) << ir::GraphString(after);
    EXPECT_EQ(after.nodes.size(), before.nodes.size());
    ExpectSameGradients(before, after);
    // Nothing else changed.
    for (size_t v = 0; v < before.values.size(); ++v) {
      if (before.values[v].name.find("grad_b") != std::string::npos) continue;
      EXPECT_EQ(after.values[v].type, before.values[v].type) << before.values[v].name;
    }
  }
}

TEST(WidenGradients, ProductsOfF32StayAsTheyAre) {
  const ir::Graph before = Step(Tied, DType::kF32);
  EXPECT_EQ(ir::GraphString(Pass(WidenGradients(before))), ir::GraphString(before));
}

TEST(WidenGradients, AGradientThatOthersReadStays) {
  ir::Graph before = Step(Tied, DType::kF16);
  for (const ir::Node& node : before.nodes) {
    if (node.op == OpKind::kAccumulateGrad) before.outputs[node.name] = node.inputs[0];
  }
  EXPECT_EQ(ir::GraphString(Pass(WidenGradients(before))), ir::GraphString(before));
}

TEST(WidenGradients, SoDoesOneThatNoProductMakes) {
  const auto scaled = [](ir::Graph* g, ValueId x) {
    const ValueId w = Weight(g, "w", {12});
    const ValueId narrow = Emit(g, OpKind::kCast, "x16", {x}, {{"dtype", std::string("f16")}});
    const ValueId y =
        Emit(g, OpKind::kMul, "y", {narrow, Emit(g, OpKind::kCast, "w16", {w}, {{"dtype", std::string("f16")}})});
    return Emit(g, OpKind::kCast, "y32", {y}, {{"dtype", std::string("f32")}});
  };
  const ir::Graph before = Step(scaled, DType::kF16);
  EXPECT_EQ(ir::GraphString(Pass(WidenGradients(before))), ir::GraphString(before));
}

TEST(WidenGradients, WhatPaddingAddedIsCutOffInF32) {
  const auto odd = [](ir::Graph* g, ValueId x) {
    return Emit(g, OpKind::kMatmul, "fc", {x, Weight(g, "fc.weight", {7, 12})}, kTransposed);
  };
  std::vector<PaddedExtent> padded;
  const ir::Graph before = Pass(PadForTensorCores(Step(odd, DType::kF16), kTensorCorePadding, &padded));
  ASSERT_GE(Count(before, OpKind::kSlice), 1) << ir::GraphString(before);
  const ir::Graph after = Pass(WidenGradients(before));
  EXPECT_EQ(Count(after, OpKind::kSlice), Count(before, OpKind::kSlice)) << ir::GraphString(after);
  EXPECT_EQ(Added(after), std::vector<DType>{DType::kF32});
  ExpectSameGradients(before, after);
}

TEST(OverwriteGradients, TheFirstOfEachParameterDoes) {
  const ir::Graph before = Step(Tied, DType::kF16);
  const ir::Graph after = Pass(OverwriteGradients(before));
  std::vector<bool> overwrites;
  for (const ir::Node& node : after.nodes) {
    if (node.op == OpKind::kAccumulateGrad) overwrites.push_back(node.attributes.Bool("overwrite"));
  }
  // b's, then a's last use, then its first.
  EXPECT_EQ(overwrites, (std::vector<bool>{true, true, false}));
  ExpectSameGradients(before, after);
}

}  // namespace
}  // namespace ampd::passes
