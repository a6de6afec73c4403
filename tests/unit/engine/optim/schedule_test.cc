#include "engine/optim/schedule.h"

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

TEST(Schedule, JobsAsShortAsTheirWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::kCosine, ScheduleKind::kLinear}) {
    ScheduleConfig c = Config(kind);
    c.total_steps = 1;
    EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.8);
    c.warmup_steps = 10;
    EXPECT_DOUBLE_EQ(LearningRate(c, 0), 0.08);
  }
}

}  // namespace
}  // namespace ampd::optim
