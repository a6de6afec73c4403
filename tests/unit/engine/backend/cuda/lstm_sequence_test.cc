// LSTMs that one kernel takes through all time steps, at sizes that the walk over all kernels does not reach: against
// float64, and against one launch a step, which layers with peepholes take, be they zeros.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "engine/ops/op_def.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Layer {
  int64_t batch, time, hidden;
  // How many of the optional inputs there are: lstm's 3, 5, 6, 8 or 9, to which lstm_grad's belong.
  int inputs = 8;
  int64_t features = 3;
  // Of the states' weights: so large that errors of one step do not vanish in the next ones, so small that what bounds
  // them does not grow without limit.
  double weight = 0.25;
};

// Inputs of lstm_grad where the forward pass has so many.
int GradInputs(int inputs) { return inputs <= 5 ? 7 : inputs + 2; }

// dtype and direction.
class CudaLstmSequence : public ::testing::TestWithParam<std::tuple<DType, const char*>> {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no device here";
  }

  static NodeDesc Describe(OpKind op, const Layer& l) {
    const auto [d, direction] = GetParam();
    constexpr DType f = DType::kF32, i = DType::kI32;
    const int64_t h = l.hidden;
    const ir::TensorType steps = {d, {l.batch, l.time, h}}, state = {d, {l.batch, h}}, cell = {f, {l.batch, h}};
    const ir::TensorType gates = {d, {l.batch, l.time, 4 * h}}, lengths = {i, {l.batch}}, peepholes = {f, {3, h}};
    std::vector<ir::TensorType> all = {{d, {l.batch, l.time, l.features}},
                                       {d, {4 * h, l.features}},
                                       {d, {4 * h, h}},
                                       {f, {4 * h}},
                                       {f, {4 * h}},
                                       lengths,
                                       state,
                                       cell,
                                       peepholes};
    int count = l.inputs;
    if (op == OpKind::kLstmGrad) {
      all = {steps, state, cell, {d, {4 * h, h}}, steps, gates, steps, lengths, state, cell, peepholes};
      count = GradInputs(l.inputs);
    }
    NodeDesc desc{.op = op,
                  .name = "lstm",
                  .attributes = {{"direction", std::string(direction)}},
                  .inputs = {all.begin(), all.begin() + count}};
    const auto outputs = ops::InferTypes(op, {desc.name, desc.attributes, desc.inputs});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    if (outputs.ok()) desc.outputs = *outputs;
    return desc;
  }

  static std::vector<RefTensor> Draw(const NodeDesc& desc, const Layer& l) {
    Random random(static_cast<uint64_t>(l.batch * 1000 + l.hidden));
    std::vector<RefTensor> inputs = DrawInputs(*FindOpRow(desc.op), desc, &random);
    const size_t lengths_at = desc.op == OpKind::kLstm ? 5 : 7, weights_at = desc.op == OpKind::kLstm ? 2 : 3;
    for (double& w : inputs[weights_at].data) w = RoundToDType(w * l.weight, desc.inputs[0].dtype);
    if (inputs.size() > lengths_at) {
      // All steps, none, one, most; and what counts as all and none.
      const double t = static_cast<double>(l.time), cycle[] = {t, 0, 1, std::max(0.0, t - 1), t + 3, -2, (t + 1) / 2};
      for (int64_t b = 0; b < l.batch; ++b) inputs[lengths_at].data[b] = std::floor(cycle[b % 7]);
    }
    return inputs;
  }

  static std::vector<Tensor> Run(const NodeDesc& desc, const std::vector<RefTensor>& inputs) {
    auto results = RunTested(desc, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : std::vector<Tensor>(desc.outputs.size());
  }

  // By one launch a step: with peepholes that are zeros, and what stands before them among the inputs.
  static std::vector<Tensor> RunSteps(OpKind op, Layer l, std::vector<RefTensor> inputs) {
    l.inputs = 9;
    const NodeDesc desc = Describe(op, l);
    for (size_t i = inputs.size(); i < desc.inputs.size(); ++i) {
      inputs.push_back(Filled(desc.inputs[i].shape));
      const bool lengths = desc.inputs[i].dtype == DType::kI32;
      for (double& v : inputs.back().data) v = lengths ? static_cast<double>(l.time) : 0;
    }
    return Run(desc, inputs);
  }

  static void ExpectAgrees(OpKind op, const Layer& l) {
    const NodeDesc desc = Describe(op, l);
    const std::vector<RefTensor> inputs = Draw(desc, l);
    const std::vector<Tensor> results = Run(desc, inputs), steps = RunSteps(op, l, inputs);
    const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
    const std::vector<RefTensor> bounds = ErrorBound(desc, inputs, expected, {});
    for (size_t i = 0; i < expected.size(); ++i) {
      const DType dtype = desc.outputs[i].dtype;
      const RefTensor result = FromTensor(results[i].view());
      EXPECT_EQ(Compare(result, expected[i], bounds[i], dtype), "")
          << testing::Describe(desc) << " " << std::get<1>(GetParam()) << ", result " << i;
      RefTensor twice = bounds[i];
      for (double& bound : twice.data) bound *= 2;
      EXPECT_EQ(Compare(result, FromTensor(steps[i].view()), twice, dtype), "")
          << testing::Describe(desc) << " " << std::get<1>(GetParam()) << ", result " << i << ", against steps";
    }
  }

  // The same elements finite, NaN and infinite as by one launch a step; some of them not finite where an input is
  // `value`, NaN (infinities may saturate).
  static void ExpectSameKinds(OpKind op, const Layer& l, const std::vector<RefTensor>& inputs, double value) {
    const NodeDesc desc = Describe(op, l);
    const std::vector<Tensor> results = Run(desc, inputs), steps = RunSteps(op, l, inputs);
    int64_t finite = 0, others = 0;
    for (size_t i = 0; i < desc.outputs.size(); ++i) {
      const RefTensor result = FromTensor(results[i].view()), expected = FromTensor(steps[i].view());
      for (int64_t at = 0; at < result.size(); ++at) {
        const double a = result.data[at], b = expected.data[at];
        ++(std::isfinite(b) ? finite : others);
        ASSERT_TRUE(std::isfinite(b) ? std::isfinite(a) : a == b || (std::isnan(a) && std::isnan(b)))
            << testing::Describe(desc) << ", result " << i << " element " << at << ": " << a << ", by steps " << b;
      }
    }
    EXPECT_TRUE(others > 0 || std::isinf(value)) << testing::Describe(desc);
    EXPECT_GT(finite, 0) << testing::Describe(desc);
  }
};

TEST_P(CudaLstmSequence, AgreesAtEverySizeThatItTakes) {
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad}) {
    for (int64_t hidden : {8, 16, 24, 32, 40, 64, 80, 112, 128}) ExpectAgrees(op, {5, 3, hidden});
    // One more is not taken.
    ExpectAgrees(op, {5, 2, 136});
    ExpectAgrees(op, {5, 2, 20});
  }
}

// Blocks of four samples, then of eight, with and without some left over.
TEST_P(CudaLstmSequence, AgreesForBatchesOfAnySize) {
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad}) {
    for (int64_t batch : {1, 4, 16, 17, 33}) ExpectAgrees(op, {batch, 4, 32});
    for (int64_t batch : {1, 17}) ExpectAgrees(op, {batch, 2, 128});
    // More than a large GPU has multiprocessors for.
    ExpectAgrees(op, {601, 2, 16});
    ExpectAgrees(op, {601, 1, 128});
  }
}

TEST_P(CudaLstmSequence, AgreesWithAnyOfTheOptionalInputs) {
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad}) {
    for (int inputs : {3, 5, 6, 8, 9}) {
      ExpectAgrees(op, {3, 5, 16, inputs});
      ExpectAgrees(op, {18, 2, 48, inputs});
      ExpectAgrees(op, {3, 1, 16, inputs});
    }
  }
}

TEST_P(CudaLstmSequence, AgreesOverManySteps) {
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad})
    ExpectAgrees(op, {.batch = 3, .time = 61, .hidden = 16, .weight = 0.0625});
}

// What is not finite stays so, in its sample, and in no other.
TEST_P(CudaLstmSequence, KeepsWhatIsNotFinite) {
  for (const Layer& l : {Layer{7, 4, 24}, Layer{19, 3, 16}}) {
    for (double value : {kNaN, kInf, -kInf}) {
      const std::vector<RefTensor> good = Draw(Describe(OpKind::kLstm, l), l);
      for (size_t input : {0, 6, 7}) {
        std::vector<RefTensor> inputs = good;
        // The first sample, which takes part in all steps, of the first block.
        inputs[input].data[1] = value;
        ExpectSameKinds(OpKind::kLstm, l, inputs, value);
      }
      const std::vector<RefTensor> grads = Draw(Describe(OpKind::kLstmGrad, l), l);
      for (size_t input : {0, 1, 2, 5, 6, 9}) {
        std::vector<RefTensor> inputs = grads;
        inputs[input].data[1] = value;
        ExpectSameKinds(OpKind::kLstmGrad, l, inputs, value);
      }
    }
  }
}

// Weights that are infinite make no sums of what pads a block.
TEST_P(CudaLstmSequence, KeepsWeightsThatAreNotFinite) {
  const Layer l{5, 3, 24};
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad}) {
    for (double value : {kNaN, kInf}) {
      std::vector<RefTensor> inputs = Draw(Describe(op, l), l);
      inputs[op == OpKind::kLstm ? 2 : 3].data[25] = value;
      ExpectSameKinds(op, l, inputs, value);
    }
  }
}

// Gates far beyond where they saturate.
TEST_P(CudaLstmSequence, SaturatesAsItShould) {
  const Layer l{4, 3, 16};
  const NodeDesc desc = Describe(OpKind::kLstm, l);
  for (double size : {20.0, 90.0, 3000.0, 60000.0}) {
    std::vector<RefTensor> inputs = Draw(desc, l);
    for (double& x : inputs[0].data) x = RoundToDType(x * size, desc.inputs[0].dtype);
    const std::vector<Tensor> results = Run(desc, inputs);
    const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
    const std::vector<RefTensor> bounds = ErrorBound(desc, inputs, expected, {});
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(Compare(FromTensor(results[i].view()), expected[i], bounds[i], desc.outputs[i].dtype), "")
          << testing::Describe(desc) << " times " << size << ", result " << i;
    }
  }
}

// Small gates keep their significant digits: tanh is what it is of, not a difference of ones.
TEST_P(CudaLstmSequence, KeepsSmallNumbers) {
  const Layer l{4, 3, 16};
  const NodeDesc desc = Describe(OpKind::kLstm, l);
  std::vector<RefTensor> inputs = Draw(desc, l);
  for (size_t i : {0, 3, 4, 6, 7}) {
    for (double& x : inputs[i].data) x = RoundToDType(x / 1024, desc.inputs[i].dtype);
  }
  const std::vector<Tensor> results = Run(desc, inputs);
  const std::vector<RefTensor> expected = ReferenceOp(desc, inputs, {});
  const std::vector<RefTensor> bounds = ErrorBound(desc, inputs, expected, {});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(Compare(FromTensor(results[i].view()), expected[i], bounds[i], desc.outputs[i].dtype), "")
        << testing::Describe(desc) << ", result " << i;
  }
}

TEST_P(CudaLstmSequence, RepeatsItsBits) {
  for (OpKind op : {OpKind::kLstm, OpKind::kLstmGrad}) {
    for (const Layer& l : {Layer{6, 4, 64}, Layer{18, 3, 40}}) {
      const NodeDesc desc = Describe(op, l);
      const std::vector<RefTensor> inputs = Draw(desc, l);
      const std::vector<Tensor> first = Run(desc, inputs), second = Run(desc, inputs);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(SameBits(first[i], second[i])) << testing::Describe(desc) << ", result " << i;
      }
    }
  }
}

// In blocks of four samples as in those of eight, and wherever in a block it lies.
TEST_P(CudaLstmSequence, GivesASampleTheSameBitsInAnyBatch) {
  const Layer many{18, 3, 40}, few{3, 3, 40};
  const NodeDesc desc = Describe(OpKind::kLstmGrad, many), alone = Describe(OpKind::kLstmGrad, few);
  const std::vector<RefTensor> inputs = Draw(desc, many);
  std::vector<RefTensor> last = inputs;
  for (size_t i = 0; i < last.size(); ++i) {
    if (i == 3) continue;  // the weights
    const int64_t kept = NumElements(alone.inputs[i].shape);
    last[i] = {alone.inputs[i].shape, {last[i].data.end() - kept, last[i].data.end()}};
  }
  const std::vector<Tensor> expected = Run(desc, inputs), results = Run(alone, last);
  for (size_t i = 0; i < results.size(); ++i) {
    const std::vector<double> all = FromTensor(expected[i].view()).data, own = FromTensor(results[i].view()).data;
    EXPECT_TRUE(std::equal(own.rbegin(), own.rend(), all.rbegin())) << testing::Describe(desc) << ", result " << i;
  }
}

std::string ParamName(const ::testing::TestParamInfo<std::tuple<DType, const char*>>& info) {
  return absl::StrCat(DTypeName(std::get<0>(info.param)), "_", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Layers, CudaLstmSequence,
                         ::testing::Combine(::testing::Values(DType::kF16, DType::kBF16),
                                            ::testing::Values("forward", "reverse")),
                         ParamName);

}  // namespace
}  // namespace ampd::testing
