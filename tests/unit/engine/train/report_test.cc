#include "engine/train/report.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::SizeIs;

PhaseRecord PhaseOf(size_t phase, int64_t step, double loss, bool applied = true) {
  return {.phase = phase,
          .loss = loss,
          .applied = applied,
          .learning_rate = 0.5,
          .gradient_norm = 2,
          .loss_scale = 8,
          .steps_applied = step,
          .steps_skipped = 0};
}

StepRecord StepOf(int64_t step, absl::Span<const PhaseRecord> phases) {
  return {.step = step, .epoch = 1, .phases = phases, .samples = 10, .seconds = 0.25, .wait_seconds = 0.125};
}

// A step of one phase.
absl::Status Add(Reporter* reporter, int64_t step, double loss, bool applied = true) {
  const PhaseRecord phase = PhaseOf(0, step, loss, applied);
  return reporter->AddStep(StepOf(step, {&phase, 1}));
}

class ReporterTest : public testing::Test {
 protected:
  Reporter Make(const std::string& spec) {
    v1::ReportSpec report;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(spec, &report));
    return Reporter(report, phases_, 100, &recorder_, [this] { return now_; });
  }
  std::vector<PhaseStart> phases_ = {{.name = "main", .learning_rate = 0.125}};
  Recorder recorder_;
  double now_ = 50;
};

TEST_F(ReporterTest, AReportCoversTheStepsSinceTheOneBefore) {
  Reporter reporter = Make("max_per_second: 10");
  ASSERT_TRUE(Add(&reporter, 1, 4).ok());
  ASSERT_THAT(recorder_.steps(), SizeIs(1));
  now_ += 0.04;
  ASSERT_TRUE(Add(&reporter, 2, 1).ok());
  ASSERT_TRUE(Add(&reporter, 3, INFINITY, false).ok());
  ASSERT_THAT(recorder_.steps(), SizeIs(1));
  now_ += 0.07;
  ASSERT_TRUE(Add(&reporter, 4, 2).ok());
  ASSERT_THAT(recorder_.steps(), SizeIs(2));
  const v1::StepReport report = recorder_.steps()[1];
  EXPECT_EQ(report.first_step(), 2);
  EXPECT_EQ(report.last_step(), 4);
  EXPECT_EQ(report.total_steps(), 100);
  EXPECT_EQ(report.phases(0).loss(), 1.5);
  EXPECT_EQ(report.samples_per_second(), 40);
  EXPECT_EQ(report.step_seconds(), 0.25);
  EXPECT_EQ(report.input_wait_seconds(), 0.375);
  EXPECT_EQ(report.phases(0).gradient_norm(), 2);
  EXPECT_EQ(report.phases(0).loss_scale(), 8);
}

TEST_F(ReporterTest, EveryStepsCountsFromTheJobsStart) {
  Reporter reporter = Make("every_steps: 4");
  for (int64_t step = 3; step <= 9; ++step) ASSERT_TRUE(Add(&reporter, step, 1).ok());
  ASSERT_TRUE(reporter.Flush().ok());
  ASSERT_TRUE(reporter.Flush().ok());
  ASSERT_THAT(recorder_.steps(), SizeIs(3));
  EXPECT_EQ(recorder_.steps()[0].first_step(), 3);
  EXPECT_EQ(recorder_.steps()[0].last_step(), 4);
  EXPECT_EQ(recorder_.steps()[1].last_step(), 8);
  EXPECT_EQ(recorder_.steps()[2].last_step(), 9);
}

TEST_F(ReporterTest, SkippedStepsHaveNeitherNormNorRate) {
  Reporter reporter = Make("every_steps: 1");
  ASSERT_TRUE(Add(&reporter, 1, NAN, false).ok());
  ASSERT_TRUE(Add(&reporter, 2, 3).ok());
  ASSERT_TRUE(Add(&reporter, 3, 3, false).ok());
  const auto steps = recorder_.steps();
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_TRUE(std::isnan(steps[0].phases(0).loss()));
  EXPECT_TRUE(std::isnan(steps[0].phases(0).gradient_norm()));
  EXPECT_EQ(steps[0].phases(0).learning_rate(), 0.125);
  EXPECT_TRUE(std::isnan(steps[2].phases(0).gradient_norm()));
  EXPECT_EQ(steps[2].phases(0).learning_rate(), 0.5);
}

TEST_F(ReporterTest, EveryPhaseHasItsOwnFigures) {
  phases_ = {{.name = "critic", .learning_rate = 0.25},
             {.name = "artist", .learning_rate = 0.125, .loss_scale = 2, .steps_applied = 7, .steps_skipped = 1}};
  Reporter reporter = Make("every_steps: 2");
  const std::vector<PhaseRecord> first = {PhaseOf(0, 1, 4)};
  const std::vector<PhaseRecord> second = {PhaseOf(0, 2, 2), PhaseOf(1, 8, 10)};
  const std::vector<PhaseRecord> third = {PhaseOf(0, 3, 1)};
  ASSERT_TRUE(reporter.AddStep(StepOf(1, first)).ok());
  ASSERT_TRUE(reporter.AddStep(StepOf(2, second)).ok());
  ASSERT_TRUE(reporter.AddStep(StepOf(3, third)).ok());
  ASSERT_TRUE(reporter.AddStep(StepOf(4, third)).ok());
  ASSERT_THAT(recorder_.steps(), SizeIs(2));
  const v1::StepReport both = recorder_.steps()[0];
  ASSERT_EQ(both.phases_size(), 2);
  EXPECT_EQ(both.samples_per_second(), 40);
  EXPECT_EQ(both.phases(0).name(), "critic");
  EXPECT_EQ(both.phases(0).loss(), 3);
  EXPECT_EQ(both.phases(1).name(), "artist");
  EXPECT_EQ(both.phases(1).loss(), 10);
  // A phase that did not run has no loss, but keeps its counts, scale and rate.
  const v1::PhaseReport idle = recorder_.steps()[1].phases(1);
  EXPECT_TRUE(std::isnan(idle.loss()));
  EXPECT_EQ(idle.steps_applied(), 8);
  EXPECT_EQ(idle.loss_scale(), 8);
  EXPECT_EQ(idle.learning_rate(), 0.5);
}

TEST_F(ReporterTest, NotableEventsFollowTheStepsBeforeThem) {
  Reporter reporter = Make("max_per_second: 10");
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(Add(&reporter, step, 1).ok());
  v1::JobEvent event;
  event.mutable_overflow_skip()->set_step(3);
  ASSERT_TRUE(reporter.Emit(event).ok());
  ASSERT_TRUE(reporter.Log(v1::LogLine::INFO, "text").ok());
  ASSERT_THAT(recorder_.events, SizeIs(4));
  EXPECT_EQ(recorder_.events[1].step().last_step(), 3);
  EXPECT_TRUE(recorder_.events[2].has_overflow_skip());
  EXPECT_TRUE(recorder_.events[3].has_log());
}

TEST_F(ReporterTest, TheObserversErrorIsReturned) {
  Reporter reporter = Make("every_steps: 1");
  recorder_.on_event = [](const v1::JobEvent&) { return absl::UnavailableError("gone"); };
  EXPECT_EQ(Add(&reporter, 1, 1), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace ampd::train
