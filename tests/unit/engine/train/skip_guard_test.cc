#include "engine/train/skip_guard.h"

#include <string>

#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

constexpr bool kApplied = true, kSkipped = false, kCalibration = true, kMoved = true;
constexpr bool kFresh = false, kInherits = true;

TEST(SkipGuard, AHundredSkipsInARowAreDivergence) {
  const SkipLimits limits{.total_steps = 1000};
  SkipHistory history;
  int64_t step = 0;
  for (int i = 0; i < 99; ++i) ASSERT_TRUE(CountStep(limits, ++step, kSkipped, false, false, &history).ok());
  ASSERT_TRUE(CountStep(limits, ++step, kApplied, false, false, &history).ok());
  for (int i = 0; i < 99; ++i) ASSERT_TRUE(CountStep(limits, ++step, kSkipped, false, kMoved, &history).ok());
  const absl::Status status = CountStep(limits, ++step, kSkipped, false, kMoved, &history);
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DIVERGED);
}

TEST(SkipGuard, CalibrationMayTakeLongWhileTheScaleMoves) {
  const SkipLimits limits{.total_steps = 10};
  SkipHistory history;
  int64_t step = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(CountStep(limits, ++step, kSkipped, kCalibration, kMoved, &history).ok());
  }
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(CountStep(limits, ++step, kSkipped, kCalibration, false, &history).ok());
  EXPECT_EQ(FailureOf(CountStep(limits, ++step, kSkipped, kCalibration, false, &history)).class_(),
            v1::Failure::DIVERGED);
}

TEST(SkipGuard, LongHysteresisIsNotDivergence) {
  const SkipLimits limits{.total_steps = 10, .hysteresis = 300};
  SkipHistory history;
  for (int i = 1; i <= 300; ++i) ASSERT_TRUE(CountStep(limits, i, kSkipped, kCalibration, false, &history).ok());
  EXPECT_FALSE(CountStep(limits, 301, kSkipped, kCalibration, false, &history).ok());
}

TEST(SkipGuard, TheWindowSlides) {
  const SkipLimits limits{.max_ratio = 0.2, .window = 10, .total_steps = 1000};
  SkipHistory history;
  // Two in ten are allowed, for ever.
  for (int step = 1; step <= 200; ++step) {
    ASSERT_TRUE(CountStep(limits, step, step % 5 != 0, false, false, &history).ok()) << step;
    ASSERT_LE(history.recent.size(), 2u);
  }
  const absl::Status status = CountStep(limits, 201, kSkipped, false, false, &history);
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::LIMIT);
  EXPECT_NE(status.message().find("max_skip_ratio"), absl::string_view::npos) << status;
}

// Of 20 attempts in the window, the sixth skip is too many: the share is of what the phase attempts.
TEST(SkipGuard, APhaseThatRunsSeldomHasAShareOfItsOwnSteps) {
  const SkipLimits limits{.max_ratio = 0.25, .window = 100, .total_steps = 1000, .every = 5};
  SkipHistory history;
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(CountStep(limits, 5 * i, kSkipped, false, false, &history).ok());
  EXPECT_EQ(FailureOf(CountStep(limits, 30, kSkipped, false, false, &history)).class_(), v1::Failure::LIMIT);
}

TEST(SkipGuard, CalibrationDoesNotCountForTheRatio) {
  const SkipLimits limits{.max_ratio = 0.1, .window = 10, .total_steps = 1000};
  SkipHistory history;
  for (int step = 1; step <= 50; ++step) {
    ASSERT_TRUE(CountStep(limits, step, kSkipped, kCalibration, kMoved, &history).ok());
  }
  EXPECT_TRUE(history.recent.empty());
}

TEST(SkipGuard, ATrainingThatAppliedNothingDiverged) {
  SkipHistory history;
  const SkipLimits limits{.total_steps = 20};
  EXPECT_TRUE(CheckApplied(limits, 0, 0, kFresh, history).ok()) << "a phase that was not due";
  for (int step = 1; step <= 20; ++step) {
    ASSERT_TRUE(CountStep(limits, step, kSkipped, kCalibration, false, &history).ok());
  }
  EXPECT_EQ(FailureOf(CheckApplied(limits, 0, 20, kFresh, history)).class_(), v1::Failure::DIVERGED);
  EXPECT_TRUE(CheckApplied(limits, 1, 19, kFresh, {.consecutive = 9}).ok());
  // It was still looking for its scale, which a second overflow would have moved.
  EXPECT_TRUE(CheckApplied({.total_steps = 1, .hysteresis = 2}, 0, 1, kFresh, {.consecutive = 1}).ok());
  ASSERT_TRUE(CountStep(limits, 20, kSkipped, kCalibration, kMoved, &history).ok());
  EXPECT_TRUE(CheckApplied(limits, 0, 20, kFresh, history).ok());
}

TEST(SkipGuard, ATrainingWhoseLaterHalfWasSkippedDiverged) {
  const SkipLimits limits{.total_steps = 120};
  const absl::Status status = CheckApplied(limits, 40, 80, kFresh, {.consecutive = 73});
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DIVERGED);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the last 73 of 120 steps were skipped"));
  EXPECT_TRUE(CheckApplied(limits, 60, 60, kFresh, {.consecutive = 59}).ok());
  EXPECT_TRUE(CheckApplied(limits, 9, 9, kFresh, {.consecutive = 9}).ok()) << "a scale that finds its place";
  EXPECT_FALSE(CheckApplied(limits, 10, 10, kFresh, {.consecutive = 10}).ok());
}

// Nothing was left to calibrate, so that every skip counts.
TEST(SkipGuard, AContinuedTrainingIsJudgedByItsOwnSteps) {
  const SkipLimits limits{.total_steps = 20};
  EXPECT_EQ(FailureOf(CheckApplied(limits, 1, 19, kInherits, {.consecutive = 19})).class_(), v1::Failure::DIVERGED);
  EXPECT_EQ(FailureOf(CheckApplied(limits, 0, 20, kInherits, {.consecutive = 20})).class_(), v1::Failure::DIVERGED);
  EXPECT_TRUE(CheckApplied(limits, 0, 1, kInherits, {.consecutive = 1}).ok()) << "a scale that had just grown";
}

TEST(SkipGuard, AWindowLongerThanTheJobIsCutToIt) {
  const SkipLimits limits{.max_ratio = 0.5, .window = 500, .total_steps = 4};
  SkipHistory history;
  EXPECT_TRUE(CountStep(limits, 2, kSkipped, false, false, &history).ok());
  EXPECT_TRUE(CountStep(limits, 3, kSkipped, false, false, &history).ok());
  EXPECT_FALSE(CountStep(limits, 4, kSkipped, false, false, &history).ok());
}

}  // namespace
}  // namespace ampd::train
