#include "engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace ampd::optim {
namespace {

ScheduleConfig Config(ScheduleKind kind) {
  ScheduleConfig c;
  c.kind = kind;
  c.learning_rate = 0.8;
  c.total_steps = 100;
  return c;
}

TEST(Schedule, ConstantAfterWarmUp) {
  ScheduleConfig c = Config(ScheduleKind::kConstant);
  EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.8);
  c.warmup_steps = 4;
  const std::vector<double> expected = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_DOUBLE_EQ(LearningRate(c, i), expected[i]) << i;
}

TEST(Schedule, StepFallsByGammaAtEveryBoundary) {
  ScheduleConfig c = Config(ScheduleKind::kStep);
  c.every_steps = 10;
  c.gamma = 0.5;
  EXPECT_DOUBLE_EQ(LearningRate(c, 9), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(c, 10), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 19), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 35), 0.1);
  c.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(LearningRate(c, 14), 0.8 * 0.5 * 15 / 20);
}

TEST(Schedule, CosineIsHalfACosine) {
  ScheduleConfig c = Config(ScheduleKind::kCosine);
  c.min_ratio = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.8);
  EXPECT_NEAR(LearningRate(c, 50), (0.8 + 0.08) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 25), 0.08 + 0.72 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 100), 0.08, 1e-15);
  EXPECT_NEAR(LearningRate(c, 1000), 0.08, 1e-15);
}

TEST(Schedule, CosineStartsAfterTheWarmUp) {
  ScheduleConfig c = Config(ScheduleKind::kCosine);
  c.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(LearningRate(c, 9), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 19), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(c, 20), 0.8);
  EXPECT_NEAR(LearningRate(c, 60), 0.4, 1e-15);
}

TEST(Schedule, LinearReachesItsEndAtTheLastPlannedStep) {
  ScheduleConfig c = Config(ScheduleKind::kLinear);
  c.warmup_steps = 9;
  c.min_ratio = 0.25;
  EXPECT_NEAR(LearningRate(c, 9), 0.8, 1e-15);
  EXPECT_NEAR(LearningRate(c, 54), (0.8 + 0.2) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 99), 0.2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 200), 0.2, 1e-15);
  c.min_ratio = 1;
  EXPECT_DOUBLE_EQ(LearningRate(c, 70), 0.8);
}

TEST(Schedule, MultiStepFallsAtEachMilestone) {
  ScheduleConfig c = Config(ScheduleKind::kMultiStep);
  c.milestones = {3, 7, 8};
  c.gamma = 0.5;
  const std::vector<double> expected = {0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.1, 0.1};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_DOUBLE_EQ(LearningRate(c, i), expected[i]) << i;
  c.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(LearningRate(c, 1), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 3), 0.4);
}

// Walks the periods one by one instead of computing where a step lies.
TEST(Schedule, CosineRestartsStepByStep) {
  for (int64_t factor : {1, 2, 3}) {
    ScheduleConfig c = Config(ScheduleKind::kCosineRestarts);
    c.period = 5;
    c.period_factor = factor;
    c.min_ratio = 0.1;
    c.warmup_steps = 2;
    int64_t since = 0, period = 5;
    EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.4);
    for (int64_t n = 2; n < 400; ++n, ++since) {
      if (since == period) since = 0, period *= factor;
      const double angle = M_PI * static_cast<double>(since) / static_cast<double>(period);
      ASSERT_NEAR(LearningRate(c, n), 0.08 + 0.72 * (1 + std::cos(angle)) / 2, 1e-14) << n << " factor " << factor;
    }
  }
}

TEST(Schedule, RestartsOfHugePeriodsDoNotOverflow) {
  ScheduleConfig c = Config(ScheduleKind::kCosineRestarts);
  c.period = int64_t{1} << 40;
  c.period_factor = 1000000;
  EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(c, int64_t{1} << 40), 0.8);
  c.period = 1;
  for (int64_t n : {int64_t{1} << 20, int64_t{1} << 39, int64_t{1} << 40}) {
    EXPECT_GE(LearningRate(c, n), 0);
    EXPECT_LE(LearningRate(c, n), 0.8);
  }
}

TEST(Schedule, PolynomialReachesItsEnd) {
  ScheduleConfig c = Config(ScheduleKind::kPolynomial);
  c.power = 2;
  c.min_ratio = 0.25;
  c.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(LearningRate(c, 9), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(c, 20), 0.8);
  EXPECT_NEAR(LearningRate(c, 60), 0.2 + 0.6 * 0.25, 1e-15);
  EXPECT_NEAR(LearningRate(c, 100), 0.2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 500), 0.2, 1e-15);
}

TEST(Schedule, OneCycleRisesAndFalls) {
  ScheduleConfig c = Config(ScheduleKind::kOneCycle);
  c.rising_share = 0.4;
  c.start_divisor = 20;
  c.end_divisor = 100;
  EXPECT_NEAR(LearningRate(c, 0), 0.04, 1e-15);
  EXPECT_NEAR(LearningRate(c, 39), 0.8, 1e-15);
  EXPECT_NEAR(LearningRate(c, 69), (0.8 + 0.0004) / 2, 1e-15);
  EXPECT_NEAR(LearningRate(c, 99), 0.0004, 1e-15);
  EXPECT_NEAR(LearningRate(c, 1000), 0.0004, 1e-15);
  c.straight = true;
  EXPECT_NEAR(LearningRate(c, 13), 0.04 + 0.76 / 3, 1e-15);
  c.three_phase = true;
  EXPECT_NEAR(LearningRate(c, 39), 0.8, 1e-15);
  EXPECT_NEAR(LearningRate(c, 78), 0.04, 1e-15);
  EXPECT_NEAR(LearningRate(c, 99), 0.0004, 1e-15);
}

TEST(Schedule, OneCycleAtItsEdges) {
  for (double share : {0.0, 0.01, 0.5, 1.0}) {
    for (int64_t total : {1, 2, 3, 100}) {
      for (bool three : {false, true}) {
        ScheduleConfig c = Config(ScheduleKind::kOneCycle);
        c.rising_share = three ? share / 2 : share;
        c.three_phase = three;
        c.total_steps = total;
        for (int64_t n = 0; n <= total; ++n) {
          EXPECT_GE(LearningRate(c, n), 0) << share << " " << total << " " << n;
          EXPECT_LE(LearningRate(c, n), 0.8) << share << " " << total << " " << n;
        }
      }
    }
  }
}

TEST(Schedule, InverseSquareRootIsThePapers) {
  ScheduleConfig c = Config(ScheduleKind::kInverseSquareRoot);
  c.warmup_steps = 25;
  // d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), which peaks at (d_model * warmup)^-0.5.
  for (int64_t step = 1; step < 500; ++step) {
    const double n = static_cast<double>(step);
    const double paper = std::min(std::pow(n, -0.5), n * std::pow(25.0, -1.5));
    ASSERT_NEAR(LearningRate(c, step - 1), 0.8 * paper * std::sqrt(25.0), 1e-14) << step;
  }
}

TEST(Schedule, JobsAsShortAsTheirWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kPolynomial}) {
    ScheduleConfig c = Config(kind);
    c.total_steps = 1;
    EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.8);
    c.warmup_steps = 10;
    EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.08);
  }
}

}  // namespace
}  // namespace ampd::optim
