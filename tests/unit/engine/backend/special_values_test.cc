// Infinities, NaN and overflow through the kernels of any backend, as IEEE 754 and docs/ops.md say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/engine/backend/kernel_cases.h"
#include "tests/unit/engine/backend/tested_backend.h"

namespace ampd::testing {
namespace {

using ir::OpKind;
using runtime::NodeDesc;
using Ints = std::vector<int64_t>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class SpecialValues : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (TheBackend() == nullptr) GTEST_SKIP() << "no device here";
  }

  // The first result of `desc`, whose dtypes are set here.
  std::vector<double> Run(NodeDesc desc, const std::vector<RefTensor>& inputs, const Shape& output) {
    desc.name = "special";
    if (desc.inputs.empty()) {
      for (const RefTensor& t : inputs) desc.inputs.push_back({GetParam(), t.shape});
    }
    desc.outputs.insert(desc.outputs.begin(), {GetParam(), output});
    const auto results = RunTested(desc, inputs);
    EXPECT_TRUE(results.ok()) << results.status();
    return FromTensor((*results)[0].view()).data;
  }

  // Column 1 of a product is infinite; row 0 of the other operand is zero there.
  void ExpectInfTimesZero(NodeDesc desc, RefTensor a, RefTensor b, const Shape& y) {
    const std::vector<double> result = Run(std::move(desc), {std::move(a), std::move(b)}, y);
    EXPECT_TRUE(std::isnan(result[0])) << result[0];
    EXPECT_EQ(result[1], kInf);
  }
};

MATCHER(IsNaN, "") { return std::isnan(arg); }

TEST_P(SpecialValues, ReluKeepsNaNAndInfinity) {
  const std::vector<double> y = Run({.op = OpKind::kRelu}, {{{5}, {kNaN, kInf, -kInf, -1, 2}}}, {5});
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(std::vector<double>(y.begin() + 1, y.end()), (std::vector<double>{kInf, 0, 0, 2}));
}

TEST_P(SpecialValues, ReluGradPassesWhereTheOutputIsNaN) {
  const std::vector<double> dx =
      Run({.op = OpKind::kReluGrad}, {{{4}, {5, kInf, kNaN, 7}}, {{4}, {kNaN, 1, 1, 0}}}, {4});
  EXPECT_EQ(dx[0], 5);
  EXPECT_EQ(dx[1], kInf);
  EXPECT_TRUE(std::isnan(dx[2]));
  EXPECT_EQ(dx[3], 0);
}

TEST_P(SpecialValues, MaxPoolPropagatesNaNWhereverItStands) {
  const ir::Attributes pool = {{"size", Ints{1, 3}}, {"strides", Ints{1, 3}}, {"pads", Ints{0, 0, 0, 0}}};
  const RefTensor x = {{1, 1, 12, 1}, {kNaN, 1, 2, 1, kNaN, 2, 1, 2, kNaN, -kInf, -kInf, -kInf}};
  const std::vector<double> y = Run({.op = OpKind::kMaxPool2d, .attributes = pool}, {x}, {1, 1, 4, 1});
  EXPECT_THAT(std::vector<double>(y.begin(), y.begin() + 3), ::testing::Each(IsNaN()));
  EXPECT_EQ(y[3], -kInf);

  const std::vector<double> dx = Run({.op = OpKind::kMaxPool2dGrad, .attributes = pool},
                                     {{{1, 1, 4, 1}, {3, 5, 7, 9}}, x, {{1, 1, 4, 1}, y}}, x.shape);
  EXPECT_EQ(dx, (std::vector<double>{3, 0, 0, 0, 5, 0, 0, 0, 7, 9, 0, 0}));
}

TEST_P(SpecialValues, MatmulMakesNaNOfInfTimesZero) {
  for (int64_t transpose : {0, 1}) {
    // a is [2, 2] with the infinity in b's row 1; b [2, 1] or its transpose.
    const RefTensor b = transpose ? RefTensor{{1, 2}, {1, kInf}} : RefTensor{{2, 1}, {1, kInf}};
    ExpectInfTimesZero({.op = OpKind::kMatmul, .attributes = {{"transpose_b", transpose}}}, {{2, 2}, {1, 0, 1, 2}}, b,
                       {2, 1});
  }
}

TEST_P(SpecialValues, ConvolutionMakesNaNOfInfTimesZero) {
  const ir::Attributes window = {{"strides", Ints{1, 1}}, {"pads", Ints{0, 0, 0, 0}}};
  ExpectInfTimesZero({.op = OpKind::kConv2d, .attributes = window}, {{1, 1, 2, 2}, {1, 0, 1, 2}},
                     {{1, 1, 1, 2}, {1, kInf}}, {1, 1, 2, 1});
  ir::Attributes grad = window;
  grad.Set("input_shape", Ints{1, 1, 2, 1});
  ExpectInfTimesZero({.op = OpKind::kConv2dGradInput, .attributes = grad}, {{1, 1, 2, 2}, {1, 0, 1, 2}},
                     {{2, 1, 1, 1}, {1, kInf}}, {1, 1, 2, 1});
  ir::Attributes filter = window;
  filter.Set("filter_shape", Ints{2, 1, 1, 1});
  // dy [.., 2 filters] of two pixels, x infinite at the second.
  ExpectInfTimesZero({.op = OpKind::kConv2dGradFilter, .attributes = filter}, {{1, 1, 2, 2}, {1, 1, 0, 2}},
                     {{1, 1, 2, 1}, {1, kInf}}, {2, 1, 1, 1});
}

// One bad sample spoils its own outputs and no other's.
TEST_P(SpecialValues, ConvolutionKeepsSamplesApart) {
  const ir::Attributes window = {{"strides", Ints{1, 1}}, {"pads", Ints{1, 1, 1, 1}}};
  RefTensor x = Filled({2, 6, 6, 16}, 1);
  x.data[7] = kNaN;
  const std::vector<double> y =
      Run({.op = OpKind::kConv2d, .attributes = window}, {x, Filled({16, 3, 3, 16}, 0.5)}, {2, 6, 6, 16});
  EXPECT_TRUE(std::isnan(y[0]));
  for (size_t i = y.size() / 2; i < y.size(); ++i) ASSERT_TRUE(std::isfinite(y[i])) << i;
}

TEST_P(SpecialValues, LargeSumsOverflowOnlyWhenStored) {
  // 4 * 30000 - 4 * 30000 + 7: the partial sums pass fp16's range, the result does not.
  const RefTensor a = {{1, 3}, {30000, -30000, 1}};
  const RefTensor b = {{3, 2}, {4, 4, 4, 0, 7, 7}};
  const std::vector<double> y = Run({.op = OpKind::kMatmul}, {a, b}, {1, 2});
  EXPECT_NEAR(y[0], 7, 512 * UnitRoundoff(GetParam()));
  if (GetParam() == DType::kF16) {
    EXPECT_EQ(y[1], kInf);
  }
}

TEST_P(SpecialValues, DropoutKeepsOrZeroesInfinity) {
  const std::vector<double> y = Run({.op = OpKind::kDropout, .attributes = {{"rate", 0.5}, {"stream", int64_t{1}}}},
                                    {Filled({1, 64}, kInf)}, {1, 64});
  int64_t kept = 0;
  for (double v : y) {
    EXPECT_TRUE(v == kInf || v == 0) << v;
    kept += v == kInf;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 64);
}

TEST_P(SpecialValues, BatchNormOfAConstantChannelIsItsBias) {
  const DType t = GetParam(), f = DType::kF32;
  const NodeDesc desc{.op = OpKind::kBatchNorm,
                      .attributes = {{"epsilon", 1e-5}},
                      .inputs = {{t, {6, 1}}, {f, {1}}, {f, {1}}},
                      .outputs = {{f, {1}}, {f, {1}}}};
  EXPECT_THAT(Run(desc, {Filled({6, 1}, 30000), {{1}, {3}}, {{1}, {0.5}}}, {6, 1}), ::testing::Each(0.5));
}

// The relu's gate stands where the norm, rounded as it is stored, is not above 0; NaN is no reason to close it.
TEST_P(SpecialValues, BatchNormsGateLooksAtTheRoundedNorm) {
  const DType t = GetParam(), f = DType::kF32;
  const NodeDesc desc{.op = OpKind::kBatchNormGrad,
                      .attributes = {{"epsilon", 1e-5}},
                      .inputs = {{t, {2, 1}}, {t, {2, 1}}, {f, {1}}, {f, {1}}, {f, {1}}, {f, {1}}, {f, {1}}},
                      .outputs = {{f, {1}}, {f, {1}}}};
  const RefTensor dy = {{2, 1}, {3, 4}}, x = {{2, 1}, {0, 0}}, one = {{1}, {1}}, zero = {{1}, {0}};
  const auto is_open = [&](double norm) {
    return Run(desc, {dy, x, one, zero, one, one, {{1}, {norm}}}, {2, 1})[1] > 0;
  };
  EXPECT_TRUE(is_open(1));
  EXPECT_TRUE(is_open(kNaN));
  EXPECT_FALSE(is_open(0));
  EXPECT_FALSE(is_open(-1));
  EXPECT_EQ(is_open(1e-9), t != DType::kF16);
}

TEST_P(SpecialValues, BatchNormOfANonFiniteChannelIsNaNThereOnly) {
  const DType t = GetParam(), f = DType::kF32;
  const NodeDesc desc{.op = OpKind::kBatchNorm,
                      .attributes = {{"epsilon", 1e-5}},
                      .inputs = {{t, {3, 2}}, {f, {2}}, {f, {2}}},
                      .outputs = {{f, {2}}, {f, {2}}}};
  const std::vector<double> y = Run(desc, {{{3, 2}, {kInf, 1, 2, 2, 3, 3}}, Filled({2}, 1), Filled({2}, 0)}, {3, 2});
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % 2 == 0) << i;
}

TEST_P(SpecialValues, AttentionKeepsNaNAndInfinityToTheirRows) {
  NodeDesc desc{.op = OpKind::kAttention, .attributes = {{"heads", int64_t{1}}, {"scale", 1.0}}};
  desc.inputs.assign(3, {GetParam(), {1, 3, 1}});
  desc.outputs = {{DType::kF32, {1, 1, 3}}};
  const RefTensor q{{1, 3, 1}, {1, kNaN, kInf}}, k{{1, 3, 1}, {1, 2, 3}}, v{{1, 3, 1}, {4, 4, 4}};
  const std::vector<double> y = Run(desc, {q, k, v}, {1, 3, 1});
  EXPECT_FLOAT_EQ(static_cast<float>(y[0]), 4);
  EXPECT_TRUE(std::isnan(y[1])) << y[1];
  EXPECT_TRUE(std::isnan(y[2])) << y[2];
}

// Memory grows with the sequence, not with its square, once that is more than a library may take of the device.
TEST_P(SpecialValues, AttentionNeverHoldsAllItsScores) {
  const auto workspace = [&](int64_t length) {
    const Shape shape = {1, length, 64};
    NodeDesc desc{.op = OpKind::kAttentionGrad, .name = "long", .attributes = {{"heads", int64_t{1}}}};
    desc.inputs.assign(5, {GetParam(), shape});
    desc.inputs.push_back({DType::kF32, {1, 1, length}});
    desc.outputs.assign(3, {GetParam(), shape});
    const auto kernel = TheBackend()->kernels().Prepare(desc);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    return (*kernel)->workspace_bytes();
  };
  EXPECT_LT(workspace(1 << 18), 64 * workspace(1 << 12) + (1 << 20));
}

INSTANTIATE_TEST_SUITE_P(DTypes, SpecialValues, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

class SpecialLosses : public SpecialValues {};

TEST_P(SpecialLosses, NonFiniteLogitsGiveNaN) {
  const DType f = DType::kF32;
  const RefTensor logits = {{5, 2}, {kInf, 0, -kInf, 0, kNaN, 0, 60000, 0, kNaN, 0}};
  const RefTensor labels = {{5}, {0, 1, 1, 0, -1}};
  for (DType t : {f, DType::kF16, DType::kBF16}) {
    const std::vector<double> losses =
        Run({.op = OpKind::kSoftmaxCrossEntropy, .inputs = {{t, {5, 2}}, {DType::kI32, {5}}}, .outputs = {{f, {5}}}},
            {logits, labels}, {5});
    EXPECT_THAT(std::vector<double>(losses.begin(), losses.begin() + 3), ::testing::Each(IsNaN()));
    EXPECT_EQ(losses[3], 0);
    EXPECT_EQ(losses[4], 0) << "a row without a label";
  }
  const std::vector<double> hits =
      Run({.op = OpKind::kArgmaxEqual, .inputs = {{f, {5, 2}}, {DType::kI32, {5}}}}, {logits, labels}, {5});
  EXPECT_EQ(hits, (std::vector<double>{1, 1, 0, 1, 0}));
}

TEST_P(SpecialLosses, NonFinitePredictionsShow) {
  const RefTensor prediction = {{4, 1}, {kNaN, kInf, -kInf, 0}}, target = {{4, 1}, {1, 1, 0, 1}};
  for (OpKind op : {OpKind::kSquaredError, OpKind::kL1Loss, OpKind::kSmoothL1Loss, OpKind::kHingeLoss,
                    OpKind::kSigmoidCrossEntropy}) {
    const std::vector<double> losses = Run({.op = op}, {prediction, target}, {4});
    EXPECT_TRUE(std::isnan(losses[0])) << ir::OpName(op);
    EXPECT_TRUE(std::isfinite(losses[3])) << ir::OpName(op);
  }
  // The far sides of sigmoid and hinge cost nothing.
  const RefTensor far = {{2, 1}, {1e30, -1e30}}, sides = {{2, 1}, {1, 0}};
  EXPECT_THAT(Run({.op = OpKind::kSigmoidCrossEntropy}, {far, sides}, {2}), ::testing::Each(0));
  EXPECT_THAT(Run({.op = OpKind::kHingeLoss}, {far, sides}, {2}), ::testing::Each(0));
}

TEST_P(SpecialLosses, CtcRefusesWhatCannotBeRead) {
  const DType f = DType::kF32, i = DType::kI32;
  const NodeDesc desc{.op = OpKind::kCtcLoss, .inputs = {{f, {7, 2, 3}}, {i, {7, 2}}, {i, {7}}, {i, {7}}}};
  RefTensor logits = Filled({7, 2, 3});
  logits.data[5 * 6] = kNaN;
  logits.data[6 * 6 + 2] = -kInf;
  // A time too long, a label that is blank, one past the last class, labels too many for the tensor, labels that do not
  // fit into the time, a NaN, and a class of no probability.
  const RefTensor labels = {{7, 2}, {1, 1, 0, 1, 3, 1, 1, 2, 1, 1, 1, 2, 1, 1}};
  const RefTensor times = {{7}, {3, 2, 2, 2, 2, 2, 2}}, lengths = {{7}, {1, 1, 1, 3, 2, 1, 1}};
  const std::vector<double> losses = Run(desc, {logits, labels, times, lengths}, {7});
  for (int n : {0, 1, 2, 3, 5}) EXPECT_TRUE(std::isnan(losses[n])) << n;
  EXPECT_EQ(losses[4], kInf);
  // Two steps, the first over two classes: paths 11, 1-, -1 of (1/2)(1/3) each.
  EXPECT_NEAR(losses[6], -std::log(3 * (0.5 / 3)), 1e-6);
}

// Priors: two beside each other, of a half of the image each, and one far outside.
const RefTensor kThreePriors = {{3, 4}, {0.25, 0.5, 0.5, 1, 0.75, 0.5, 0.5, 1, 9, 9, 1, 1}};

class SpecialBoxes : public SpecialLosses {
 protected:
  // The class of each prior for one target.
  std::vector<double> Matched(const std::vector<double>& targets) {
    const auto numbers = static_cast<int64_t>(targets.size());
    const NodeDesc desc{.op = OpKind::kMultiboxMatch,
                        .name = "special",
                        .attributes = {{"classes", int64_t{4}}},
                        .inputs = {{DType::kF32, {3, 4}}, {DType::kF32, {1, numbers}}},
                        .outputs = {{DType::kI32, {1, 3}}, {DType::kF32, {1, 3, 4}}}};
    const auto results = RunTested(desc, {kThreePriors, {{1, numbers}, targets}});
    EXPECT_TRUE(results.ok()) << results.status();
    offsets_ = FromTensor((*results)[1].view()).data;
    return FromTensor((*results)[0].view()).data;
  }

  std::vector<double> offsets_;
};

TEST_P(SpecialBoxes, WhatIsNoBoxCountsForNothing) {
  const std::vector<double> none = {0, 0, 0}, wrong = {-1, -1, -1};
  EXPECT_EQ(Matched({-1, 0, 0, 1, 1}), none);
  EXPECT_EQ(Matched({-2.5, kNaN, 0, 1, 1}), none) << "numbers of no box";
  EXPECT_EQ(Matched({1, 0.5, 0, 0.5, 1}), none) << "no width";
  EXPECT_EQ(Matched({1, 0, 1, 0.5, 0}), none) << "upside down";
  EXPECT_EQ(Matched({1, -9, -9, -8, -8}), none) << "far from every prior";
  EXPECT_EQ(Matched({4, 0, 0, 1, 1}), wrong);
  EXPECT_EQ(Matched({0.5, 0, 0, 1, 1}), wrong);
  EXPECT_EQ(Matched({kNaN, 0, 0, 1, 1}), wrong);
  EXPECT_EQ(Matched({kInf, 0, 0, 1, 1}), wrong);
  for (int i = 1; i < 5; ++i) {
    for (double bad : {kNaN, kInf, -kInf}) {
      std::vector<double> targets = {2, 0, 0, 1, 1};
      targets[i] = bad;
      EXPECT_EQ(Matched(targets), wrong) << i << " " << bad;
    }
  }
}

// Of equal overlaps the first box and the first prior win; who loses a prior has the next.
TEST_P(SpecialBoxes, ContentionAndTiesAreSettledByOrder) {
  EXPECT_EQ(Matched({2, 0, 0, 1, 1}), (std::vector<double>{3, 0, 0})) << "half of each: not above the threshold";
  EXPECT_EQ(Matched({2, 0, 0, 1, 1, 3, 0, 0, 1, 1}), (std::vector<double>{3, 4, 0}));
  // The second overlaps the left prior whole, so that the first must go to the right one.
  EXPECT_EQ(Matched({0, 0, 0, 1, 1, 3, 0, 0, 0.5, 1}), (std::vector<double>{4, 1, 0}));
  EXPECT_EQ(offsets_, (std::vector<double>{0, 0, 0, 0, -5, 0, offsets_[6], 0, 0, 0, 0, 0}));
  EXPECT_NEAR(offsets_[6], std::log(2.0) / 0.2, 1e-6);
  // More boxes than overlapping priors.
  EXPECT_EQ(Matched({0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 2, 0, 0, 1, 1}), (std::vector<double>{1, 2, 0}));
}

TEST_P(SpecialBoxes, MiningFindsNaNFirstAndBreaksTiesByOrder) {
  // One matched prior, then four others of which one counts.
  const auto shares = [&](const std::vector<double>& background) {
    NodeDesc desc{.op = OpKind::kMultiboxLoss,
                  .name = "special",
                  .attributes = {{"negative_ratio", 1.0}},
                  .inputs = {{DType::kF32, {1, 5, 6}}, {DType::kI32, {1, 5}}, {DType::kF32, {1, 5, 4}}},
                  .outputs = {{DType::kF32, {1}}, {DType::kF32, {1, 5}}}};
    RefTensor z = Filled({1, 5, 6});
    for (int p = 0; p < 4; ++p) z.data[(p + 1) * 6 + 4] = background[p];
    const auto results = RunTested(desc, {z, {{1, 5}, {1, 0, 0, 0, 0}}, Filled({1, 5, 4})});
    EXPECT_TRUE(results.ok()) << results.status();
    offsets_ = FromTensor((*results)[0].view()).data;
    return FromTensor((*results)[1].view()).data;
  };
  EXPECT_EQ(shares({0, 0, 0, 0}), (std::vector<double>{1, 1, 0, 0, 0}));
  EXPECT_NEAR(offsets_[0], 2 * std::log(2.0), 1e-6);
  EXPECT_EQ(shares({2, -1, 3, -1}), (std::vector<double>{1, 0, 1, 0, 0}));
  EXPECT_EQ(shares({900, 900, 900, 900}), (std::vector<double>{1, 1, 0, 0, 0})) << "no loss at all";
  EXPECT_EQ(shares({0, -kInf, -kInf, 0}), (std::vector<double>{1, 0, 1, 0, 0}));
  EXPECT_EQ(offsets_[0], kInf);
  EXPECT_EQ(shares({0, -kInf, 0, kNaN}), (std::vector<double>{1, 0, 0, 0, 1}));
  EXPECT_TRUE(std::isnan(offsets_[0]));
  EXPECT_EQ(shares({0, 0, kInf, 0}), (std::vector<double>{1, 0, 0, 1, 0})) << "whose softmax is NaN";
}

// Classes outside the predictions' make loss and gradient NaN; a sample without boxes has neither.
TEST_P(SpecialBoxes, WrongTargetsShow) {
  NodeDesc desc{.op = OpKind::kMultiboxLoss,
                .name = "special",
                .inputs = {{DType::kF32, {4, 2, 6}}, {DType::kI32, {4, 2}}, {DType::kF32, {4, 2, 4}}},
                .outputs = {{DType::kF32, {4}}, {DType::kF32, {4, 2}}}};
  const RefTensor z = Filled({4, 2, 6}), classes = {{4, 2}, {1, -1, 0, 2, 0, 0, 0, 1}}, offsets = Filled({4, 2, 4});
  const auto results = RunTested(desc, {z, classes, offsets});
  ASSERT_TRUE(results.ok()) << results.status();
  const std::vector<double> losses = FromTensor((*results)[0].view()).data;
  EXPECT_TRUE(std::isnan(losses[0]) && std::isnan(losses[1]));
  EXPECT_EQ(losses[2], 0);
  EXPECT_NEAR(losses[3], 2 * std::log(2.0), 1e-6);
  const std::vector<double> dz =
      Run({.op = OpKind::kMultiboxLossGrad,
           .inputs = {{DType::kF32, {4}}, desc.inputs[0], desc.inputs[1], desc.inputs[2], {DType::kF32, {4, 2}}}},
          {{{4}, {1, 1, kInf, 1}}, z, classes, offsets, FromTensor((*results)[1].view())}, {4, 2, 6});
  for (int i = 0; i < 24; ++i) EXPECT_TRUE(std::isnan(dz[i])) << i;
  for (int i = 24; i < 36; ++i) EXPECT_EQ(dz[i], 0) << i;
  EXPECT_EQ(std::vector<double>(dz.begin() + 40, dz.end()), (std::vector<double>{-0.5, 0.5, 0, 0, 0, 0, 0.5, -0.5}));
}

INSTANTIATE_TEST_SUITE_P(F32, SpecialBoxes, ::testing::Values(DType::kF32));

// The second result, the sum of whose elements is what the mean divides by.
TEST_P(SpecialLosses, NothingCountedIsNoLoss) {
  const RefTensor zero = {{3}, {0, 0, 0}};
  EXPECT_THAT(Run({.op = OpKind::kNormalizedSum}, {zero, zero}, {}), ::testing::ElementsAre(0));
  EXPECT_THAT(Run({.op = OpKind::kNormalizedSum}, {{{3}, {0, kNaN, 0}}, zero}, {}), ::testing::ElementsAre(IsNaN()));
}

INSTANTIATE_TEST_SUITE_P(F32, SpecialLosses, ::testing::Values(DType::kF32));

}  // namespace
}  // namespace ampd::testing
