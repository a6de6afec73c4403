// The backend's passes over flat arenas.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "tests/support/ref_tensor.h"

namespace ampd {
namespace {

using optim::OptimizerConfig;
using optim::OptimizerKind;
using runtime::ArenaSlot;
using runtime::GradientCheck;
using runtime::UpdateArgs;
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

// One step in float64, from the papers' formulas as torch.optim has them.
void UpdateReference(const OptimizerConfig& c, int64_t t, double lr, double g, double* w, double* m1, double* m2) {
  if (c.kind == OptimizerKind::kAdamW) *w *= 1 - lr * c.weight_decay;
  if (c.kind != OptimizerKind::kAdamW) g += c.weight_decay * *w;
  if (c.kind == OptimizerKind::kSgd) {
    if (c.momentum != 0) {
      *m1 = t == 1 ? g : c.momentum * *m1 + g;
      g = c.nesterov ? g + c.momentum * *m1 : *m1;
    }
    *w -= lr * g;
    return;
  }
  *m1 = c.beta1 * *m1 + (1 - static_cast<double>(c.beta1)) * g;
  *m2 = c.beta2 * *m2 + (1 - static_cast<double>(c.beta2)) * g * g;
  const double corrected1 = *m1 / (1 - std::pow(c.beta1, t));
  const double corrected2 = *m2 / (1 - std::pow(c.beta2, t));
  *w -= lr * corrected1 / (std::sqrt(corrected2) + c.epsilon);
}

TEST_P(Update, AgreesWithFloat64OverSteps) {
  constexpr int64_t kSize = 70001;
  constexpr double kRate = 0.01;
  const OptimizerConfig& config = GetParam().config;
  Random random(11);
  std::vector<float> w = RandomFloats(&random, kSize), m1(kSize), m2(kSize);
  std::vector<double> w64(w.begin(), w.end()), m164(kSize), m264(kSize);
  const auto backend = MakeCpuBackend(2);
  for (int64_t t = 1; t <= 4; ++t) {
    const std::vector<float> g = RandomFloats(&random, kSize, -1024, 1024);
    UpdateArgs args{.config = config, .masters = w.data(), .gradients = g.data(), .size = kSize};
    if (config.moments() >= 1) args.moment1 = m1.data();
    if (config.moments() >= 2) args.moment2 = m2.data();
    args.scalars = {.learning_rate = kRate,
                    .gradient_factor = 1.0f / 1024,
                    .step_size = static_cast<float>(kRate / (1 - std::pow(config.beta1, t))),
                    .inverse_root_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(config.beta2, t))),
                    .first = t == 1};
    ASSERT_TRUE(backend->Update(args).ok());
    for (int64_t i = 0; i < kSize; ++i) {
      UpdateReference(config, t, kRate, g[i] / 1024.0, &w64[i], &m164[i], &m264[i]);
    }
  }
  for (int64_t i = 0; i < kSize; ++i) ASSERT_NEAR(w[i], w64[i], 1e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Rules, Update,
                         ::testing::Values(Rule{"sgd", {.kind = OptimizerKind::kSgd}},
                                           Rule{"sgd_decay", {.kind = OptimizerKind::kSgd, .weight_decay = 0.1f}},
                                           Rule{"momentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9f}},
                                           Rule{"nesterov",
                                                {.kind = OptimizerKind::kSgd, .momentum = 0.9f, .nesterov = true}},
                                           Rule{"adam", {.kind = OptimizerKind::kAdam, .weight_decay = 0.1f}},
                                           Rule{"adamw", {.kind = OptimizerKind::kAdamW, .weight_decay = 0.1f}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(UpdateRounding, MastersLieOnTheGridOfTheirDType) {
  Random random(5);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> w = RandomFloats(&random, 5000), g = RandomFloats(&random, 5000), exact = w;
    UpdateArgs args{.config = {.kind = OptimizerKind::kSgd},
                    .scalars = {.learning_rate = 0.5f},
                    .masters = w.data(),
                    .gradients = g.data(),
                    .size = 5000,
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
  const UpdateArgs args{.masters = &w, .gradients = &g, .size = 1};
  EXPECT_EQ(MakeCpuBackend(1)->Update(args).code(), absl::StatusCode::kInvalidArgument);
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
