#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/ir/printer.h"
#include "engine/ir/zeros.h"
#include "engine/ops/op_def.h"

namespace ampd::ops {
namespace {

using ::testing::HasSubstr;

ir::Graph Chain() {
  ir::Graph g;
  const ir::ValueId x = g.AddInput("x", {DType::kF32, {4}});
  auto a = Emit(&g, {.op = ir::OpKind::kRelu, .name = "a", .layer = "act", .inputs = {x}});
  auto b = Emit(&g, {.op = ir::OpKind::kAdd, .name = "b", .inputs = {(*a)[0], x}});
  g.outputs["loss"] = (*b)[0];
  return g;
}

void ExpectBroken(const ir::Graph& g, const std::string& message) {
  const absl::Status status = VerifyGraph(g);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(VerifyGraph, AcceptsAChainAndPrintsIt) {
  const ir::Graph g = Chain();
  EXPECT_TRUE(VerifyGraph(g).ok()) << VerifyGraph(g);
  EXPECT_EQ(ir::GraphString(g),
            "input %x f32[4]\n"
            "%a f32[4] = relu(%x f32[4]) @act\n"
            "%b f32[4] = add(%a f32[4], %x f32[4])\n"
            "output loss = %b f32[4]\n");
}

TEST(VerifyGraph, FindsWhatIsBroken) {
  ir::Graph g = Chain();
  std::swap(g.nodes[0], g.nodes[1]);
  ExpectBroken(g, "node b reads value 1 before it is written");

  g = Chain();
  g.nodes[1].name = "a";
  ExpectBroken(g, "two nodes are named a");

  g = Chain();
  g.values[1].type.shape = {5};
  ExpectBroken(g, "its rule gives f32[4]");

  g = Chain();
  g.nodes[1].outputs = g.nodes[0].outputs;
  ExpectBroken(g, "has a value already");

  g = Chain();
  g.nodes[0].inputs = {99};
  ExpectBroken(g, "reads value 99");

  g = Chain();
  g.nodes[1].inputs.pop_back();
  ExpectBroken(g, "has 1 inputs, takes 2");

  g = Chain();
  g.nodes.pop_back();
  ExpectBroken(g, "output loss is never written");

  g = Chain();
  g.outputs["other"] = -1;
  ExpectBroken(g, "output other is value -1");

  g = Chain();
  g.values.push_back({.name = "w", .type = {DType::kF32, {1}}, .kind = ir::ValueKind::kParameter, .slot = 0});
  ExpectBroken(g, "slot 0 of 0");

  g = Chain();
  g.values.push_back({.name = "numbers", .type = {DType::kF32, {4}}, .kind = ir::ValueKind::kConstant});
  ExpectBroken(g, "constant numbers has no data of its type");
}

TEST(VerifyGraph, ZerosNeedNoData) {
  ir::Graph g = Chain();
  g.nodes[1].inputs[1] = ir::AddZeros(&g, {DType::kF32, {4}});
  EXPECT_TRUE(VerifyGraph(g).ok()) << VerifyGraph(g);
}

}  // namespace
}  // namespace ampd::ops
