#include "server/metrics/job_series.h"

#include <prometheus/registry.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/server/jobs/fake_clock.h"

namespace ampd {
namespace {

class JobSeriesTest : public testing::Test {
 protected:
  JobSeriesTest() {
    for (const Metric* metric : AllMetrics()) {
      if (metric->type == Metric::kGauge) {
        gauges_[metric] = &prometheus::BuildGauge().Name(metric->name).Register(registry_);
      } else if (metric->type == Metric::kCounter) {
        counters_[metric] = &prometheus::BuildCounter().Name(metric->name).Register(registry_);
      }
    }
  }

  void ChangeState(const std::string& job, v1::Job::State from, v1::Job::State to) {
    JobWrite write;
    write.record.job.set_id(job);
    v1::StateChange& change = *write.events.emplace_back().mutable_state_change();
    change.set_from(from);
    change.set_to(to);
    series_.OnWrite(write);
  }
  void RunToTheEnd(const std::string& job) {
    ChangeState(job, v1::Job::STARTING, v1::Job::RUNNING);
    ChangeState(job, v1::Job::RUNNING, v1::Job::SUCCEEDED);
  }
  // Jobs that have any.
  size_t Jobs() const { return gauges_.at(&kJobRunning)->Collect().empty() ? 0 : Running().metric.size(); }
  prometheus::MetricFamily Running() const { return gauges_.at(&kJobRunning)->Collect().front(); }

  FakeClock clock_;
  prometheus::Registry registry_;
  JobSeries::Gauges gauges_;
  JobSeries::Counters counters_;
  JobSeries series_{&gauges_, &counters_, &clock_};
};

TEST_F(JobSeriesTest, OnesOfEndedJobsGoThoughNobodyEverAsks) {
  ChangeState("endless", v1::Job::STARTING, v1::Job::RUNNING);
  for (int i = 0; i < 1000; ++i) RunToTheEnd(absl::StrCat("early-", i));
  EXPECT_EQ(Jobs(), 1001u);
  clock_.Advance(absl::Minutes(4));
  RunToTheEnd("late");
  EXPECT_EQ(Jobs(), 1002u) << "they stay for five minutes";
  clock_.Advance(absl::Minutes(2));
  RunToTheEnd("later");
  EXPECT_EQ(Jobs(), 3u);
}

// A worker names them.
TEST_F(JobSeriesTest, PhasesAreBounded) {
  ChangeState("job", v1::Job::STARTING, v1::Job::RUNNING);
  for (int i = 0; i < 200; ++i) {
    const std::string name = absl::StrCat("phase-", i);
    JobWrite write;
    write.record.job.set_id("job");
    v1::StepReport& report = *write.events.emplace_back().mutable_step();
    v1::PhaseReport& first = *report.add_phases();
    first.set_name("phase-0");
    first.set_loss(i);
    report.add_phases()->set_name(name);
    write.events.emplace_back().mutable_overflow_skip()->set_phase(name);
    write.events.emplace_back().mutable_loss_scale_change()->set_phase(name);
    write.events.emplace_back().mutable_checkpoint()->add_phases()->set_name(name);
    series_.OnWrite(write);
  }
  for (const Metric* metric : {&kJobLoss, &kJobLossScale, &kJobLearningRate, &kJobGradientNorm}) {
    EXPECT_EQ(gauges_.at(metric)->Collect().front().metric.size(), 64u) << metric->name;
  }
  for (const Metric* metric : {&kJobStepsApplied, &kJobStepsSkipped, &kJobOverflows}) {
    EXPECT_EQ(counters_.at(metric)->Collect().front().metric.size(), 64u) << metric->name;
  }
  double loss = 0;
  for (const prometheus::ClientMetric& one : gauges_.at(&kJobLoss)->Collect().front().metric) {
    loss += one.gauge.value;
  }
  EXPECT_EQ(loss, 199) << "one that has a series keeps it";
}

}  // namespace
}  // namespace ampd
