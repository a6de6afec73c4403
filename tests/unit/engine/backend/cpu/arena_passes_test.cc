// The backend's passes over flat arenas.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/optim/update_scalars.h"
#include "tests/support/ref_tensor.h"

namespace ampd {
namespace {

using optim::OptimizerConfig;
using optim::OptimizerKind;
using runtime::ArenaSlot;
using runtime::GradientCheck;
using runtime::UpdateArgs;
using runtime::UpdateRange;
using testing::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomFloats(Random* random, int64_t n, double low = -1, double high = 1) {
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random->Uniform(low, high));
  return values;
}

class CheckGradients : public ::testing::Test {
 protected:
  GradientCheck Run(const std::vector<float>& gradients, const std::vector<ArenaSlot>& slots, float factor = 1,
                    int threads = 2) {
    GradientCheck check;
    EXPECT_TRUE(MakeCpuBackend(threads)->CheckGradients(gradients.data(), slots, factor, &check).ok());
    return check;
  }
};

TEST_F(CheckGradients, SumsSquaresAndCountsZeros) {
  Random random(1);
  const std::vector<ArenaSlot> slots = {{200000, 1}, {0, 100001}, {100001, 17}, {150000, 40000}};
  std::vector<float> gradients = RandomFloats(&random, 200001);
  for (int64_t i : {0, 5, 100000, 150001}) gradients[i] = i % 2 == 0 ? 0.0f : -0.0f;
  gradients[120000] = kNaN;  // between slots
  double expected = 0;
  for (const ArenaSlot& slot : slots) {
    for (int64_t i = 0; i < slot.size; ++i) expected += std::pow(gradients[slot.offset + i] * 0.125, 2);
  }
  const GradientCheck check = Run(gradients, slots, 0.125f);
  EXPECT_TRUE(check.finite);
  EXPECT_EQ(check.first_bad_slot, -1);
  EXPECT_EQ(check.zeros, 4);
  EXPECT_NEAR(check.sum_of_squares, expected, expected * 1e-12);
  EXPECT_EQ(check.sum_of_squares, Run(gradients, slots, 0.125f, 1).sum_of_squares) << "on one thread";
}

TEST_F(CheckGradients, SquaresBeyondFloatStayFinite) {
  const GradientCheck check = Run(std::vector<float>(3, 1e30f), {{0, 3}});
  EXPECT_TRUE(check.finite);
  EXPECT_NEAR(check.sum_of_squares, 3e60, 1e54);
}

TEST_F(CheckGradients, NamesTheFirstBadSlotInTheOrderGiven) {
  std::vector<float> gradients(100000, 1.0f);
  const std::vector<ArenaSlot> slots = {{60000, 40000}, {0, 60000}};
  gradients[10] = kNaN;
  EXPECT_EQ(Run(gradients, slots).first_bad_slot, 1);
  EXPECT_TRUE(Run(gradients, slots).first_bad_is_nan);
  gradients[99999] = -kInf;
  EXPECT_EQ(Run(gradients, slots).first_bad_slot, 0);
  EXPECT_FALSE(Run(gradients, slots).first_bad_is_nan);
  gradients[60001] = kNaN;
  EXPECT_TRUE(Run(gradients, slots).first_bad_is_nan) << "the NaN stands first";
  EXPECT_FALSE(Run(gradients, slots).finite);
}

struct Rule {
  const char* name;
  OptimizerConfig config;
};

class Update : public ::testing::TestWithParam<Rule> {};

// One step in float64, from the papers' formulas as torch.optim has them. Each moment is where moments() puts it.
void UpdateReference(const OptimizerConfig& c, int64_t t, double lr, double g, double* w, double* m) {
  if (c.kind == OptimizerKind::kAdamW) *w *= 1 - lr * c.weight_decay;
  if (c.kind != OptimizerKind::kAdamW) g += c.weight_decay * *w;
  switch (c.kind) {
    case OptimizerKind::kSgd:
      if (c.momentum != 0) {
        m[0] = t == 1 ? g : c.momentum * m[0] + (1.0 - c.dampening) * g;
        g = c.nesterov ? g + c.momentum * m[0] : m[0];
      }
      *w -= lr * g;
      return;
    case OptimizerKind::kRmsProp: {
      double* mean = c.centered ? m + 1 : nullptr;
      double* buffer = c.centered ? m + 2 : m + 1;
      m[0] = c.smoothing * m[0] + (1.0 - c.smoothing) * g * g;
      if (mean != nullptr) *mean = c.smoothing * *mean + (1.0 - c.smoothing) * g;
      g /= std::sqrt(m[0] - (mean != nullptr ? *mean * *mean : 0)) + c.epsilon;
      if (c.momentum != 0) g = *buffer = c.momentum * *buffer + g;
      *w -= lr * g;
      return;
    }
    case OptimizerKind::kAdagrad:
      m[0] += g * g;
      *w -= lr / (1 + static_cast<double>(t - 1) * c.rate_decay) * g / (std::sqrt(m[0]) + c.epsilon);
      return;
    default:
      break;
  }
  m[0] = c.beta1 * m[0] + (1 - static_cast<double>(c.beta1)) * g;
  m[1] = c.beta2 * m[1] + (1 - static_cast<double>(c.beta2)) * g * g;
  const double corrected1 = m[0] / (1 - std::pow(c.beta1, t));
  const double corrected2 = m[1] / (1 - std::pow(c.beta2, t));
  *w -= lr * corrected1 / (std::sqrt(corrected2) + c.epsilon);
}

// Arenas of a training.
struct Arenas {
  Arenas(Random* random, int64_t size, const OptimizerConfig& config) : config(config), w(RandomFloats(random, size)) {
    for (int i = 0; i < config.moments(); ++i) moments.emplace_back(size, config.initial_moment());
  }
  UpdateArgs Args(const std::vector<float>& g, const std::vector<UpdateRange>& ranges, double lr, int64_t t) {
    const auto at = [this](size_t i) { return i < moments.size() ? moments[i].data() : nullptr; };
    return {.config = config,
            .scalars = optim::ComputeUpdateScalars(config, lr, t - 1, 1, 1024),
            .masters = w.data(),
            .gradients = g.data(),
            .moment1 = at(0),
            .moment2 = at(1),
            .moment3 = at(2),
            .ranges = ranges};
  }

  OptimizerConfig config;
  std::vector<float> w;
  std::vector<std::vector<float>> moments;
};

// Over two ranges with factors of their own; what lies between them must stay as it is.
TEST_P(Update, AgreesWithFloat64OverSteps) {
  constexpr int64_t kSize = 70001, kGap = 30000, kAfter = 30016;
  constexpr double kRate = 0.01;
  const OptimizerConfig& config = GetParam().config;
  const std::vector<UpdateRange> ranges = {{{0, kGap}, 1, config.weight_decay},
                                           {{kAfter, kSize - kAfter}, 0.25f, 0.5f}};
  Random random(11);
  Arenas arenas(&random, kSize, config);
  const std::vector<float> before = arenas.w;
  std::vector<double> w64(before.begin(), before.end());
  std::vector<std::array<double, 3>> m64(kSize);
  for (auto& m : m64) m.fill(config.initial_moment());
  const auto backend = MakeCpuBackend(2);
  for (int64_t t = 1; t <= 4; ++t) {
    const std::vector<float> g = RandomFloats(&random, kSize, -1024, 1024);
    ASSERT_TRUE(backend->Update(arenas.Args(g, ranges, kRate, t)).ok());
    for (const UpdateRange& range : ranges) {
      OptimizerConfig with = config;
      with.weight_decay = range.weight_decay;
      for (int64_t i = range.slot.offset; i < range.slot.offset + range.slot.size; ++i) {
        UpdateReference(with, t, kRate * range.learning_rate_scale, g[i] / 1024.0, &w64[i], m64[i].data());
      }
    }
  }
  for (int64_t i = 0; i < kSize; ++i) ASSERT_NEAR(arenas.w[i], w64[i], 2e-6) << i;
  for (int64_t i = kGap; i < kAfter; ++i) {
    ASSERT_EQ(arenas.w[i], before[i]);
    for (const auto& moment : arenas.moments) ASSERT_EQ(moment[i], config.initial_moment());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Update,
    ::testing::Values(Rule{"sgd", {.kind = OptimizerKind::kSgd}},
                      Rule{"sgd_decay", {.kind = OptimizerKind::kSgd, .weight_decay = 0.1f}},
                      Rule{"momentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9f}},
                      Rule{"nesterov", {.kind = OptimizerKind::kSgd, .momentum = 0.9f, .nesterov = true}},
                      Rule{"adam", {.kind = OptimizerKind::kAdam, .weight_decay = 0.1f}},
                      Rule{"adamw", {.kind = OptimizerKind::kAdamW, .weight_decay = 0.1f}},
                      Rule{"dampening", {.kind = OptimizerKind::kSgd, .momentum = 0.9f, .dampening = 0.3f}},
                      Rule{"rmsprop", {.kind = OptimizerKind::kRmsProp, .smoothing = 0.5f}},
                      Rule{"rmsprop_momentum", {.kind = OptimizerKind::kRmsProp, .momentum = 0.9f, .smoothing = 0.5f}},
                      Rule{"rmsprop_centered", {.kind = OptimizerKind::kRmsProp, .smoothing = 0.5f, .centered = true}},
                      Rule{"rmsprop_centered_momentum",
                           {.kind = OptimizerKind::kRmsProp, .momentum = 0.9f, .smoothing = 0.5f, .centered = true}},
                      Rule{"adagrad",
                           {.kind = OptimizerKind::kAdagrad, .rate_decay = 0.1, .initial_accumulator = 0.5f}}),
    [](const auto& info) { return std::string(info.param.name); });

// The paper's algorithm in float64, tensor by tensor; the second is so long that several blocks share its norms.
TEST(Lamb, EachRangeHasItsOwnTrustRatio) {
  constexpr int64_t kSize = 50000;
  const OptimizerConfig config = {.kind = OptimizerKind::kLamb, .epsilon = 1e-6f};
  const std::vector<UpdateRange> ranges = {{{0, 33}, 1, 0.01f}, {{48, 40000}, 0.5f, 0}, {{40048, 9952}, 1, 0.1f}};
  Random random(21);
  Arenas arenas(&random, kSize, config);
  for (int64_t i = 48; i < 40048; ++i) arenas.w[i] *= 20;
  Arenas serial = arenas;
  std::vector<double> w(arenas.w.begin(), arenas.w.end()), m(kSize), v(kSize), r(kSize);
  for (int64_t t = 1; t <= 20; ++t) {
    const std::vector<float> g = RandomFloats(&random, kSize, -1024, 1024);
    ASSERT_TRUE(MakeCpuBackend(2)->Update(arenas.Args(g, ranges, 0.02, t)).ok());
    ASSERT_TRUE(MakeCpuBackend(1)->Update(serial.Args(g, ranges, 0.02, t)).ok());
    for (const UpdateRange& range : ranges) {
      double weights = 0, directions = 0;
      const int64_t begin = range.slot.offset, end = begin + range.slot.size;
      for (int64_t i = begin; i < end; ++i) {
        m[i] = config.beta1 * m[i] + (1.0 - config.beta1) * g[i] / 1024;
        v[i] = config.beta2 * v[i] + (1.0 - config.beta2) * std::pow(g[i] / 1024.0, 2);
        r[i] = m[i] / (1 - std::pow(config.beta1, t)) /
                   (std::sqrt(v[i] / (1 - std::pow(config.beta2, t))) + config.epsilon) +
               range.weight_decay * w[i];
        weights += w[i] * w[i];
        directions += r[i] * r[i];
      }
      for (int64_t i = begin; i < end; ++i) {
        w[i] -= 0.02 * range.learning_rate_scale * std::sqrt(weights / directions) * r[i];
      }
    }
  }
  for (int64_t i = 0; i < kSize; ++i) ASSERT_NEAR(arenas.w[i], w[i], 2e-5) << i;
  EXPECT_EQ(arenas.w, serial.w);
  EXPECT_EQ(arenas.moments, serial.moments);
}

TEST(UpdateAverage, FollowsTheRoundedMasters) {
  constexpr int64_t kSize = 20000;
  Random random(8);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kLamb}) {
    Arenas arenas(&random, kSize, {.kind = kind});
    std::vector<float> average = arenas.w;
    const std::vector<float> start = average, g = RandomFloats(&random, kSize, -1024, 1024);
    const std::vector<UpdateRange> ranges = {{{0, 19000}, 1, 0}};
    UpdateArgs args = arenas.Args(g, ranges, 0.5, 1);
    args.average = average.data();
    args.average_weight = 0.25f;
    args.round_to = DType::kBF16;
    ASSERT_TRUE(MakeCpuBackend(2)->Update(args).ok());
    for (int64_t i = 0; i < 19000; ++i) ASSERT_NEAR(average[i], 0.75 * start[i] + 0.25 * arenas.w[i], 1e-6);
    for (int64_t i = 19000; i < kSize; ++i) ASSERT_EQ(average[i], start[i]);
  }
}

TEST(UpdateRounding, MastersLieOnTheGridOfTheirDType) {
  const std::vector<UpdateRange> ranges = {{{0, 5000}, 1, 0}};
  Random random(5);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> w = RandomFloats(&random, 5000), g = RandomFloats(&random, 5000), exact = w;
    UpdateArgs args{.config = {.kind = OptimizerKind::kSgd},
                    .scalars = {.learning_rate = 0.5f},
                    .masters = w.data(),
                    .gradients = g.data(),
                    .ranges = ranges,
                    .round_to = dtype};
    ASSERT_TRUE(MakeCpuBackend(2)->Update(args).ok());
    for (size_t i = 0; i < w.size(); ++i) {
      const float unrounded = exact[i] - 0.5f * g[i];
      ASSERT_EQ(static_cast<double>(w[i]), testing::RoundToDType(unrounded, dtype));
    }
  }
}

TEST(UpdateArguments, MissingMomentsAreRefused) {
  float w = 0, g = 0;
  const std::vector<UpdateRange> ranges = {{{0, 1}, 1, 0}};
  const UpdateArgs args{.masters = &w, .gradients = &g, .ranges = ranges};
  EXPECT_EQ(MakeCpuBackend(1)->Update(args).code(), absl::StatusCode::kInvalidArgument);
  const UpdateArgs two{.config = {.kind = OptimizerKind::kRmsProp, .momentum = 0.5f, .centered = true},
                       .masters = &w,
                       .gradients = &g,
                       .moment1 = &w,
                       .moment2 = &w,
                       .ranges = ranges};
  EXPECT_EQ(MakeCpuBackend(1)->Update(two).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Publish, RoundsToEveryFloatDType) {
  Random random(9);
  const std::vector<float> masters = RandomFloats(&random, 40001, -70000, 70000);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor copy(dtype, {40001});
    ASSERT_TRUE(MakeCpuBackend(2)->Publish(masters.data(), 40001, dtype, copy.view().data).ok());
    const testing::RefTensor read = testing::FromTensor(copy.view());
    for (int64_t i = 0; i < 40001; ++i) ASSERT_EQ(read.data[i], testing::RoundToDType(masters[i], dtype));
  }
  float copy = 0;
  EXPECT_FALSE(MakeCpuBackend(1)->Publish(masters.data(), 1, DType::kI32, &copy).ok());
}

TEST(FindNonFinite, TellsWhatStandsFirst) {
  const auto backend = MakeCpuBackend(2);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    testing::RefTensor values = testing::Filled({100000}, testing::RoundToDType(MaxFinite(dtype), dtype));
    bool found = true, is_nan = true;
    ASSERT_TRUE(backend->FindNonFinite(testing::ToTensor(values, dtype).view(), &found, &is_nan).ok());
    EXPECT_FALSE(found) << DTypeName(dtype);
    values.data[99999] = kNaN;
    ASSERT_TRUE(backend->FindNonFinite(testing::ToTensor(values, dtype).view(), &found, &is_nan).ok());
    EXPECT_TRUE(found && is_nan) << DTypeName(dtype);
    values.data[3] = -kInf;
    ASSERT_TRUE(backend->FindNonFinite(testing::ToTensor(values, dtype).view(), &found, &is_nan).ok());
    EXPECT_TRUE(found && !is_nan) << DTypeName(dtype);
  }
  bool found = true, is_nan = true;
  const Tensor integers(DType::kI32, {4});
  ASSERT_TRUE(backend->FindNonFinite(integers.view(), &found, &is_nan).ok());
  EXPECT_FALSE(found);
}

}  // namespace
}  // namespace ampd
