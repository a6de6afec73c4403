#include "engine/optim/loss_scaler.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ampd::optim {
namespace {

constexpr StepOutcome kClean{true, true};
constexpr StepOutcome kGradient{true, false};
constexpr StepOutcome kLoss{false, false};
// A loss that overflowed though its gradients did not is still a skip that no scale cures.
constexpr StepOutcome kLossOnly{false, true};

LossScaleConfig Dynamic() {
  LossScaleConfig c;
  c.kind = LossScaleKind::kDynamic;
  c.init = 64;
  c.growth_interval = 3;
  c.min = 8;
  c.max = 256;
  c.hysteresis = 2;
  return c;
}

struct Row {
  StepOutcome outcome;
  ScalerDecision decision;
  float scale;
  int64_t good, hysteresis, applied, skipped, last_overflow;
};

void Walk(const LossScaleConfig& config, const std::vector<Row>& rows) {
  LossScalerState state = InitialScalerState(config);
  int64_t step = 0;
  for (const Row& row : rows) {
    SCOPED_TRACE("step " + std::to_string(++step));
    EXPECT_EQ(Update(config, row.outcome, step, &state), row.decision);
    EXPECT_EQ(state.scale, row.scale);
    EXPECT_EQ(state.good_steps, row.good);
    EXPECT_EQ(state.hysteresis_left, row.hysteresis);
    EXPECT_EQ(state.steps_applied, row.applied);
    EXPECT_EQ(state.steps_skipped, row.skipped);
    EXPECT_EQ(state.last_overflow_step, row.last_overflow);
  }
}

constexpr ScalerDecision kApply = ScalerDecision::kApply, kSkip = ScalerDecision::kSkip, kFail = ScalerDecision::kFail,
                         kFallBack = ScalerDecision::kFallBack, kRollBack = ScalerDecision::kRollBack;

TEST(LossScaler, WalksEveryTransition) {
  Walk(
      Dynamic(),
      {
          {kClean, kApply, 64, 1, 2, 1, 0, 0},    {kClean, kApply, 64, 2, 2, 2, 0, 0},
          {kClean, kApply, 128, 0, 2, 3, 0, 0},                                            // grows after three
          {kClean, kApply, 128, 1, 2, 4, 0, 0},   {kGradient, kSkip, 128, 0, 1, 4, 1, 5},  // hysteresis takes the first
          {kClean, kApply, 128, 1, 2, 5, 1, 5},                                            // and is refilled
          {kGradient, kSkip, 128, 0, 1, 5, 2, 7}, {kGradient, kSkip, 64, 0, 0, 5, 3, 8},   // spent: falls
          {kGradient, kSkip, 32, 0, 0, 5, 4, 9},                                           // and goes on falling
          {kLoss, kSkip, 32, 0, 0, 5, 5, 10},                                              // a bad loss touches neither
          {kLossOnly, kSkip, 32, 0, 0, 5, 6, 11}, {kGradient, kSkip, 16, 0, 0, 5, 7, 12},
          {kClean, kApply, 16, 1, 2, 6, 7, 12},   {kClean, kApply, 16, 2, 2, 7, 7, 12},
          {kLoss, kSkip, 16, 0, 2, 7, 8, 15},  // breaks the run
          {kClean, kApply, 16, 1, 2, 8, 8, 15},   {kGradient, kSkip, 16, 0, 1, 8, 9, 17},
          {kGradient, kSkip, 8, 0, 0, 8, 10, 18},  // at min
          {kGradient, kFail, 8, 0, 0, 8, 11, 19},  // below it there is nothing
          {kLoss, kSkip, 8, 0, 0, 8, 12, 20},      // a bad loss at the floor is not the floor's failure
      });
}

// With growth as the only refill, overflows far apart add up.
TEST(LossScaler, HysteresisRefilledOnGrowth) {
  LossScaleConfig c = Dynamic();
  c.hysteresis_refill = HysteresisRefill::kOnGrowth;
  c.max = 64;
  Walk(c, {
              {kGradient, kSkip, 64, 0, 1, 0, 1, 1},
              {kClean, kApply, 64, 1, 1, 1, 1, 1},  // an applied step refills nothing
              {kClean, kApply, 64, 2, 1, 2, 1, 1},
              {kGradient, kSkip, 32, 0, 0, 2, 2, 4},  // the second since the refill
              {kClean, kApply, 32, 1, 0, 3, 2, 4},
              {kGradient, kSkip, 16, 0, 0, 3, 3, 6},  // until the refill each one lowers it
              {kLoss, kSkip, 16, 0, 0, 3, 4, 7},
              {kClean, kApply, 16, 1, 0, 4, 4, 7},
              {kClean, kApply, 16, 2, 0, 5, 4, 7},
              {kClean, kApply, 32, 0, 2, 6, 4, 7},  // growth refills
              {kGradient, kSkip, 32, 0, 1, 6, 5, 11},
              {kClean, kApply, 32, 1, 1, 7, 5, 11},
              {kClean, kApply, 32, 2, 1, 8, 5, 11},
              {kClean, kApply, 64, 0, 2, 9, 5, 11},
              {kGradient, kSkip, 64, 0, 1, 9, 6, 15},
              {kClean, kApply, 64, 1, 1, 10, 6, 15},
              {kClean, kApply, 64, 2, 1, 11, 6, 15},
              {kClean, kApply, 64, 0, 2, 12, 6, 15},  // so does growth that max holds back
          });
}

LossScaleConfig AtTheFloor(OnFloor on_floor) {
  LossScaleConfig c = Dynamic();
  c.init = 16;
  c.on_floor = on_floor;
  return c;
}

TEST(LossScaler, TheFloorFails) {
  Walk(AtTheFloor(OnFloor::kFail), {{kGradient, kSkip, 16, 0, 1, 0, 1, 1},
                                    {kGradient, kSkip, 8, 0, 0, 0, 2, 2},
                                    {kGradient, kFail, 8, 0, 0, 0, 3, 3}});
}

TEST(LossScaler, TheFloorHolds) {
  Walk(AtTheFloor(OnFloor::kHold), {{kGradient, kSkip, 16, 0, 1, 0, 1, 1},
                                    {kGradient, kSkip, 8, 0, 0, 0, 2, 2},
                                    {kGradient, kSkip, 8, 0, 0, 0, 3, 3},
                                    {kGradient, kSkip, 8, 0, 0, 0, 4, 4},
                                    {kClean, kApply, 8, 1, 2, 1, 4, 4},
                                    {kClean, kApply, 8, 2, 2, 2, 4, 4},
                                    {kClean, kApply, 16, 0, 2, 3, 4, 4},  // and rises again
                                    {kGradient, kSkip, 16, 0, 1, 3, 5, 8}});
}

TEST(LossScaler, TheFloorFallsBackAndThenThereIsNone) {
  const LossScaleConfig c = AtTheFloor(OnFloor::kFallbackBf16);
  LossScalerState state = InitialScalerState(c);
  EXPECT_EQ(Update(c, kClean, 1, &state), kApply);
  EXPECT_EQ(Update(c, kGradient, 2, &state), kSkip);
  EXPECT_EQ(Update(c, kGradient, 3, &state), kSkip);
  EXPECT_EQ(Update(c, kGradient, 4, &state), kFallBack);
  FallBack(&state);
  LossScalerState expected;
  expected.steps_applied = 1;
  expected.steps_skipped = 3;
  expected.last_overflow_step = 4;
  expected.fell_back = true;
  EXPECT_EQ(state, expected);
  // BF16 scales nothing.
  EXPECT_EQ(Update(LossScaleConfig(), kGradient, 5, &state), kSkip);
  EXPECT_EQ(Update(LossScaleConfig(), kClean, 6, &state), kApply);
  EXPECT_EQ(state.scale, 1);
  EXPECT_EQ(state.steps_applied, 2);
  EXPECT_TRUE(state.fell_back);
}

TEST(LossScaler, TheFloorRollsBackSoOftenAndThenFails) {
  LossScaleConfig c = AtTheFloor(OnFloor::kRollback);
  c.max_rollbacks = 2;
  LossScalerState state = InitialScalerState(c);
  EXPECT_EQ(Update(c, kClean, 1, &state), kApply);
  const LossScalerState checkpoint = state;
  for (int64_t rollback = 1; rollback <= 3; ++rollback) {
    EXPECT_EQ(Update(c, kGradient, 2, &state), kSkip);
    EXPECT_EQ(Update(c, kGradient, 3, &state), kSkip);
    EXPECT_EQ(state.scale, 8);
    if (rollback == 3) break;
    EXPECT_EQ(Update(c, kGradient, 4, &state), kRollBack);
    const LossScalerState before = state;
    state = checkpoint;
    RollBack(c, before, &state);
    EXPECT_EQ(state.rollbacks, rollback);
    EXPECT_EQ(state.scale, 16);
    EXPECT_EQ(state.hysteresis_left, 2);
    EXPECT_EQ(state.good_steps, 0);
    // What the learning rate follows from is the checkpoint's.
    EXPECT_EQ(state.steps_applied, 1);
    EXPECT_EQ(state.steps_skipped, 0);
  }
  EXPECT_EQ(Update(c, kGradient, 4, &state), kFail);
}

// Whatever the policy, a loss that overflows, a static scale and none have no floor.
TEST(LossScaler, OnlyADynamicScaleHasAFloor) {
  for (OnFloor on_floor : {OnFloor::kFail, OnFloor::kHold, OnFloor::kFallbackBf16, OnFloor::kRollback}) {
    LossScaleConfig c = AtTheFloor(on_floor);
    c.init = 8;
    c.hysteresis = 1;
    Walk(c, {{kLoss, kSkip, 8, 0, 1, 0, 1, 1}, {kLossOnly, kSkip, 8, 0, 1, 0, 2, 2}});
    for (LossScaleKind kind : {LossScaleKind::kStatic, LossScaleKind::kNone}) {
      c.kind = kind;
      LossScalerState state = InitialScalerState(c);
      for (int64_t step = 1; step < 5; ++step) EXPECT_EQ(Update(c, kGradient, step, &state), kSkip);
    }
  }
}

TEST(LossScaler, GrowthStopsAtTheMaximum) {
  LossScaleConfig c = Dynamic();
  c.growth_interval = 1;
  c.growth_factor = 3;
  Walk(c, {{kClean, kApply, 192, 0, 2, 1, 0, 0},
           {kClean, kApply, 256, 0, 2, 2, 0, 0},
           {kClean, kApply, 256, 0, 2, 3, 0, 0}});
}

TEST(LossScaler, GrowthCannotOverflowFp32) {
  LossScaleConfig c;
  c.kind = LossScaleKind::kDynamic;
  c.init = 0x1p125;
  c.growth_factor = 1e6;
  c.growth_interval = 1;
  LossScalerState state = InitialScalerState(c);
  EXPECT_EQ(Update(c, kClean, 1, &state), kApply);
  EXPECT_EQ(state.scale, 0x1p126f);
  EXPECT_TRUE(std::isnormal(1.0f / state.scale));
}

TEST(LossScaler, TheFallStopsAtTheMinimum) {
  LossScaleConfig c = Dynamic();
  c.hysteresis = 1;
  c.init = 10;
  Walk(c, {{kGradient, kSkip, 8, 0, 0, 0, 1, 1}, {kGradient, kFail, 8, 0, 0, 0, 2, 2}});
}

TEST(LossScaler, HysteresisHoldsAtTheFloorToo) {
  LossScaleConfig c = Dynamic();
  c.init = 8;
  Walk(c, {{kGradient, kSkip, 8, 0, 1, 0, 1, 1}, {kGradient, kFail, 8, 0, 0, 0, 2, 2}});
}

TEST(LossScaler, AStaticScaleSkipsButNeverMoves) {
  LossScaleConfig c = Dynamic();
  c.kind = LossScaleKind::kStatic;
  c.hysteresis = 1;
  c.init = 1;  // below min, which is for dynamic scales
  Walk(c, {{kClean, kApply, 1, 1, 1, 1, 0, 0},
           {kClean, kApply, 1, 2, 1, 2, 0, 0},
           {kClean, kApply, 1, 3, 1, 3, 0, 0},
           {kGradient, kSkip, 1, 0, 1, 3, 1, 4},
           {kGradient, kSkip, 1, 0, 1, 3, 2, 5},
           {kLoss, kSkip, 1, 0, 1, 3, 3, 6}});
}

TEST(LossScaler, WithoutScalingTheScaleIsOne) {
  LossScaleConfig c = Dynamic();
  c.kind = LossScaleKind::kNone;
  c.hysteresis = 1;
  Walk(c, {{kClean, kApply, 1, 1, 1, 1, 0, 0}, {kGradient, kSkip, 1, 0, 1, 1, 1, 2}});
}

TEST(LossScaler, CalibratesDownFromThirtyDecades) {
  LossScaleConfig c;
  c.kind = LossScaleKind::kDynamic;
  c.init = 1e30;
  LossScalerState state = InitialScalerState(c);
  int64_t step = 0;
  for (float before = state.scale; state.scale > 65536; before = state.scale) {
    ASSERT_EQ(Update(c, kGradient, ++step, &state), kSkip);
    ASSERT_EQ(state.scale, before / 2);
  }
  EXPECT_EQ(step, 84);
  EXPECT_EQ(state.steps_applied, 0);
}

TEST(LossScaler, AFactorThatFp32RoundsAwayStillLowersTheScale) {
  LossScaleConfig c = Dynamic();
  c.backoff_factor = 1 - 1e-12;
  c.hysteresis = 1;
  LossScalerState state = InitialScalerState(c);
  Update(c, kGradient, 1, &state);
  EXPECT_EQ(state.scale, std::nextafter(64.0f, 0.0f));
}

TEST(LossScaler, ScalesStayNormalNumbers) {
  LossScaleConfig c = Dynamic();
  c.min = 1e-300;
  c.init = 1e-300;
  c.hysteresis = 1;
  LossScalerState state = InitialScalerState(c);
  EXPECT_EQ(state.scale, kSmallestScale);
  EXPECT_EQ(Update(c, kGradient, 1, &state), kFail);
}

// GradScaler's rules as PyTorch documents them, over the whole history instead of a state: the scale is recomputed from
// the list of outcomes. Without loss overflows, minimum, maximum and hysteresis the two must agree.
double ScaleFromHistory(const std::vector<bool>& overflow, double scale, int interval) {
  size_t i = 0;
  while (i < overflow.size()) {
    size_t end = i;
    while (end < overflow.size() && !overflow[end] && end - i < static_cast<size_t>(interval)) ++end;
    if (end - i == static_cast<size_t>(interval)) {
      scale *= 2;
    } else if (end < overflow.size()) {
      scale *= 0.5;
      ++end;
    }
    i = end;
  }
  return scale;
}

TEST(LossScaler, AgreesWithGradScalerOnRandomHistories) {
  std::mt19937 random(7);
  LossScaleConfig c;
  c.kind = LossScaleKind::kDynamic;
  c.init = 0x1p60;
  c.growth_interval = 4;
  for (int round = 0; round < 50; ++round) {
    LossScalerState state = InitialScalerState(c);
    std::vector<bool> history;
    for (int step = 1; step <= 60; ++step) {
      history.push_back(random() % 5 == 0);
      Update(c, {true, !history.back()}, step, &state);
      ASSERT_EQ(state.scale, ScaleFromHistory(history, 0x1p60, 4)) << "round " << round << " step " << step;
    }
  }
}

}  // namespace
}  // namespace ampd::optim
