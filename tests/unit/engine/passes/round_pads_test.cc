#include "engine/passes/round_pads.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/ir/printer.h"
#include "engine/ops/op_def.h"
#include "tests/support/emit.h"
#include "tests/unit/engine/passes/graph_checks.h"

namespace ampd::passes {
namespace {

using ampd::testing::Emit;
using ir::OpKind;
using ir::ValueId;

const ir::Attributes kBehind = {{"pads", std::vector<int64_t>{0, 0, 0, 5}}};

ir::Attributes To(const char* dtype) { return {{"dtype", std::string(dtype)}}; }

std::string Rounded(const ir::Graph& g, int64_t fewest_bytes = 0) {
  return ir::GraphString(Pass(RoundPads(g, fewest_bytes)));
}

TEST(RoundPads, ThePaddingReadsTheBatch) {
  for (const char* dtype : {"f16", "bf16"}) {
    ir::Graph g;
    const ValueId x = g.AddInput("x", {DType::kF32, {4, 3}});
    const ValueId cast = Emit(&g, OpKind::kCast, "x", {x}, To(dtype));
    const ValueId pad = Emit(&g, OpKind::kPad, "x", {cast}, kBehind);
    g.outputs["y"] = Emit(&g, OpKind::kNeg, "y", {pad});
    const ir::TensorType type = g.type(pad);
    const ir::Graph after = Pass(RoundPads(g, 4 * 8 * 2));
    ASSERT_EQ(after.nodes.size(), 2u) << ir::GraphString(after);
    EXPECT_EQ(after.nodes[0].op, OpKind::kPad);
    EXPECT_EQ(after.nodes[0].inputs[0], x);
    EXPECT_EQ(after.type(after.nodes[0].outputs[0]), type);
    EXPECT_EQ(Rounded(g, 4 * 8 * 2 + 1), ir::GraphString(g));
  }
}

TEST(RoundPads, LeavesACastThatOthersRead) {
  ir::Graph g;
  const ValueId cast = Emit(&g, OpKind::kCast, "x", {g.AddInput("x", {DType::kF32, {4, 3}})}, To("f16"));
  g.outputs["y"] = Emit(&g, OpKind::kPad, "x", {cast}, kBehind);
  ir::Graph shown = g;
  shown.outputs["narrow"] = cast;
  EXPECT_EQ(Rounded(shown), ir::GraphString(shown));
  g.outputs["z"] = Emit(&g, OpKind::kNeg, "z", {cast});
  EXPECT_EQ(Rounded(g), ir::GraphString(g));
}

TEST(RoundPads, LeavesWhatIsComputed) {
  ir::Graph g;
  const ValueId x = Emit(&g, OpKind::kNeg, "x", {g.AddInput("x", {DType::kF32, {4, 3}})});
  g.outputs["y"] = Emit(&g, OpKind::kPad, "x", {Emit(&g, OpKind::kCast, "x", {x}, To("f16"))}, kBehind);
  EXPECT_EQ(Rounded(g), ir::GraphString(g));
}

TEST(RoundPads, LeavesPaddingThatIsNoConstant) {
  for (const char* mode : {"reflect", "edge"}) {
    ir::Graph g;
    const ValueId cast = Emit(&g, OpKind::kCast, "x", {g.AddInput("x", {DType::kF32, {4, 3}})}, To("f16"));
    g.outputs["y"] =
        Emit(&g, OpKind::kPad, "x", {cast}, {{"pads", std::vector<int64_t>{0, 0, 0, 2}}, {"mode", std::string(mode)}});
    EXPECT_EQ(Rounded(g), ir::GraphString(g));
  }
}

TEST(RoundPads, LeavesOtherConversions) {
  ir::Graph g;
  const ValueId wide = Emit(&g, OpKind::kCast, "x", {g.AddInput("x", {DType::kF16, {4, 3}})}, To("f32"));
  g.outputs["y"] = Emit(&g, OpKind::kPad, "x", {wide}, kBehind);
  const ValueId bytes = Emit(&g, OpKind::kCast, "u", {g.AddInput("u", {DType::kU8, {4, 3}})}, To("f16"));
  g.outputs["v"] = Emit(&g, OpKind::kPad, "u", {bytes}, kBehind);
  g.outputs["w"] = Emit(&g, OpKind::kPad, "w", {g.AddInput("w", {DType::kF32, {4, 3}})}, kBehind);
  EXPECT_EQ(Rounded(g), ir::GraphString(g));
}

}  // namespace
}  // namespace ampd::passes
