// TF32 operands through every kernel with a product in it, against float64 references on operands rounded by the tests'
// own rule; and what 8-bit operands do with overflows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/ops/compute.h"
#include "engine/ops/op_def.h"
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

KernelTable CpuTable() {
  KernelTable table;
  RegisterCpuKernels(&table);
  return table;
}

// Others make operands of their own: their references round, inputs included, where a product reads.
std::vector<RefTensor> Rounded(const NodeDesc& desc, std::vector<RefTensor> inputs) {
  if (!ops::GetOpDef(desc.op).bilinear) return inputs;
  for (RefTensor& input : inputs) {
    for (double& v : input.data) v = RoundTf32(v);
  }
  return inputs;
}

// The gradients of recurrences are not ALLOW, but copy their forward node's attributes.
bool HasProducts(OpKind op) {
  return ops::GetOpDef(op).precision == ops::PrecisionClass::kAllow || op == OpKind::kLstmGrad ||
         op == OpKind::kGruGrad;
}

std::vector<Row> RowsOfF32() {
  std::vector<Row> rows;
  for (const Row& row : RequiredKernels()) {
    bool f32 = HasProducts(row.first);
    for (DType t : row.second.first) f32 = f32 && (t == DType::kF32 || !IsFloat(t));
    if (f32) rows.push_back(row);
  }
  return rows;
}

class Tf32Row : public ::testing::TestWithParam<Row> {};

TEST_P(Tf32Row, RoundsItsOperandsAndNothingElse) {
  const KernelTable table = CpuTable();
  for (KernelCase& c : KernelCases(GetParam().first, GetParam().second)) {
    c.desc.attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
    const std::vector<RefTensor> inputs = Rounded(c.desc, c.inputs);
    NodeDesc rounding = c.desc;
    rounding.attributes.Set(kRoundOperands, int64_t{1});
    const std::vector<RefTensor> expected = ReferenceOp(rounding, inputs, c.step);
    const std::vector<RefTensor> bounds = ErrorBound(rounding, inputs, expected, c.step);
    for (bool published : {false, true}) {
      c.desc.parameter_inputs = {false, published};
      const auto results = RunKernel(table, c.desc, c.inputs, c.step);
      ASSERT_TRUE(results.ok()) << Describe(c.desc) << ": " << results.status();
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto actual = FromTensor((*results)[i].view());
        EXPECT_EQ(Compare(actual, expected[i], bounds[i], DType::kF32), "")
            << Describe(c.desc) << ", published " << published;
      }
    }
  }
}

// An op with optional inputs or outputs has several rows.
std::string RowName(const ::testing::TestParamInfo<Row>& info) {
  std::string name(ir::OpName(info.param.first));
  for (DType t : info.param.second.first) absl::StrAppend(&name, "_", DTypeName(t));
  return absl::StrCat(name, "_to_", info.param.second.second.size());
}

INSTANTIATE_TEST_SUITE_P(Rows, Tf32Row, ::testing::ValuesIn(RowsOfF32()), RowName);

// The bound above would also pass f32 operands if it were loose: here the rounded bits decide the result.
TEST(Tf32, DropsTheBitsOfOperandsAlone) {
  NodeDesc desc{.op = OpKind::kMatmul,
                .name = "dense",
                .attributes = {{ops::kComputeAttribute, std::string(ops::kComputeTf32)}},
                .inputs = {{DType::kF32, {1, 2}}, {DType::kF32, {2, 1}}},
                .outputs = {{DType::kF32, {1, 1}}}};
  // 1 + 2^-11 is a tie and goes to 1; 1 + 3 * 2^-11 to 1 + 2^-9. Products keep 2^-18.
  const RefTensor a = {{1, 2}, {1 + 0x1p-11, 1 + 0x1p-9}};
  const RefTensor b = {{2, 1}, {1 + 0x3p-11, 1 + 0x1p-9}};
  const auto y = RunKernel(CpuTable(), desc, {a, b}, {});
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ(FromTensor((*y)[0].view()).data[0], (1 + 0x1p-9) + (1 + 0x1p-8 + 0x1p-18));
}

NodeDesc Attention(OpKind op, std::vector<Shape> inputs, const std::vector<Shape>& outputs) {
  NodeDesc desc{.op = op, .name = "attention", .attributes = {{"scale", 1.0}}};
  desc.attributes.Set(ops::kComputeAttribute, std::string(ops::kComputeTf32));
  for (Shape& shape : inputs) desc.inputs.push_back({DType::kF32, std::move(shape)});
  for (const Shape& shape : outputs) desc.outputs.push_back({DType::kF32, shape});
  return desc;
}

// One query and two keys, with scores 0 and less: weights are rounded for their product with v, their sum is not.
TEST(Tf32, RoundsTheWeightsOfAttention) {
  const Shape one = {1, 1, 1}, two = {1, 2, 1};
  const double score = -1.2890625;  // has 10 fraction bits
  const auto y = RunKernel(CpuTable(), Attention(OpKind::kAttention, {one, two, two}, {one, {1, 1, 1}}),
                           {{one, {1}}, {two, {0, score}}, {two, {0, 1}}}, {});
  ASSERT_TRUE(y.ok()) << y.status();
  const double weight = std::exp(score);
  ASSERT_GT(std::fabs(RoundTf32(weight) / weight - 1), 2e-4);
  EXPECT_NEAR(FromTensor((*y)[0].view()).data[0], RoundTf32(weight) / (1 + weight), 1e-7);
}

// The same backward, where every gradient is a single product: dv = weight dy, dk = ds q, and dq = ds k of the one key
// that is not 0. ds is made of the weight as it was.
TEST(Tf32, RoundsWeightsAndScoreGradientsOfAttention) {
  const Shape one = {1, 1, 1}, two = {1, 2, 1};
  const double score = -1.2890625, sum = 1 + std::exp(score), dy = 1.5;
  const double weights[] = {1 / sum, std::exp(score) / sum};
  const auto round_f32 = [](double v) { return RoundToDType(v, DType::kF32); };
  const auto grads =
      RunKernel(CpuTable(), Attention(OpKind::kAttentionGrad, {one, one, two, two, one, one}, {one, two, two}),
                {{one, {dy}},
                 {one, {1}},
                 {two, {0, score}},
                 {two, {0, 1}},
                 {one, {round_f32(weights[1])}},
                 {one, {round_f32(std::log(sum))}}},
                {});
  ASSERT_TRUE(grads.ok()) << grads.status();
  const double ds[] = {weights[0] * (0 - dy * weights[1]), weights[1] * (dy - dy * weights[1])};
  const std::vector<double> dq = FromTensor((*grads)[0].view()).data, dk = FromTensor((*grads)[1].view()).data,
                            dv = FromTensor((*grads)[2].view()).data;
  for (double v : {weights[0], weights[1], ds[0], ds[1]}) ASSERT_GT(std::fabs(RoundTf32(v) / v - 1), 2e-4);
  EXPECT_NEAR(dq[0], RoundTf32(ds[1]) * score, 1e-7);
  for (int i : {0, 1}) {
    EXPECT_NEAR(dk[i], RoundTf32(ds[i]), 1e-7);
    EXPECT_NEAR(dv[i], RoundTf32(weights[i]) * dy, 1e-7);
  }
}

// Two readings of one parameter, rounded and not, are two copies.
TEST(Tf32, PublishedCopiesHaveKeysOfTheirOwn) {
  const KernelTable table = CpuTable();
  const auto key = [&](ir::Attributes attributes) {
    NodeDesc desc{.op = OpKind::kMatmul,
                  .name = "dense",
                  .attributes = std::move(attributes),
                  .inputs = {{DType::kF32, {8, 64}}, {DType::kF32, {64, 64}}},
                  .outputs = {{DType::kF32, {8, 64}}},
                  .threads = 1,
                  .parameter_inputs = {false, true}};
    const auto layout = (*table.Prepare(desc))->published_layout(1);
    return layout ? layout->key : "";
  };
  EXPECT_NE(key({}), key({{ops::kComputeAttribute, std::string(ops::kComputeTf32)}}));
}

std::vector<double> Quantize(DType dtype, double scale, const std::vector<double>& x) {
  const Shape shape = {static_cast<int64_t>(x.size())};
  const NodeDesc desc{.op = OpKind::kQuantize,
                      .name = "q",
                      .attributes = {{"dtype", std::string(DTypeName(dtype))}},
                      .inputs = {{DType::kF32, shape}, {DType::kF32, {}}},
                      .outputs = {{dtype, shape}}};
  const auto y = RunKernel(CpuTable(), desc, {{shape, x}, {{}, {scale}}}, {});
  EXPECT_TRUE(y.ok()) << y.status();
  return FromTensor((*y)[0].view()).data;
}

// A stale scale saturates; what was not finite before stays so, for the step's check to find.
TEST(Quantize, SaturatesTheFiniteAndPassesTheRestOn) {
  const std::vector<double> e4m3 = Quantize(DType::kF8E4M3, 2, {1, 300, -300, 3e38, kInf, -kInf, kNaN});
  EXPECT_EQ(std::vector<double>(e4m3.begin(), e4m3.begin() + 4), (std::vector<double>{2, 448, -448, 448}));
  for (int i : {4, 5, 6}) EXPECT_TRUE(std::isnan(e4m3[i])) << i;
  const std::vector<double> e5m2 = Quantize(DType::kF8E5M2, 4, {1, 1e5, -3e38, kInf, -kInf, kNaN});
  EXPECT_EQ(std::vector<double>(e5m2.begin(), e5m2.begin() + 5), (std::vector<double>{4, 57344, -57344, kInf, -kInf}));
  EXPECT_TRUE(std::isnan(e5m2[5]));
}

struct Recorded {
  std::vector<double> history;
  double count = 0, scale = 0;
};

Recorded Record(std::vector<double> x, std::vector<double> history, double count, double scale) {
  const Shape n = {static_cast<int64_t>(x.size())}, h = {static_cast<int64_t>(history.size())};
  const NodeDesc desc{.op = OpKind::kAmaxUpdate,
                      .name = "amax",
                      .attributes = {{"dtype", std::string("e4m3fn")}},
                      .inputs = {{DType::kF32, n}, {DType::kF32, h}, {DType::kI64, {}}, {DType::kF32, {}}}};
  const auto y =
      RunKernel(CpuTable(), desc, {{n, std::move(x)}, {h, std::move(history)}, {{}, {count}}, {{}, {scale}}}, {});
  EXPECT_TRUE(y.ok()) << y.status();
  return {FromTensor((*y)[0].view()).data, FromTensor((*y)[1].view()).data[0], FromTensor((*y)[2].view()).data[0]};
}

TEST(AmaxUpdate, ScalesByTheLargestOfTheHistory) {
  const Recorded r = Record({1, -2, 0.5}, {0, 7, 3}, 4, 1);
  EXPECT_EQ(r.history, (std::vector<double>{0, 2, 3}));
  EXPECT_EQ(r.count, 5);
  EXPECT_NEAR(r.scale, 448.0 / 3, 1e-4);
}

TEST(AmaxUpdate, IgnoresWhatIsNotFinite) {
  for (double bad : {kInf, -kInf, kNaN}) {
    const Recorded r = Record({1, bad, 2}, {4, 5}, 3, 17);
    EXPECT_EQ(r.history, (std::vector<double>{4, 5}));
    EXPECT_EQ(r.count, 3);
    EXPECT_EQ(r.scale, 17);
  }
}

TEST(Quantize, FindsTheLargestMagnitudeOnAnyThread) {
  const int64_t n = 100000;
  for (int64_t at : {int64_t{0}, n / 2 + 7, n - 1}) {
    RefTensor x = Filled({n}, 0.25);
    x.data[static_cast<size_t>(at)] = -3;
    for (int threads : {1, 2, 5}) {
      const NodeDesc desc{.op = OpKind::kQuantize,
                          .name = "quantize",
                          .attributes = {{"dtype", std::string("e5m2")}, {"amax", int64_t{1}}},
                          .inputs = {{DType::kBF16, {n}}, {DType::kF32, {}}},
                          .outputs = {{DType::kF8E5M2, {n}}, {DType::kF32, {}}},
                          .threads = threads};
      const auto y = RunKernel(CpuTable(), desc, {x, {{}, {2}}}, {});
      ASSERT_TRUE(y.ok()) << y.status();
      EXPECT_EQ(FromTensor((*y)[1].view()).data[0], 3) << at << " " << threads;
      EXPECT_EQ(FromTensor((*y)[0].view()).data[static_cast<size_t>(at)], -6);
    }
  }
}

TEST(AmaxUpdate, KeepsTheScaleOfZerosAndBoundsThatOfTinyValues) {
  EXPECT_EQ(Record({0, -0.0}, {0, 0}, 0, 17).scale, 17);
  EXPECT_EQ(Record({0x1p-140}, {0, 0}, 0, 17).scale, 0x1p126);
}

TEST(Cast, SaturatesWhereAsked) {
  for (int64_t saturate : {0, 1}) {
    const NodeDesc desc{.op = OpKind::kCast,
                        .name = "cast",
                        .attributes = {{"dtype", std::string("e4m3fn")}, {"saturate", saturate}},
                        .inputs = {{DType::kF16, {3}}},
                        .outputs = {{DType::kF8E4M3, {3}}}};
    const auto y = RunKernel(CpuTable(), desc, {{{3}, {449, -1000, kInf}}}, {});
    ASSERT_TRUE(y.ok()) << y.status();
    const std::vector<double> values = FromTensor((*y)[0].view()).data;
    if (saturate) {
      EXPECT_EQ(values, (std::vector<double>{448, -448, 448}));
    } else {
      EXPECT_EQ(values[0], 448);
      EXPECT_TRUE(std::isnan(values[1]) && std::isnan(values[2]));
    }
  }
}

}  // namespace
}  // namespace ampd::testing
