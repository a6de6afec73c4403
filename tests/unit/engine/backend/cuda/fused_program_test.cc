// What the interpreter of fused nodes is given: which values wait in slots, and what does not fit.
#include "engine/backend/cuda/fused_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backend/cuda/fused_chains.h"
#include "tests/unit/engine/backend/network_chains.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using ::testing::HasSubstr;

const ir::TensorType kWholeTensor{DType::kF32, {4, 6}};

runtime::NodeDesc Node(std::vector<ir::FusedStep> steps) {
  return {.op = OpKind::kFused,
          .name = "node",
          .inputs = {{DType::kF32, {6}}, kWholeTensor},
          .outputs = {kWholeTensor},
          .steps = std::move(steps),
          .results = {0}};
}

TEST(FusedProgram, AChainNeedsNoSlot) {
  const auto compiled = CompileFused(Node({{.op = OpKind::kMul, .operands = {1, 0}},
                                           {.op = OpKind::kRelu, .operands = {2}},
                                           {.op = OpKind::kAdd, .operands = {3, 1}}}));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const FusedProgram& program = compiled->program;
  EXPECT_EQ(program.slots, 0);
  EXPECT_EQ(program.code[1].operands[0], kLast);
  EXPECT_EQ(program.code[2].operands[0], kLast);
  // Whole inputs come before rows.
  EXPECT_EQ(compiled->inputs, (std::vector<int>{1, 0}));
  EXPECT_EQ(program.whole_inputs, 1);
  EXPECT_EQ(program.inputs[1].extent, FusedInput::kRow);
  EXPECT_EQ(program.code[0].operands[0], 0);
  EXPECT_EQ(program.code[0].operands[1], 1);
}

TEST(FusedProgram, SlotsAreUsedAgain) {
  // Each of two results waits over one step; the second takes the first's place.
  const auto compiled = CompileFused(Node({{.op = OpKind::kTanh, .operands = {1}},
                                           {.op = OpKind::kNeg, .operands = {2}},
                                           {.op = OpKind::kMul, .operands = {2, 3}},
                                           {.op = OpKind::kNeg, .operands = {4}},
                                           {.op = OpKind::kMul, .operands = {4, 5}}}));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const FusedProgram& program = compiled->program;
  EXPECT_EQ(program.slots, 1);
  EXPECT_EQ(program.code[0].slot, 0);
  EXPECT_EQ(program.code[1].slot, -1);
  EXPECT_EQ(program.code[2].slot, 0);
  EXPECT_EQ(program.code[2].operands[0], kSlots);
  EXPECT_EQ(program.code[2].operands[1], kLast);
}

TEST(FusedProgram, CastsToF32AreNoSteps) {
  const auto compiled = CompileFused(Node({{.op = OpKind::kRelu, .operands = {1}},
                                           {.op = OpKind::kCast, .operands = {2}},
                                           {.op = OpKind::kNeg, .operands = {3}}}));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->program.steps, 2);
  EXPECT_EQ(compiled->program.code[1].operands[0], kLast);
}

TEST(FusedProgram, ChainsOfNetworksHaveKernelsOfTheirOwn) {
  const Context context{DeviceProperties()};
  const auto has_kernel = [&](const runtime::NodeDesc& desc) {
    const auto compiled = CompileFused(desc);
    return compiled.ok() && PrepareChain(&context, desc, *compiled) != nullptr;
  };
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const runtime::NodeDesc& desc : ampd::testing::NetworkChains(dtype, {12, 64})) {
      EXPECT_TRUE(has_kernel(desc)) << desc.name;
    }
  }
  for (const runtime::NodeDesc& desc : ampd::testing::NetworkChains(DType::kF32, {12, 64})) {
    EXPECT_FALSE(has_kernel(desc)) << desc.name;
  }
  for (const runtime::NodeDesc& desc : ampd::testing::NetworkChains(DType::kF16, {12, 63})) {
    EXPECT_FALSE(has_kernel(desc)) << desc.name;
  }
}

TEST(FusedProgram, TooManyStepsAreRefused) {
  const std::vector<ir::FusedStep> steps(25, {.op = OpKind::kNeg, .operands = {1}});
  const absl::Status status = CompileFused(Node(steps)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("25 steps"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("node node"));
}

}  // namespace
}  // namespace ampd::cuda
