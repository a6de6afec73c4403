#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "server/metrics/definitions.h"
#include "server/metrics/device_series.h"

namespace ampd {
namespace {

constexpr absl::Duration kSeriesLife = absl::Minutes(5);

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

std::string StateLabel(v1::Job::State state) { return absl::AsciiStrToLower(v1::Job::State_Name(state)); }

bool IsOver(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

}  // namespace

class Metrics::Impl {
 public:
  Impl(const std::string& version, const Clock* clock);

  void Restore(const std::map<std::string, double>& counters, const std::map<v1::Job::State, int64_t>& job_counts);
  void OnWrite(const JobWrite& write);
  void OnStateChange(const std::string& job, const v1::StateChange& change);
  void OnStep(const std::string& job, const v1::StepReport& step);
  void OnEvaluation(const std::string& job, const v1::Evaluation& evaluation);
  std::string Serialize();

  std::mutex mutex;
  prometheus::Registry registry;
  Histogram* commit = nullptr;
  Gauge* queue_depth = nullptr;
  DeviceSeries devices{&gauges_, &counters_};

 private:
  // The series of one job, so that they can go together.
  struct JobSeries {
    std::map<std::pair<const Metric*, std::string>, Gauge*> gauges;
    std::map<std::pair<const Metric*, std::string>, Counter*> counters;
    // When they go; far away while the job is under way.
    absl::Duration expires = absl::InfiniteDuration();
  };

  Gauge& JobGauge(const std::string& job, const Metric& metric, const std::string& phase);
  Counter& JobCounter(const std::string& job, const Metric& metric, const std::string& phase);
  // Counters follow a figure that counts from the job's start and may go back when training does.
  void RaiseTo(const std::string& job, const Metric& metric, const std::string& phase, double total);
  void AddToFleet(const std::string& name, double delta);
  void DropExpired();
  void Drop(const std::string& job, JobSeries& series);

  const Clock* const clock_;
  const absl::Duration start_;
  std::unordered_map<const Metric*, Family<Gauge>*> gauges_;
  std::unordered_map<const Metric*, Family<Counter>*> counters_;
  std::map<std::string, Counter*> fleet_;
  std::map<v1::Job::State, Gauge*> states_;
  std::unordered_map<std::string, JobSeries> jobs_;
  Gauge* uptime_ = nullptr;
};

Metrics::Impl::Impl(const std::string& version, const Clock* clock) : clock_(clock), start_(clock->Monotonic()) {
  for (const Metric* metric : AllMetrics()) {
    if (metric->type == Metric::kGauge) {
      gauges_[metric] = &prometheus::BuildGauge().Name(metric->name).Help(metric->help).Register(registry);
    } else if (metric->type == Metric::kCounter) {
      counters_[metric] = &prometheus::BuildCounter().Name(metric->name).Help(metric->help).Register(registry);
    }
  }
  commit = &prometheus::BuildHistogram()
                .Name(kStoreCommitSeconds.name)
                .Help(kStoreCommitSeconds.help)
                .Register(registry)
                .Add({}, Histogram::BucketBoundaries{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5});
  gauges_[&kBuildInfo]->Add({{"version", version}}).Set(1);
  uptime_ = &gauges_[&kUptime]->Add({});
  queue_depth = &gauges_[&kQueueDepth]->Add({});
  for (int state = v1::Job::QUEUED; state <= v1::Job::CANCELLED; ++state) {
    const auto value = static_cast<v1::Job::State>(state);
    states_[value] = &gauges_[&kJobs]->Add({{"state", StateLabel(value)}});
  }
  for (const Metric* metric : FleetCounters()) fleet_[metric->name] = &counters_[metric]->Add({});
}

void Metrics::Impl::Restore(const std::map<std::string, double>& counters,
                            const std::map<v1::Job::State, int64_t>& job_counts) {
  for (const auto& [name, value] : counters) AddToFleet(name, value);
  for (const auto& [state, count] : job_counts) {
    if (states_.count(state) > 0) states_[state]->Set(static_cast<double>(count));
  }
}

void Metrics::Impl::AddToFleet(const std::string& name, double delta) {
  const auto counter = fleet_.find(name);
  if (counter != fleet_.end() && delta > 0) counter->second->Increment(delta);
}

Gauge& Metrics::Impl::JobGauge(const std::string& job, const Metric& metric, const std::string& phase) {
  Gauge*& gauge = jobs_[job].gauges[{&metric, phase}];
  Labels labels = {{"job", job}};
  if (!phase.empty()) labels["phase"] = phase;
  if (gauge == nullptr) gauge = &gauges_[&metric]->Add(labels);
  return *gauge;
}

Counter& Metrics::Impl::JobCounter(const std::string& job, const Metric& metric, const std::string& phase) {
  Counter*& counter = jobs_[job].counters[{&metric, phase}];
  Labels labels = {{"job", job}};
  if (!phase.empty()) labels["phase"] = phase;
  if (counter == nullptr) counter = &counters_[&metric]->Add(labels);
  return *counter;
}

void Metrics::Impl::RaiseTo(const std::string& job, const Metric& metric, const std::string& phase, double total) {
  Counter& counter = JobCounter(job, metric, phase);
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

void Metrics::Impl::OnWrite(const JobWrite& write) {
  const std::string& job = write.record.job.id();
  for (const auto& [name, delta] : write.counter_deltas) AddToFleet(name, delta);
  for (const v1::JobEvent& event : write.events) {
    if (event.has_state_change()) OnStateChange(job, event.state_change());
    if (event.has_step()) OnStep(job, event.step());
    if (event.has_evaluation()) OnEvaluation(job, event.evaluation());
    if (event.has_overflow_skip()) {
      JobGauge(job, kJobLossScale, event.overflow_skip().phase()).Set(event.overflow_skip().scale_after());
    }
    if (event.has_loss_scale_change()) {
      JobGauge(job, kJobLossScale, event.loss_scale_change().phase()).Set(event.loss_scale_change().scale_after());
    }
  }
  if (jobs_.count(job) == 0) return;
  const auto samples = write.counter_deltas.find(kSamplesCounter);
  if (samples != write.counter_deltas.end()) JobCounter(job, kJobSamples, "").Increment(samples->second);
}

void Metrics::Impl::OnStateChange(const std::string& job, const v1::StateChange& change) {
  if (states_.count(change.from()) > 0) states_[change.from()]->Decrement();
  if (states_.count(change.to()) > 0) states_[change.to()]->Increment();
  if (!IsOver(change.to())) return;
  const auto series = jobs_.find(job);
  if (series != jobs_.end()) series->second.expires = clock_->Monotonic() + kSeriesLife;
}

void Metrics::Impl::OnStep(const std::string& job, const v1::StepReport& step) {
  for (const v1::PhaseReport& phase : step.phases()) {
    JobGauge(job, kJobLoss, phase.name()).Set(phase.loss());
    JobGauge(job, kJobLossScale, phase.name()).Set(phase.loss_scale());
    JobGauge(job, kJobLearningRate, phase.name()).Set(phase.learning_rate());
    JobGauge(job, kJobGradientNorm, phase.name()).Set(phase.gradient_norm());
    RaiseTo(job, kJobStepsApplied, phase.name(), static_cast<double>(phase.steps_applied()));
    RaiseTo(job, kJobStepsSkipped, phase.name(), static_cast<double>(phase.steps_skipped()));
  }
  JobGauge(job, kJobSamplesPerSecond, "").Set(step.samples_per_second());
  if (step.has_step_seconds()) JobGauge(job, kJobStepSeconds, "").Set(step.step_seconds());
  if (step.has_model_flops_utilization()) {
    JobGauge(job, kJobFlopsUtilization, "").Set(step.model_flops_utilization());
  }
  if (step.input_wait_seconds() > 0) JobCounter(job, kJobInputWait, "").Increment(step.input_wait_seconds());
}

void Metrics::Impl::OnEvaluation(const std::string& job, const v1::Evaluation& evaluation) {
  JobGauge(job, kJobEvaluationLoss, "").Set(evaluation.loss());
  if (evaluation.has_accuracy()) JobGauge(job, kJobEvaluationAccuracy, "").Set(evaluation.accuracy());
}

void Metrics::Impl::Drop(const std::string& /*job*/, JobSeries& series) {
  for (const auto& [key, gauge] : series.gauges) gauges_[key.first]->Remove(gauge);
  for (const auto& [key, counter] : series.counters) counters_[key.first]->Remove(counter);
}

void Metrics::Impl::DropExpired() {
  const absl::Duration now = clock_->Monotonic();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->second.expires > now) {
      ++job;
      continue;
    }
    Drop(job->first, job->second);
    job = jobs_.erase(job);
  }
}

std::string Metrics::Impl::Serialize() {
  DropExpired();
  uptime_->Set(absl::ToDoubleSeconds(clock_->Monotonic() - start_));
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  // A family without a series is no metric yet.
  families.erase(std::remove_if(families.begin(), families.end(), [](const auto& f) { return f.metric.empty(); }),
                 families.end());
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

Metrics::Metrics(const std::string& version, const Clock* clock) : impl_(std::make_unique<Impl>(version, clock)) {}
Metrics::~Metrics() = default;

void Metrics::Restore(const std::map<std::string, double>& counters,
                      const std::map<v1::Job::State, int64_t>& job_counts) {
  std::lock_guard lock(impl_->mutex);
  impl_->Restore(counters, job_counts);
}

void Metrics::OnWrite(const JobWrite& write) {
  std::lock_guard lock(impl_->mutex);
  impl_->OnWrite(write);
}

void Metrics::OnCommit(double seconds) { impl_->commit->Observe(seconds); }

void Metrics::SetQueueDepth(int64_t jobs) { impl_->queue_depth->Set(static_cast<double>(jobs)); }

void Metrics::SetDevices(const std::vector<v1::Device>& devices) {
  std::lock_guard lock(impl_->mutex);
  impl_->devices.Set(devices);
}

std::string Metrics::Serialize() {
  std::lock_guard lock(impl_->mutex);
  return impl_->Serialize();
}

}  // namespace ampd
