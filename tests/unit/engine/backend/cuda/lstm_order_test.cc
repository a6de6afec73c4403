// That LSTMs which one kernel takes through all time steps wait where they have to: in whatever order a block's threads
// run between its barriers, the bits are the same.
#include <gtest/gtest.h>

#include "engine/ops/op_def.h"
#include "tests/support/cuda_on_host/cuda_on_host.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

constexpr int64_t kTime = 7, kHidden = 64;

NodeDesc Describe(OpKind op, int64_t batch) {
  constexpr DType d = DType::kF16, f = DType::kF32;
  const ir::TensorType steps = {d, {batch, kTime, kHidden}}, state = {d, {batch, kHidden}};
  const ir::TensorType weights = {d, {4 * kHidden, kHidden}}, gates = {d, {batch, kTime, 4 * kHidden}};
  NodeDesc desc{.op = op, .name = "lstm", .attributes = {{"direction", std::string("forward")}}};
  desc.inputs = {{d, {batch, kTime, 3}}, {d, {4 * kHidden, 3}}, weights};
  if (op == OpKind::kLstmGrad) desc.inputs = {steps, state, {f, {batch, kHidden}}, weights, steps, gates, steps};
  desc.outputs = *ops::InferTypes(op, {desc.name, desc.attributes, desc.inputs});
  return desc;
}

class LstmOrder : public ::testing::TestWithParam<std::tuple<OpKind, int64_t>> {
 protected:
  void TearDown() override { cuda_on_host::SetFiberOrder(0); }
};

TEST_P(LstmOrder, OfThreadsDoesNotMatter) {
  const NodeDesc desc = Describe(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Random random(3);
  const std::vector<RefTensor> inputs = DrawInputs(*FindOpRow(desc.op), desc, &random);
  const auto expected = RunTested(desc, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (unsigned order : {1u, 2u, 3u, 4u}) {
    cuda_on_host::SetFiberOrder(order);
    const auto results = RunTested(desc, inputs);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < results->size(); ++i) {
      EXPECT_TRUE(SameBits((*results)[i], (*expected)[i])) << testing::Describe(desc) << ", result " << i;
    }
  }
}

// Blocks of four samples, and of eight.
INSTANTIATE_TEST_SUITE_P(Lstm, LstmOrder,
                         ::testing::Combine(::testing::Values(OpKind::kLstm, OpKind::kLstmGrad),
                                            ::testing::Values(int64_t{4}, int64_t{20})));

}  // namespace
}  // namespace ampd::testing
