// What the walk over all kernels does not try of attention, recurrences and CTC: TF32, and what CTC makes of samples
// that are wrong, hopeless or too long for shared memory.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda_backend.h"
#include "engine/ops/compute.h"
#include "tests/support/op_rows.h"
#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using Row = std::pair<OpKind, KernelTable::Signature>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

runtime::Backend& Device() {
  static runtime::Backend& backend = *[] {
    absl::StatusOr<std::unique_ptr<runtime::Backend>> made = MakeCudaBackend("");
    EXPECT_TRUE(made.ok()) << made.status();
    return made->release();
  }();
  return backend;
}

absl::StatusOr<std::vector<Tensor>> RunOnDevice(const NodeDesc& desc, const std::vector<RefTensor>& inputs) {
  return RunKernel(Device().kernels(), desc, inputs, {}, {}, Device().memory());
}

bool MakesOperands(OpKind op) {
  for (OpKind kind : {OpKind::kAttention, OpKind::kAttentionGrad, OpKind::kAttentionMaskGrad, OpKind::kSelfAttention,
                      OpKind::kSelfAttentionGrad, OpKind::kLstm, OpKind::kLstmGrad, OpKind::kGru, OpKind::kGruGrad}) {
    if (op == kind) return true;
  }
  return false;
}

std::vector<Row> RowsOfF32() {
  std::vector<Row> rows;
  for (const Row& row : RequiredKernels()) {
    bool f32 = MakesOperands(row.first);
    for (DType t : row.second.first) f32 = f32 && (t == DType::kF32 || !IsFloat(t));
    if (f32) rows.push_back(row);
  }
  return rows;
}

class CudaTf32Row : public ::testing::TestWithParam<Row> {};

TEST_P(CudaTf32Row, RoundsItsOperandsAndNothingElse) {
  for (KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    c.desc.attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
    NodeDesc rounding = c.desc;
    rounding.attributes.Set(kRoundOperands, int64_t{1});
    const std::vector<RefTensor> expected = ReferenceOp(rounding, c.inputs, c.step);
    const std::vector<RefTensor> bounds = ErrorBound(rounding, c.inputs, expected, c.step);
    const auto results = RunOnDevice(c.desc, c.inputs);
    ASSERT_TRUE(results.ok()) << Describe(c.desc) << ": " << results.status();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(Compare(FromTensor((*results)[i].view()), expected[i], bounds[i], DType::kF32), "") << Describe(c.desc);
    }
  }
}

std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  return absl::StrCat(name, "_to_", info.param.second.second.size());
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaTf32Row, ::testing::ValuesIn(RowsOfF32()), RowName);

// A batch for ctc_loss; losses and gradients as the CPU's, whose recursion is in logarithms.
struct CtcBatch {
  int64_t time = 0, classes = 0, labels = 0;
  std::vector<double> logits, targets, times, lengths;

  // Another sample: logits drawn from [-spread, spread).
  void Add(Random* random, double spread, std::vector<double> sample_labels, double sample_time, double length) {
    for (int64_t i = 0; i < time * classes; ++i) {
      logits.push_back(RoundToDType(random->Uniform(-spread, spread), DType::kF32));
    }
    sample_labels.resize(labels, 1);
    targets.insert(targets.end(), sample_labels.begin(), sample_labels.end());
    times.push_back(sample_time);
    lengths.push_back(length);
  }
  double& Logit(int64_t sample, int64_t t, int64_t c) { return logits[(sample * time + t) * classes + c]; }
  int64_t samples() const { return static_cast<int64_t>(times.size()); }
};

class CudaCtc : public ::testing::TestWithParam<bool> {
 protected:
  // 0 where both are NaN or the same infinity.
  static double Difference(double a, double b) {
    if ((std::isnan(a) && std::isnan(b)) || a == b) return 0;
    return std::isnan(a) || std::isnan(b) ? kInf : std::fabs(a - b) / std::max(1.0, std::fabs(b));
  }

  void ExpectAsOnCpu(const CtcBatch& b) {
    const int64_t n = b.samples();
    const ir::Attributes attributes = {{"blank", int64_t{0}}, {"zero_infinity", int64_t{GetParam()}}};
    const RefTensor z = {{n, b.time, b.classes}, b.logits}, labels = {{n, b.labels}, b.targets};
    const std::vector<RefTensor> tail = {z, labels, {{n}, b.times}, {{n}, b.lengths}};
    std::vector<RefTensor> with_dloss = {{{n}, std::vector<double>(n, 0.75)}};
    with_dloss.insert(with_dloss.end(), tail.begin(), tail.end());
    Expect({.op = OpKind::kCtcLoss, .name = "ctc", .attributes = attributes}, tail, {n});
    Expect({.op = OpKind::kCtcLossGrad, .name = "ctc", .attributes = attributes}, with_dloss, z.shape);
  }

 private:
  void Expect(NodeDesc desc, const std::vector<RefTensor>& inputs, const Shape& output) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      desc.inputs.push_back({i + 3 < inputs.size() ? DType::kF32 : DType::kI32, inputs[i].shape});
    }
    desc.outputs = {{DType::kF32, output}};
    KernelTable cpu;
    RegisterCpuKernels(&cpu);
    const auto expected = RunKernel(cpu, desc, inputs, {}), actual = RunOnDevice(desc, inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(actual.ok()) << actual.status();
    const RefTensor e = FromTensor((*expected)[0].view()), a = FromTensor((*actual)[0].view());
    for (int64_t i = 0; i < e.size(); ++i) {
      ASSERT_LT(Difference(a.data[i], e.data[i]), 2e-6)
          << Describe(desc) << " element " << i << ": " << a.data[i] << ", on the CPU " << e.data[i];
    }
  }
};

TEST_P(CudaCtc, AnswersWrongSamplesAsTheCpuDoes) {
  Random random(1);
  CtcBatch b{.time = 6, .classes = 4, .labels = 3};
  b.Add(&random, 2, {1, 2, 3}, 6, 3);
  b.Add(&random, 2, {1, 4, 3}, 6, 3);   // no class
  b.Add(&random, 2, {1, -1, 3}, 6, 2);  // no class
  b.Add(&random, 2, {1, 0, 3}, 6, 2);   // blank
  b.Add(&random, 2, {1, 2, 9}, 6, 2);   // what is past the length does not matter
  b.Add(&random, 2, {1, 2, 3}, 7, 3);
  b.Add(&random, 2, {1, 2, 3}, -1, 3);
  b.Add(&random, 2, {1, 2, 3}, 6, 4);
  b.Add(&random, 2, {1, 2, 3}, 6, -1);
  b.Add(&random, 2, {1, 2, 3}, 0, 3);
  b.Add(&random, 2, {1, 2, 3}, 0, 0);
  b.Add(&random, 2, {1, 2, 3}, 5, 0);
  b.Add(&random, 2, {1, 1, 1}, 4, 3);  // three of the same need five steps
  b.Add(&random, 2, {1, 1, 1}, 5, 3);
  ExpectAsOnCpu(b);
}

TEST_P(CudaCtc, AnswersLogitsThatAreNotFiniteAsTheCpuDoes) {
  Random random(2);
  CtcBatch b{.time = 5, .classes = 3, .labels = 2};
  for (int i = 0; i < 6; ++i) b.Add(&random, 2, {1, 2}, 4, 2);
  b.Logit(0, 1, 2) = kNaN;
  b.Logit(1, 2, 0) = kInf;
  b.Logit(2, 1, 0) = -kInf;
  for (int64_t c = 0; c < 3; ++c) b.Logit(3, 0, c) = -kInf;
  for (int64_t t = 0; t < 5; ++t) b.Logit(4, t, 2) = -kInf;  // no path is left
  b.Logit(5, 4, 1) = kNaN;                                   // past its time
  ExpectAsOnCpu(b);
}

// Paths of a probability far below the smallest double.
TEST_P(CudaCtc, UnderflowsNowhere) {
  Random random(3);
  CtcBatch b{.time = 40, .classes = 5, .labels = 12};
  for (double spread : {100.0, 3000.0, 65504.0}) b.Add(&random, spread, {1, 2, 2, 3, 4, 1, 3, 3, 2, 1, 4, 2}, 40, 12);
  ExpectAsOnCpu(b);
}

// More states than threads in a block, as many as are kept in shared memory, and more than there is without asking.
TEST_P(CudaCtc, WalksLongLabels) {
  Random random(4);
  for (int64_t labels : {520, 751, 767}) {
    CtcBatch b{.time = labels + labels / 2, .classes = 4, .labels = labels};
    std::vector<double> sample;
    for (int64_t i = 0; i < labels; ++i) sample.push_back(static_cast<double>(1 + random.Below(3)));
    b.Add(&random, 1, sample, static_cast<double>(b.time), static_cast<double>(labels));
    ExpectAsOnCpu(b);
  }
}

INSTANTIATE_TEST_SUITE_P(ZeroInfinity, CudaCtc, ::testing::Bool());

}  // namespace
}  // namespace ampd::testing
