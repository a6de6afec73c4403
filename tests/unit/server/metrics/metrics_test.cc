#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/metrics/definitions.h"
#include "server/metrics/reference.h"
#include "tests/unit/server/jobs/fake_clock.h"

namespace ampd {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobEvent StepEvent(int64_t last_step, int64_t applied, int64_t skipped, double loss) {
  v1::JobEvent event;
  v1::StepReport& step = *event.mutable_step();
  step.set_first_step(last_step);
  step.set_last_step(last_step);
  step.set_samples_per_second(1000);
  step.set_input_wait_seconds(0.25);
  v1::PhaseReport& phase = *step.add_phases();
  phase.set_name("main");
  phase.set_loss(loss);
  phase.set_loss_scale(65536);
  phase.set_learning_rate(0.001);
  phase.set_gradient_norm(2.5);
  phase.set_steps_applied(applied);
  phase.set_steps_skipped(skipped);
  return event;
}

v1::JobEvent StateEvent(v1::Job::State from, v1::Job::State to) {
  v1::JobEvent event;
  event.mutable_state_change()->set_from(from);
  event.mutable_state_change()->set_to(to);
  return event;
}

JobWrite WriteOf(const std::string& job, std::vector<v1::JobEvent> events, std::map<std::string, double> deltas = {}) {
  JobWrite write;
  write.record.job.set_id(job);
  write.events = std::move(events);
  write.counter_deltas = std::move(deltas);
  return write;
}

const Metric* Declared(absl::string_view series) {
  for (const Metric* metric : AllMetrics()) {
    absl::string_view name = series;
    const bool mine = absl::ConsumePrefix(&name, metric->name);
    const bool part = metric->type == Metric::kHistogram && (name == "_bucket" || name == "_sum" || name == "_count");
    if (mine && (name.empty() || part)) return metric;
  }
  return nullptr;
}

// That each series has the labels that definitions.h says, and no others.
void ExpectDeclaredLabels(const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const absl::string_view series = line.substr(0, line.find(' '));
    const size_t brace = series.find('{');
    const Metric* metric = Declared(series.substr(0, brace));
    ASSERT_NE(metric, nullptr) << line;
    std::set<std::string> labels;
    if (brace != absl::string_view::npos) {
      for (const absl::string_view label : absl::StrSplit(line.substr(brace + 1, line.rfind('}') - brace - 1), "\",")) {
        labels.emplace(label.substr(0, label.find('=')));
      }
    }
    labels.erase("le");
    const std::set<std::string> declared = absl::StrSplit(metric->labels, ", ", absl::SkipEmpty());
    EXPECT_EQ(labels, declared) << line;
  }
}

class MetricsTest : public ::testing::Test {
 protected:
  std::string Text() {
    const std::string text = metrics_.Serialize();
    ExpectDeclaredLabels(text);
    return text;
  }

  FakeClock clock_;
  Metrics metrics_{"1.2.3", &clock_};
};

TEST_F(MetricsTest, ShowsWhatTheEventsSay) {
  metrics_.OnWrite(WriteOf("j1", {StepEvent(10, 8, 2, 0.5)}, {{kSamplesCounter, 320}, {kStepsAppliedCounter, 8}}));
  v1::JobEvent evaluation;
  evaluation.mutable_evaluation()->set_loss(0.75);
  evaluation.mutable_evaluation()->set_accuracy(0.875);
  v1::JobEvent scale;
  scale.mutable_loss_scale_change()->set_phase("main");
  scale.mutable_loss_scale_change()->set_scale_after(131072);
  metrics_.OnWrite(WriteOf("j1", {evaluation, scale}));
  const std::string text = Text();
  for (const char* line :
       {"ampd_job_loss{job_id=\"j1\",phase=\"main\"} 0.5\n",
        "ampd_job_loss_scale{job_id=\"j1\",phase=\"main\"} 131072\n",
        "ampd_job_learning_rate{job_id=\"j1\",phase=\"main\"} 0.001\n",
        "ampd_job_gradient_norm{job_id=\"j1\",phase=\"main\"} 2.5\n",
        "ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 8\n",
        "ampd_job_steps_skipped_total{job_id=\"j1\",phase=\"main\"} 2\n", "ampd_job_samples_total{job_id=\"j1\"} 320\n",
        "ampd_job_samples_per_second{job_id=\"j1\"} 1000\n", "ampd_job_input_wait_seconds_total{job_id=\"j1\"} 0.25\n",
        "ampd_job_evaluation_accuracy_ratio{job_id=\"j1\"} 0.875\n", "ampd_steps_applied_total 8\n",
        "ampd_samples_total 320\n", "ampd_build_info{version=\"1.2.3\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(MetricsTest, CountersOfAJobNeverGoBack) {
  metrics_.OnWrite(WriteOf("j1", {StepEvent(100, 100, 0, 0.5)}));
  metrics_.OnWrite(WriteOf("j1", {StepEvent(51, 51, 0, 0.5)}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 100\n"));
  metrics_.OnWrite(WriteOf("j1", {StepEvent(101, 101, 0, 0.5)}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 101\n"));
}

// As when the daemon begins anew, and a worker goes back to its checkpoint: for Prometheus all that a counter lacks was
// never there, and what it has is new.
TEST_F(MetricsTest, CountersOfAJobDoNotGoBackWithTheDaemon) {
  metrics_.Restore({}, {}, {}, {{"j1", {{"main", {100, 7}}}}});
  EXPECT_THAT(Text(), Not(HasSubstr("job_id=\"j1\"")));
  metrics_.OnWrite(WriteOf("j1", {StepEvent(51, 45, 6, 0.5)}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 100\n"));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_skipped_total{job_id=\"j1\",phase=\"main\"} 7\n"));
  metrics_.OnWrite(WriteOf("j1", {StepEvent(109, 101, 8, 0.5)}));
  metrics_.OnWrite(WriteOf("j2", {StepEvent(3, 3, 0, 0.5)}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 101\n"));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_skipped_total{job_id=\"j1\",phase=\"main\"} 8\n"));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_steps_applied_total{job_id=\"j2\",phase=\"main\"} 3\n"));
}

TEST_F(MetricsTest, RefusedConnectionsAreCountedFromZero) {
  std::string text = Text();
  for (const char* series : {"grpc\",reason=\"client", "grpc\",reason=\"all", "workers\",reason=\"all",
                             "http\",reason=\"all", "http\",reason=\"descriptors", "http\",reason=\"answers"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("ampd_connections_refused_total{port=\"", series, "\"} 0\n")));
  }
  EXPECT_THAT(text, HasSubstr("ampd_accept_pauses_total{port=\"workers\"} 0\n"));
  metrics_.OnConnectionRefused("grpc", "client");
  metrics_.OnConnectionRefused("grpc", "client");
  metrics_.OnConnectionRefused("http", "answers");
  metrics_.OnAcceptPause("http");
  text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_connections_refused_total{port=\"grpc\",reason=\"client\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ampd_connections_refused_total{port=\"http\",reason=\"answers\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_connections_refused_total{port=\"http\",reason=\"all\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ampd_accept_pauses_total{port=\"http\"} 1\n"));
}

TEST_F(MetricsTest, StatesCountJobs) {
  metrics_.Restore({{kStepsAppliedCounter, 1000}, {"of another version", 5}},
                   {{v1::Job::QUEUED, 2}, {v1::Job::SUCCEEDED, 40}});
  metrics_.OnWrite(WriteOf(
      "j1", {StateEvent(v1::Job::STATE_UNSPECIFIED, v1::Job::QUEUED), StateEvent(v1::Job::QUEUED, v1::Job::STARTING)}));
  clock_.Advance(absl::Seconds(100));
  metrics_.SetQueue({{{v1::Job::RESOURCES, 3}}, clock_.Now()});
  metrics_.SetQueue({{{v1::Job::PRIORITY, 2}}, clock_.Now() - absl::Seconds(90)});
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_jobs{state=\"queued\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ampd_jobs{state=\"starting\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_jobs{state=\"succeeded\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("ampd_queue_depth 2\n"));
  EXPECT_THAT(text, HasSubstr("ampd_jobs_queued{reason=\"priority\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ampd_jobs_queued{reason=\"resources\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ampd_oldest_queued_seconds 90\n"));
  EXPECT_THAT(text, HasSubstr("ampd_steps_applied_total 1000\n"));
}

JobWrite InState(const std::string& job, v1::Job::State state, v1::Job::PauseReason reason) {
  JobWrite write = WriteOf(job, {});
  write.record.job.set_state(state);
  write.record.job.set_pause_reason(reason);
  return write;
}

TEST_F(MetricsTest, PausedJobsHaveTheirReason) {
  metrics_.Restore({}, {{v1::Job::PAUSED, 1}}, {{}, {{"before", v1::Job::NO_DISK_SPACE}}});
  metrics_.OnWrite(InState("j1", v1::Job::RUNNING, v1::Job::REQUESTED));
  EXPECT_THAT(Text(), HasSubstr("ampd_jobs_paused{reason=\"requested\"} 0\n")) << "it is about to be";
  for (const char* job : {"j1", "j1", "j2"}) metrics_.OnWrite(InState(job, v1::Job::PAUSED, v1::Job::REQUESTED));
  metrics_.OnWrite(InState("j3", v1::Job::PAUSED, v1::Job::NO_DISK_SPACE));
  EXPECT_THAT(Text(), HasSubstr("ampd_jobs_paused{reason=\"requested\"} 2\n"));
  EXPECT_THAT(Text(), HasSubstr("ampd_jobs_paused{reason=\"no_disk_space\"} 2\n"));
  // A call keeps it paused when there is room again.
  metrics_.OnWrite(InState("j3", v1::Job::PAUSED, v1::Job::REQUESTED));
  metrics_.OnWrite(InState("j1", v1::Job::QUEUED, v1::Job::PAUSE_REASON_UNSPECIFIED));
  metrics_.OnWrite(InState("before", v1::Job::QUEUED, v1::Job::PAUSE_REASON_UNSPECIFIED));
  EXPECT_THAT(Text(), HasSubstr("ampd_jobs_paused{reason=\"requested\"} 2\n"));
  EXPECT_THAT(Text(), HasSubstr("ampd_jobs_paused{reason=\"no_disk_space\"} 0\n"));
}

// The lines of a counter by user, in order.
std::vector<std::string> UseOf(Metrics* metrics) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(metrics->Serialize(), '\n')) {
    if (absl::StartsWith(line, absl::StrCat(kDeviceSecondsCounter, "{"))) lines.emplace_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(MetricsTest, UsersKeepTheirSeriesOverARestart) {
  std::map<std::string, double> stored;
  const auto keep = [&stored](const std::string& user) { stored[UserMark(user)] = 1; };
  metrics_.SetUserListener(keep);
  // The last by name come first.
  for (int i = 150; i > 0; --i) {
    const std::string name = UseCounter(kDeviceSecondsCounter, kUseful, absl::StrCat("user", 100 + i));
    stored[name] = i;
    metrics_.AddToCounters({{name, i}});
  }
  const std::vector<std::string> before = UseOf(&metrics_);
  EXPECT_EQ(before.size(), 101u);
  EXPECT_THAT(before, Contains(HasSubstr("user=\"(other)\"} 1275")));
  EXPECT_THAT(before, Contains(HasSubstr("user=\"user250\"} 150")));
  Metrics after("1.2.3", &clock_);
  after.SetUserListener(keep);
  after.Restore(stored, {});
  EXPECT_EQ(UseOf(&after), before);
}

// `event` happened `ago`.
v1::JobEvent At(const FakeClock& clock, absl::Duration ago, v1::JobEvent event) {
  const int64_t nanos = absl::ToUnixNanos(clock.Now() - ago);
  event.mutable_time()->set_seconds(nanos / 1'000'000'000);
  event.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return event;
}

TEST_F(MetricsTest, AQueueIsMeasuredOverARestart) {
  metrics_.Restore({}, {{v1::Job::QUEUED, 1}}, {{{"j1", clock_.Now() - absl::Seconds(100)}}, {}});
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(20), StateEvent(v1::Job::QUEUED, v1::Job::STARTING)),
                                  At(clock_, absl::Seconds(18), StateEvent(v1::Job::STARTING, v1::Job::RUNNING))}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_queue_seconds_sum 80\n"));
}

TEST_F(MetricsTest, AStartEndsWithTheFirstStep) {
  clock_.Advance(absl::Hours(1));
  metrics_.OnWrite(
      WriteOf("j1", {At(clock_, absl::Seconds(30), StateEvent(v1::Job::STATE_UNSPECIFIED, v1::Job::QUEUED)),
                     At(clock_, absl::Seconds(20), StateEvent(v1::Job::QUEUED, v1::Job::STARTING)),
                     At(clock_, absl::Seconds(18), StateEvent(v1::Job::STARTING, v1::Job::RUNNING))}));
  std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_job_queue_seconds_sum 10\n"));
  EXPECT_THAT(text, Not(HasSubstr("ampd_job_start_seconds_count")));
  // Sent eight seconds after the start: of four steps, the last three of which took a second each.
  v1::JobEvent first = At(clock_, absl::Seconds(12), StepEvent(4, 4, 0, 0.5));
  first.mutable_step()->set_first_step(1);
  first.mutable_step()->set_step_seconds(1);
  metrics_.OnWrite(WriteOf("j1", {first, At(clock_, absl::Seconds(11), StepEvent(5, 5, 0, 0.5))}));
  text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_job_start_seconds_sum 5\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_start_seconds_count 1\n"));
}

TEST_F(MetricsTest, EachAttemptStartsOnceAndOneThatTakesNoStepDoesNot) {
  clock_.Advance(absl::Hours(1));
  const auto starts = [&](int64_t ago) {
    return std::vector<v1::JobEvent>{At(clock_, absl::Seconds(ago), StateEvent(v1::Job::QUEUED, v1::Job::STARTING)),
                                     At(clock_, absl::Seconds(ago), StateEvent(v1::Job::STARTING, v1::Job::RUNNING))};
  };
  metrics_.OnWrite(WriteOf("j1", starts(100)));
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(90), StateEvent(v1::Job::RUNNING, v1::Job::RETRYING)),
                                  // Of the lost attempt, and late.
                                  At(clock_, absl::Seconds(89), StepEvent(1, 1, 0, 0.5)),
                                  At(clock_, absl::Seconds(80), StateEvent(v1::Job::RETRYING, v1::Job::QUEUED))}));
  EXPECT_THAT(Text(), Not(HasSubstr("ampd_job_start_seconds_count")));
  metrics_.OnWrite(WriteOf("j1", starts(70)));
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(67), StepEvent(1, 1, 0, 0.5))}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_start_seconds_sum 3\n"));
  // The daemon went and came back: the worker that it takes up again began nothing.
  metrics_.OnWrite(WriteOf("j2", {At(clock_, absl::Seconds(60), StateEvent(v1::Job::RUNNING, v1::Job::RECOVERING)),
                                  At(clock_, absl::Seconds(50), StateEvent(v1::Job::RECOVERING, v1::Job::RUNNING)),
                                  At(clock_, absl::Seconds(40), StepEvent(1000, 1000, 0, 0.5))}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_start_seconds_count 1\n"));
}

TEST_F(MetricsTest, ProgressCheckpointsAndOverflows) {
  clock_.Advance(absl::Hours(1));
  v1::JobEvent checkpoint, skip;
  checkpoint.mutable_checkpoint()->set_write_seconds(0.5);
  checkpoint.mutable_checkpoint()->set_size_bytes(1000);
  skip.mutable_overflow_skip()->set_phase("main");
  skip.mutable_overflow_skip()->set_stage(v1::OverflowSkip::GRADIENT);
  skip.mutable_overflow_skip()->set_kind(v1::OverflowSkip::KIND_INF);
  metrics_.OnWrite(WriteOf(
      "j1",
      {At(clock_, absl::Seconds(2), StepEvent(1, 1, 0, 0.5)), skip, skip, At(clock_, absl::Seconds(1), checkpoint)},
      {{kCheckpointBytesCounter, 1000}}));
  const std::string text = Text();
  EXPECT_THAT(text,
              HasSubstr("ampd_job_overflows_total{job_id=\"j1\",kind=\"inf\",phase=\"main\",stage=\"gradient\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_checkpoint_seconds{job_id=\"j1\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_checkpoint_bytes{job_id=\"j1\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("ampd_checkpoint_bytes_total 1000\n"));
  EXPECT_THAT(text, HasSubstr("ampd_checkpoint_write_seconds_count 1\n"));
  // Two events had a time: three seconds of lag in all.
  EXPECT_THAT(text, HasSubstr("ampd_event_lag_seconds_sum 3\n"));
  const auto value = [&](const std::string& name) {
    return std::stod(text.substr(text.find("\n" + name) + name.size() + 1));
  };
  EXPECT_NEAR(value("ampd_job_last_progress_timestamp_seconds{job_id=\"j1\"} "),
              absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()) - 2, 1e-3);
  EXPECT_NEAR(value("ampd_job_last_checkpoint_timestamp_seconds{job_id=\"j1\"} "),
              absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()) - 1, 1e-3);
}

// An attempt that resumes says what the one before wrote.
TEST_F(MetricsTest, ACheckpointToldOfAgainIsNotOneMore) {
  v1::JobEvent event = At(clock_, absl::Seconds(1), v1::JobEvent());
  v1::CheckpointSaved& checkpoint = *event.mutable_checkpoint();
  checkpoint.set_size_bytes(1000);
  checkpoint.set_already_written(true);
  v1::CheckpointSaved::Phase& phase = *checkpoint.add_phases();
  phase.set_name("main");
  phase.set_steps_applied(40);
  phase.set_steps_skipped(2);
  metrics_.OnWrite(WriteOf("j1", {event}));
  const std::string text = Text();
  EXPECT_THAT(text, Not(HasSubstr("ampd_checkpoint_write_seconds_count")));
  EXPECT_THAT(text, Not(HasSubstr("ampd_job_checkpoint_seconds")));
  EXPECT_THAT(text, Not(HasSubstr("ampd_job_last_checkpoint_timestamp_seconds")));
  EXPECT_THAT(text, HasSubstr("ampd_job_checkpoint_bytes{job_id=\"j1\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_steps_applied_total{job_id=\"j1\",phase=\"main\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_steps_skipped_total{job_id=\"j1\",phase=\"main\"} 2\n"));
}

// What AmpdJobWithoutProgress and AmpdCheckpointOld take for the age of progress and checkpoints, in seconds.
TEST_F(MetricsTest, ARunSetsTheClocksOfProgressAndCheckpoints) {
  clock_.Advance(absl::Hours(10));
  const auto ages = [&] {
    const std::string text = Text();
    std::vector<int64_t> found;
    for (const std::string name : {"last_progress", "last_checkpoint"}) {
      const std::string series = "\nampd_job_" + name + "_timestamp_seconds{job_id=\"j1\"} ";
      const size_t at = text.find(series);
      const double time = at == std::string::npos ? 0 : std::stod(text.substr(at + series.size()));
      found.push_back(std::llround(absl::ToUnixSeconds(clock_.Now()) - time));
    }
    return found;
  };
  // It hangs before its first step and its first checkpoint.
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(700), StateEvent(v1::Job::STARTING, v1::Job::RUNNING))}));
  EXPECT_THAT(ages(), ElementsAre(700, 700));
  v1::JobEvent checkpoint;
  checkpoint.mutable_checkpoint();
  metrics_.OnWrite(WriteOf(
      "j1", {At(clock_, absl::Seconds(600), StepEvent(1, 1, 0, 0.5)), At(clock_, absl::Seconds(500), checkpoint),
             At(clock_, absl::Seconds(400), StateEvent(v1::Job::RUNNING, v1::Job::PAUSED))}));
  EXPECT_THAT(ages(), ElementsAre(600, 500));
  // It went on after hours.
  clock_.Advance(absl::Hours(5));
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(20), StateEvent(v1::Job::QUEUED, v1::Job::STARTING))}));
  EXPECT_THAT(ages(), ElementsAre(18600, 18500));
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(10), StateEvent(v1::Job::STARTING, v1::Job::RUNNING))}));
  EXPECT_THAT(ages(), ElementsAre(10, 10));
  // It was to make room, and ran on when no checkpoint came.
  clock_.Advance(absl::Minutes(20));
  metrics_.OnWrite(WriteOf("j1", {At(clock_, absl::Seconds(60), StateEvent(v1::Job::RUNNING, v1::Job::PREEMPTING)),
                                  At(clock_, absl::Seconds(30), StateEvent(v1::Job::PREEMPTING, v1::Job::RUNNING))}));
  EXPECT_THAT(ages(), ElementsAre(1210, 1210));
  // It takes no step, but evaluates.
  metrics_.OnEvaluating("j1");
  EXPECT_THAT(ages(), ElementsAre(0, 1210));
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(ages(), ElementsAre(60, 1270));
}

TEST_F(MetricsTest, AJobThatNeverRanHasNoProgressByItsEvaluations) {
  metrics_.OnEvaluating("j1");
  EXPECT_THAT(Text(), Not(HasSubstr("j1")));
}

TEST_F(MetricsTest, WhatAlertsCompareWith) {
  JobWrite queued = WriteOf("j1", {StateEvent(v1::Job::STATE_UNSPECIFIED, v1::Job::QUEUED)});
  metrics_.OnWrite(queued);
  EXPECT_THAT(Text(), Not(HasSubstr("job_id=\"j1\"")));
  JobWrite write = WriteOf("j1", {StateEvent(v1::Job::STARTING, v1::Job::RUNNING)});
  write.record.job.mutable_spec()->mutable_checkpoint()->set_every_seconds(300);
  v1::LossScaleSpec& scale = *write.record.job.mutable_spec()->mutable_precision()->mutable_loss_scale();
  scale.set_kind(v1::LossScaleSpec::DYNAMIC);
  scale.set_min(2);
  metrics_.OnWrite(write);
  std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_job_running{job_id=\"j1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_job_checkpoint_interval_seconds{job_id=\"j1\"} 300\n"));
  EXPECT_THAT(text, Not(HasSubstr("ampd_job_loss_scale_floor")));
  metrics_.OnWrite(WriteOf("j1", {StateEvent(v1::Job::RUNNING, v1::Job::PAUSED)}));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_running{job_id=\"j1\"} 0\n"));
  // One that measures writes no checkpoints, whatever its defaults say.
  JobWrite bench = WriteOf("j2", {StateEvent(v1::Job::STARTING, v1::Job::RUNNING)});
  bench.record.job.mutable_spec()->mutable_checkpoint()->set_every_seconds(300);
  bench.record.job.mutable_spec()->mutable_bench();
  metrics_.OnWrite(bench);
  EXPECT_THAT(Text(), Not(HasSubstr("ampd_job_checkpoint_interval_seconds{job_id=\"j2\"}")));
  // Gone when it is over, back when it goes on after all.
  metrics_.OnWrite(WriteOf("j1", {StateEvent(v1::Job::RUNNING, v1::Job::FAILED)}));
  clock_.Advance(absl::Minutes(4));
  metrics_.OnWrite(WriteOf("j1", {StateEvent(v1::Job::FAILED, v1::Job::QUEUED)}));
  clock_.Advance(absl::Minutes(4));
  EXPECT_THAT(Text(), HasSubstr("ampd_job_running{job_id=\"j1\"} 0\n"));
}

TEST_F(MetricsTest, FloorsOfLossScales) {
  const auto runs = [&](const std::string& id, v1::PrecisionSpec::Mode mode, const std::string& scale) {
    JobWrite write = WriteOf(id, {StateEvent(v1::Job::STARTING, v1::Job::RUNNING)});
    v1::PrecisionSpec& precision = *write.record.job.mutable_spec()->mutable_precision();
    precision.set_mode(mode);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(scale, precision.mutable_loss_scale()));
    metrics_.OnWrite(write);
  };
  // The scales of phases "a" and "b", and the floors that are told; -1: none.
  const auto floors = [&](const std::string& id, double a, double b) {
    v1::JobEvent event;
    for (const auto& [name, scale] : {std::pair("a", a), std::pair("b", b)}) {
      v1::PhaseReport& phase = *event.mutable_step()->add_phases();
      phase.set_name(name);
      phase.set_loss_scale(scale);
    }
    metrics_.OnWrite(WriteOf(id, {event}));
    std::vector<double> told;
    for (const char* name : {"a", "b"}) {
      const std::string series = absl::StrCat("ampd_job_loss_scale_floor{job_id=\"", id, "\",phase=\"", name, "\"} ");
      const std::string text = Text();
      const size_t at = text.find(series);
      told.push_back(at == std::string::npos ? -1 : std::stod(text.substr(at + series.size())));
    }
    return told;
  };
  runs("fails", v1::PrecisionSpec::FP16, "kind: DYNAMIC min: 1");
  EXPECT_THAT(floors("fails", 1, 8), ElementsAre(1, 1));
  runs("falls", v1::PrecisionSpec::FP16, "kind: DYNAMIC min: 1 on_floor: FALLBACK_BF16");
  EXPECT_THAT(floors("falls", 2, 4), ElementsAre(1, 1));
  EXPECT_THAT(floors("falls", 1, 4), ElementsAre(0, 1)) << "in BF16 now";
  // Also to a daemon that begins.
  runs("fell", v1::PrecisionSpec::FP16, "kind: DYNAMIC min: 2 on_floor: FALLBACK_BF16");
  EXPECT_THAT(floors("fell", 1, 4), ElementsAre(0, 2));
  runs("auto", v1::PrecisionSpec::AUTO, "");
  EXPECT_THAT(floors("auto", 1, 1), ElementsAre(0, 0)) << "it took a mode that scales no loss";
  EXPECT_THAT(floors("auto", 4, 8), ElementsAre(1, 1));
  runs("bf16", v1::PrecisionSpec::BF16, "kind: NONE");
  EXPECT_THAT(floors("bf16", 1, 1), ElementsAre(-1, -1));
}

TEST_F(MetricsTest, CallsAndWhatIsSampled) {
  metrics_.OnRpc("GetJob", "OK", 0.002);
  metrics_.OnRpc("GetJob", "NOT_FOUND", 0.001);
  metrics_.OnRpc("WatchJob", "CANCELLED", -1);
  metrics_.OnHttp("/api/v1/jobs/{}", 404);
  metrics_.OnHttp("", 404);
  metrics_.SetSampler([] { return SampledFigures{7, 9, 1 << 20, {}, 3}; });
  Text();
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_rpcs_total{code=\"NOT_FOUND\",method=\"GetJob\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_rpcs_total{code=\"CANCELLED\",method=\"WatchJob\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_rpc_seconds_count{method=\"GetJob\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("ampd_rpc_seconds_count{method=\"WatchJob\"}")));
  EXPECT_THAT(text, HasSubstr("ampd_http_requests_total{code=\"404\",route=\"/api/v1/jobs/{}\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_watchers 7\n"));
  EXPECT_THAT(text, HasSubstr("ampd_watch_store_reads_total 9\n"));
  EXPECT_THAT(text, HasSubstr("ampd_database_damaged_pages 3\n"));
  EXPECT_THAT(text, HasSubstr("ampd_state_dir_free_bytes 1048576\n"));
}

TEST_F(MetricsTest, SeriesOfAJobGoFiveMinutesAfterItsEnd) {
  metrics_.OnWrite(WriteOf("j1", {StepEvent(1, 1, 0, 0.5)}));
  metrics_.OnWrite(WriteOf("j2", {StepEvent(1, 1, 0, 0.5)}));
  clock_.Advance(absl::Hours(1));
  metrics_.OnWrite(WriteOf("j1", {StateEvent(v1::Job::RUNNING, v1::Job::SUCCEEDED)}));
  clock_.Advance(absl::Minutes(5) - absl::Seconds(1));
  EXPECT_THAT(Text(), HasSubstr("job_id=\"j1\""));
  clock_.Advance(absl::Seconds(1));
  const std::string text = Text();
  EXPECT_THAT(text, Not(HasSubstr("job_id=\"j1\"")));
  EXPECT_THAT(text, HasSubstr("job_id=\"j2\""));
}

TEST_F(MetricsTest, Devices) {
  v1::Device device;
  device.set_id("cpu-0");
  device.set_utilization(0.5);
  device.set_memory_total_bytes(1 << 20);
  device.set_job_id("j1");
  metrics_.SetDevices({device});
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_device_utilization_ratio{device=\"cpu-0\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("ampd_device_busy{device=\"cpu-0\"} 1\n"));
}

TEST_F(MetricsTest, WhatAGpuDoesNotTellHasNoSeries) {
  v1::Device gpu;
  gpu.set_id("GPU-a");
  gpu.set_name("NVIDIA H200");
  gpu.set_kind(v1::Device::CUDA);
  gpu.mutable_gpu()->set_driver_version("580.95.05");
  metrics_.SetDevices({gpu});
  std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_gpu_info{compute_capability=\"\",cuda_driver_version=\"\",device=\"GPU-a\","
                              "driver_version=\"580.95.05\",name=\"NVIDIA H200\",pci_bus_id=\"\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ampd_device_busy{device=\"GPU-a\"} 0\n"));
  for (const char* name : {"ampd_device_utilization", "ampd_device_memory", "ampd_gpu_power", "ampd_gpu_energy",
                           "ampd_gpu_ecc", "ampd_gpu_tensor", "ampd_gpu_throttle", "ampd_gpu_foreign"}) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
  }
}

TEST_F(MetricsTest, AGpuTellsItsFiguresUntilItIsLost) {
  v1::Device device;
  device.set_id("GPU-a");
  device.set_utilization(0.75);
  v1::GpuStatus& gpu = *device.mutable_gpu();
  gpu.set_power_watts(350.5);
  gpu.set_energy_joules(1000);
  gpu.set_tensor_active(0.425);
  gpu.set_throttled(true);
  gpu.add_throttle_reasons("SW_POWER_CAP");
  gpu.set_ecc_corrected_errors(0);
  gpu.set_ecc_uncorrected_errors(2);
  gpu.set_process_count(0);
  v1::XidError& xid = *gpu.add_xid_errors();
  xid.set_xid(79);
  xid.set_class_(v1::XidError::HARDWARE);
  xid.set_count(3);
  metrics_.SetDevices({device});
  std::string text = Text();
  for (const char* line :
       {"ampd_device_utilization_ratio{device=\"GPU-a\"} 0.75\n", "ampd_gpu_power_watts{device=\"GPU-a\"} 350.5\n",
        "ampd_gpu_energy_joules_total{device=\"GPU-a\"} 1000\n",
        "ampd_gpu_tensor_active_ratio{device=\"GPU-a\"} 0.425\n", "ampd_gpu_throttled{device=\"GPU-a\"} 1\n",
        "ampd_gpu_throttle_reason{device=\"GPU-a\",reason=\"sw_power_cap\"} 1\n",
        "ampd_gpu_ecc_errors_total{device=\"GPU-a\",type=\"corrected\"} 0\n",
        "ampd_gpu_ecc_errors_total{device=\"GPU-a\",type=\"uncorrected\"} 2\n",
        "ampd_gpu_xid_errors_total{class=\"hardware\",device=\"GPU-a\",xid=\"79\"} 3\n",
        "ampd_gpu_foreign_processes{device=\"GPU-a\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  // The driver was loaded anew.
  gpu.set_energy_joules(5);
  gpu.set_throttled(false);
  gpu.clear_throttle_reasons();
  metrics_.SetDevices({device});
  text = Text();
  EXPECT_THAT(text, HasSubstr("ampd_gpu_energy_joules_total{device=\"GPU-a\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("ampd_gpu_throttled{device=\"GPU-a\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("ampd_gpu_throttle_reason")));
  v1::Device lost;
  lost.set_id("GPU-a");
  lost.mutable_gpu();
  lost.add_conditions()->set_kind(v1::DeviceCondition::GPU_LOST);
  lost.mutable_conditions(0)->set_blocks_jobs(true);
  lost.add_conditions()->set_kind(v1::DeviceCondition::HARDWARE_ERROR);
  metrics_.SetDevices({lost});
  text = Text();
  EXPECT_THAT(text,
              HasSubstr("ampd_device_condition{blocks_jobs=\"true\",condition=\"gpu_lost\",device=\"GPU-a\"} 1\n"));
  // An error that was contained.
  EXPECT_THAT(text, HasSubstr("{blocks_jobs=\"false\",condition=\"hardware_error\",device=\"GPU-a\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("ampd_gpu_power")));
  EXPECT_THAT(text, Not(HasSubstr("ampd_gpu_energy")));
}

TEST_F(MetricsTest, EveryMetricIsDeclaredOnceAndNamedByTheRules) {
  std::set<std::string> names;
  for (const Metric* metric : AllMetrics()) {
    EXPECT_TRUE(names.insert(metric->name).second) << metric->name;
    EXPECT_THAT(metric->name, ::testing::StartsWith("ampd_"));
    // Of Prometheus: the target's name and address.
    EXPECT_THAT(std::vector<std::string>(absl::StrSplit(metric->labels, ", ")), Not(Contains(AnyOf("job", "instance"))))
        << metric->name;
    const bool total = ::testing::Matches(::testing::EndsWith("_total"))(metric->name);
    EXPECT_EQ(total, metric->type == Metric::kCounter) << metric->name;
  }
}

TEST_F(MetricsTest, EveryMetricHasAnEndedHelpAndTheUnitOfItsName) {
  for (const Metric* metric : AllMetrics()) EXPECT_THAT(metric->help, ::testing::EndsWith(".")) << metric->name;
  EXPECT_EQ(UnitOfMetric("ampd_job_last_progress_timestamp_seconds"), "seconds since 1970");
  EXPECT_EQ(UnitOfMetric("ampd_input_wait_seconds_total"), "seconds");
  EXPECT_EQ(UnitOfMetric("ampd_cost_usd_total"), "US dollars");
  EXPECT_EQ(UnitOfMetric("ampd_job_samples_per_second"), "per second");
  EXPECT_EQ(UnitOfMetric("ampd_jobs"), "");
}

TEST(MetricsReferenceTest, IsWhatTheDocumentsHave) {
  std::ifstream file("docs/metrics.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), MetricsReference()) << "docs/metrics.md is old: ninja -C build/dev ampd_references";
}

TEST_F(MetricsTest, PromtoolFindsNothingToSay) {
  if (system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool (Debian: prometheus) is not installed";
  metrics_.OnWrite(
      WriteOf("j1", {StepEvent(10, 8, 2, std::numeric_limits<double>::quiet_NaN())}, {{kSamplesCounter, 320}}));
  v1::JobEvent evaluation;
  evaluation.mutable_evaluation()->set_accuracy(0.875);
  metrics_.OnWrite(WriteOf("j1", {evaluation}));
  metrics_.OnCommit(0.002);
  v1::Device device;
  device.set_id("cpu-0");
  metrics_.SetDevices({device});
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  fputs(Text().c_str(), promtool);
  EXPECT_EQ(pclose(promtool), 0) << "its complaints are above";
}

}  // namespace
}  // namespace ampd
