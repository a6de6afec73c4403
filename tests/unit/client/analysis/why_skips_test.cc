// What `why` tells of skips before a phase's first update.
#include "client/analysis/why_skips.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// `count` skips from step 1 on, each of which leaves `left` of the scale.
Events Calibration(int count, double scale, double left, const std::string& phase = "main",
                   const std::string& stage = "GRADIENT") {
  Events events;
  for (int step = 1; step <= count; ++step, scale *= left) {
    const Events skip = EventsOf({absl::StrCat(
        "{overflow_skip: {step: ", step, ", phase: ", phase, ", scale_before: ", scale, ", scale_after: ", left * scale,
        ", stage: ", stage, ", first_tensor: \"head.weight.grad\", kind: KIND_INF, calibration: true}}")});
    events.push_back(skip[0]);
  }
  return events;
}

v1::JobEvent Report(int64_t last, int64_t applied, const std::string& phase = "main") {
  return EventsOf({absl::StrCat("{step: {first_step: 1, last_step: ", last, ", phases: [{name: ", phase,
                                ", steps_applied: ", applied, ", steps_skipped: ", last - applied, "}]}}")})[0];
}

v1::Job WithScale(v1::Job::State state, double init, v1::LossScaleSpec::Kind kind = v1::LossScaleSpec::DYNAMIC) {
  v1::Job job = ExampleJob(state);
  job.mutable_spec()->mutable_precision()->mutable_loss_scale()->set_kind(kind);
  job.mutable_spec()->mutable_precision()->mutable_loss_scale()->set_init(init);
  return job;
}

TEST(WhyCalibration, AScaleThatFallsAndFallsIsToldOfWhileTheJobRuns) {
  WhyInput input{.job = WithScale(v1::Job::RUNNING, 1e30), .events = Calibration(300, 1e30, 0.9)};
  input.job.mutable_spec()->mutable_precision()->mutable_loss_scale()->set_backoff_factor(0.9);
  input.events.push_back(Report(300, 0));
  const std::vector<Finding> found = Skips(input);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].what, "skipping: calibrating");
  EXPECT_THAT(found[0].because,
              ElementsAre("300 of 300 steps were skipped, none was applied yet, the last 300",
                          "first not finite: head.weight.grad (300 times); stage GRADIENT (300 times)",
                          "the scale went from 1e+30 to 1.874e+16"));
  EXPECT_THAT(found[0].advice,
              ElementsAre("begin lower: precision.loss_scale.init, 1e+30 here, 65536 by default",
                          "a skip leaves 0.9 of the scale (precision.loss_scale.backoff_factor, 0.5 by default): less "
                          "finds its height in fewer steps"));
}

TEST(WhyCalibration, AnEndedJobThatTookManyStepsForItIsToldTheScaleThatWouldHaveDone) {
  WhyInput input{.job = WithScale(v1::Job::SUCCEEDED, 1e12), .events = Calibration(21, 1e12, 0.5)};
  input.events.push_back(Report(46, 25));
  const std::vector<Finding> found = Skips(input);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].what, "skipping: calibrating");
  EXPECT_EQ(found[0].because[0], "21 of 46 steps were skipped before the first was applied, the last 21");
  EXPECT_THAT(found[0].advice, ElementsAre("begin lower: precision.loss_scale.init, 1e+12 here, 65536 by default; the "
                                           "first step that was applied had 476837"));
}

// From 65536 to 1, as far as the scale falls by default.
TEST(WhyCalibration, AsManyAsADefaultScaleTakesAreNoNews) {
  WhyInput input{.job = WithScale(v1::Job::SUCCEEDED, 65536), .events = Calibration(16, 65536, 0.5)};
  input.events.push_back(Report(46, 30));
  EXPECT_TRUE(Skips(input).empty());
  input = {.job = WithScale(v1::Job::SUCCEEDED, 131072), .events = Calibration(17, 131072, 0.5)};
  input.events.push_back(Report(46, 29));
  ASSERT_EQ(Skips(input).size(), 1);
  EXPECT_EQ(Skips(input)[0].what, "skipping: calibrating");
}

TEST(WhyCalibration, AFewAreNormalWhileNothingWasApplied) {
  WhyInput input{.job = WithScale(v1::Job::RUNNING, 65536), .events = Calibration(3, 65536, 0.5)};
  ASSERT_EQ(Skips(input).size(), 1);
  EXPECT_EQ(Skips(input)[0].what, "calibrating");
  EXPECT_THAT(Skips(input)[0].advice, ElementsAre("that is how a dynamic scale finds its height"));
  input.events.push_back(Report(4, 1));
  EXPECT_TRUE(Skips(input).empty());
}

TEST(WhyCalibration, IsEachPhasesOwn) {
  WhyInput input{.job = WithScale(v1::Job::RUNNING, 1e12), .events = Calibration(20, 1e12, 0.5, "gen")};
  for (const v1::JobEvent& event : Calibration(2, 65536, 0.5, "disc")) input.events.push_back(event);
  input.events.push_back(Report(20, 18, "disc"));
  const std::vector<Finding> found = Skips(input);
  ASSERT_EQ(found.size(), 1);
  EXPECT_THAT(found[0].because[0], HasSubstr("20 of 20 steps were skipped in phase gen, none was applied yet"));
}

TEST(WhyCalibration, IsToldBesideTheSkipsAfterIt) {
  WhyInput input{.job = WithScale(v1::Job::RUNNING, 1e12), .events = Calibration(20, 1e12, 0.5)};
  input.events.push_back(
      EventsOf({"{overflow_skip: {step: 30, phase: main, scale_before: 8, scale_after: 4, stage: "
                "GRADIENT, first_tensor: fc1, kind: KIND_INF}}"})[0]);
  const std::vector<Finding> found = Skips(input);
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].because[0], "1 of 30 steps were skipped after calibration, the last 30");
  EXPECT_EQ(found[1].because[0], "20 of 30 steps were skipped before the first was applied, the last 20");
}

TEST(WhyCalibration, AdviceIsForWhatStandsInTheWay) {
  const auto advice = [](const v1::Job& job, double left, const std::string& stage = "GRADIENT") {
    WhyInput input{.job = job,
                   .events = Calibration(20, job.spec().precision().loss_scale().init(), left, "main", stage)};
    return WhyText(job, Skips(input));
  };
  using v1::Job;
  EXPECT_THAT(advice(WithScale(Job::RUNNING, 1e12, v1::LossScaleSpec::STATIC), 1),
              HasSubstr("the scale is static: lower precision.loss_scale.init, which is 1000000000000, "));
  // No scale reaches a loss that is not finite, nor gradients that are not even at the floor.
  const std::string forward = advice(WithScale(Job::RUNNING, 65536), 1, "LOSS"),
                    floor = advice(WithScale(Job::RUNNING, 65536), 0.5);
  EXPECT_THAT(forward, HasSubstr("no loss scale cures what overflows forward"));
  EXPECT_THAT(forward, Not(HasSubstr("loss_scale.init")));
  EXPECT_THAT(floor, HasSubstr("look at the data and the initial weights, or use BF16"));
  EXPECT_THAT(floor, Not(HasSubstr("loss_scale.init")));
}

TEST(WhyCalibration, AJobThatEndedForAnotherReasonDoesNotHearOfIt) {
  WhyInput input{.job = WithScale(v1::Job::FAILED, 65536), .events = Calibration(3, 65536, 0.5)};
  input.events.push_back(Report(3, 0));
  input.job.mutable_summary()->clear_steps_applied();
  input.job.mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
  EXPECT_TRUE(Skips(input).empty());
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  EXPECT_EQ(Skips(input).size(), 1);
}

TEST(WhyCalibration, AJobThatEndedInItHearsOfItsScale) {
  WhyInput input{.job = WithScale(v1::Job::FAILED, 1e30), .events = Calibration(6, 1e30, 0.5)};
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  input.job.mutable_summary()->clear_steps_applied();
  ASSERT_EQ(Skips(input).size(), 1);
  EXPECT_EQ(Skips(input)[0].what, "skipping");
  EXPECT_EQ(Skips(input)[0].because[0], "6 of 6 steps were skipped, none was applied, the last 6");
  EXPECT_THAT(Skips(input)[0].advice, ElementsAre(HasSubstr("begin lower: precision.loss_scale.init")));
}

}  // namespace
}  // namespace ampd::client
