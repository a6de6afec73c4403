#include "server/metrics/job_series.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "proto/spec/limits.h"

namespace ampd {
namespace {

constexpr absl::Duration kSeriesLife = absl::Minutes(5);
constexpr absl::Duration kLookPeriod = absl::Minutes(1);

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Labels;

bool IsOver(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

Labels OfPhase(const std::string& phase) { return {{"phase", phase}}; }

// Nothing without dynamic scaling. What AUTO takes may scale dynamically by default.
std::optional<JobSeries::Floor> FloorOf(const v1::PrecisionSpec& precision) {
  const v1::LossScaleSpec& scale = precision.loss_scale();
  const bool by_mode =
      precision.mode() == v1::PrecisionSpec::AUTO && scale.kind() == v1::LossScaleSpec::KIND_UNSPECIFIED;
  if (scale.kind() != v1::LossScaleSpec::DYNAMIC && !by_mode) return std::nullopt;
  return JobSeries::Floor{scale.has_min() ? scale.min() : 1,
                          by_mode || scale.on_floor() == v1::LossScaleSpec::FALLBACK_BF16};
}

double UnixSeconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + time.nanos() * 1e-9;
}

}  // namespace

Gauge& JobSeries::GaugeOf(const std::string& job, const Metric& metric, Labels labels) {
  labels["job_id"] = job;
  Gauge*& gauge = jobs_[job].gauges[{&metric, labels}];
  if (gauge == nullptr) gauge = &gauges_->at(&metric)->Add(labels);
  return *gauge;
}

Counter& JobSeries::CounterOf(const std::string& job, const Metric& metric, Labels labels) {
  labels["job_id"] = job;
  Counter*& counter = jobs_[job].counters[{&metric, labels}];
  if (counter == nullptr) counter = &counters_->at(&metric)->Add(labels);
  return *counter;
}

bool JobSeries::HasSeries(const std::string& job, const std::string& phase) {
  std::set<std::string>& phases = jobs_[job].phases;
  return phases.size() < kMaxPhaseNames ? (phases.insert(phase), true) : phases.contains(phase);
}

void JobSeries::RaiseTo(const std::string& job, const Metric& metric, const Labels& labels, double total) {
  Counter& counter = CounterOf(job, metric, labels);
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

void JobSeries::CountSteps(const std::string& job, const std::string& phase, int64_t applied, int64_t skipped) {
  if (!HasSeries(job, phase)) return;
  PhaseSteps before;
  if (const auto known = restored_.find(job); known != restored_.end()) before = known->second[phase];
  RaiseTo(job, kJobStepsApplied, OfPhase(phase), static_cast<double>(std::max(applied, before.applied)));
  RaiseTo(job, kJobStepsSkipped, OfPhase(phase), static_cast<double>(std::max(skipped, before.skipped)));
}

void JobSeries::OnWrite(const JobWrite& write) {
  const std::string& job = write.record.job.id();
  if (clock_->Monotonic() >= next_look_) DropExpired();
  for (const v1::JobEvent& event : write.events) OnEvent(write.record.job, event);
  if (jobs_.count(job) == 0) return;
  const auto samples = write.counter_deltas.find(kSamplesCounter);
  if (samples != write.counter_deltas.end()) CounterOf(job, kJobSamples).Increment(samples->second);
}

void JobSeries::OnEvaluating(const std::string& job) {
  if (jobs_.count(job) == 0) return;
  GaugeOf(job, kJobLastProgress).Set(absl::ToDoubleSeconds(clock_->Now() - absl::UnixEpoch()));
}

void JobSeries::OnEvent(const v1::Job& record, const v1::JobEvent& event) {
  const std::string& job = record.id();
  switch (event.payload_case()) {
    case v1::JobEvent::kStep:
      GaugeOf(job, kJobLastProgress).Set(UnixSeconds(event.time()));
      return OnStep(job, event.step());
    case v1::JobEvent::kBenchCell:
      return GaugeOf(job, kJobLastProgress).Set(UnixSeconds(event.time()));
    case v1::JobEvent::kOverflowSkip:
      return OnOverflow(job, event.overflow_skip());
    case v1::JobEvent::kLossScaleChange: {
      const v1::LossScaleChange& change = event.loss_scale_change();
      if (!HasSeries(job, change.phase())) return;
      return GaugeOf(job, kJobLossScale, OfPhase(change.phase())).Set(change.scale_after());
    }
    case v1::JobEvent::kEvaluation:
      return OnEvaluation(job, event.evaluation());
    case v1::JobEvent::kCheckpoint:
      return OnCheckpoint(job, event);
    case v1::JobEvent::kStateChange:
      return OnStateChange(record, event);
    default:
      return;
  }
}

void JobSeries::OnStateChange(const v1::Job& job, const v1::JobEvent& event) {
  const v1::Job::State to = event.state_change().to();
  const bool running = to == v1::Job::RUNNING;
  const auto series = jobs_.find(job.id());
  // A hundred thousand queued jobs have no series.
  if (series == jobs_.end() && !running) return;
  GaugeOf(job.id(), kJobRunning).Set(running ? 1 : 0);
  // A job that failed may be asked to go on.
  jobs_[job.id()].expires = IsOver(to) ? clock_->Monotonic() + kSeriesLife : absl::InfiniteDuration();
  if (running) OnRunning(job, event);
}

void JobSeries::OnRunning(const v1::Job& job, const v1::JobEvent& event) {
  // What it does not do from here on is its own fault: not that it waited, nor that it has yet to do it for the first
  // time. What was to make room and could not has run all the while.
  if (event.state_change().from() != v1::Job::PREEMPTING) {
    GaugeOf(job.id(), kJobLastProgress).Set(UnixSeconds(event.time()));
    GaugeOf(job.id(), kJobLastCheckpoint).Set(UnixSeconds(event.time()));
  }
  const int64_t interval = job.spec().has_bench() ? 0 : job.spec().checkpoint().every_seconds();
  if (interval > 0) GaugeOf(job.id(), kJobCheckpointInterval).Set(static_cast<double>(interval));
  jobs_[job.id()].floor = FloorOf(job.spec().precision());
}

void JobSeries::OnStep(const std::string& job, const v1::StepReport& step) {
  const std::optional<Floor> floor = jobs_[job].floor;
  for (const v1::PhaseReport& phase : step.phases()) {
    if (!HasSeries(job, phase.name())) continue;
    const Labels labels = OfPhase(phase.name());
    if (floor) GaugeOf(job, kJobLossScaleFloor, labels).Set(floor->Of(phase.loss_scale()));
    GaugeOf(job, kJobLoss, labels).Set(phase.loss());
    GaugeOf(job, kJobLossScale, labels).Set(phase.loss_scale());
    GaugeOf(job, kJobLearningRate, labels).Set(phase.learning_rate());
    GaugeOf(job, kJobGradientNorm, labels).Set(phase.gradient_norm());
    CountSteps(job, phase.name(), phase.steps_applied(), phase.steps_skipped());
  }
  GaugeOf(job, kJobSamplesPerSecond).Set(step.samples_per_second());
  if (step.has_step_seconds()) GaugeOf(job, kJobStepSeconds).Set(step.step_seconds());
  if (step.has_model_flops_utilization()) GaugeOf(job, kJobFlopsUtilization).Set(step.model_flops_utilization());
  if (step.input_wait_seconds() > 0) CounterOf(job, kJobInputWait).Increment(step.input_wait_seconds());
}

void JobSeries::OnCheckpoint(const std::string& job, const v1::JobEvent& event) {
  const v1::CheckpointSaved& checkpoint = event.checkpoint();
  GaugeOf(job, kJobCheckpointBytes).Set(static_cast<double>(checkpoint.size_bytes()));
  for (const v1::CheckpointSaved::Phase& phase : checkpoint.phases()) {
    CountSteps(job, phase.name(), phase.steps_applied(), phase.steps_skipped());
  }
  // When that was, and how long it took, nobody knows.
  if (checkpoint.already_written()) return;
  GaugeOf(job, kJobLastCheckpoint).Set(UnixSeconds(event.time()));
  GaugeOf(job, kJobCheckpointSeconds).Set(checkpoint.write_seconds());
}

void JobSeries::OnOverflow(const std::string& job, const v1::OverflowSkip& skip) {
  if (!HasSeries(job, skip.phase())) return;
  GaugeOf(job, kJobLossScale, OfPhase(skip.phase())).Set(skip.scale_after());
  const std::string stage = absl::AsciiStrToLower(v1::OverflowSkip::Stage_Name(skip.stage()));
  const std::string kind = absl::AsciiStrToLower(v1::OverflowSkip::Kind_Name(skip.kind()));
  const Labels labels = {
      {"phase", skip.phase()}, {"stage", stage}, {"kind", std::string(absl::StripPrefix(kind, "kind_"))}};
  CounterOf(job, kJobOverflows, labels).Increment();
}

void JobSeries::OnEvaluation(const std::string& job, const v1::Evaluation& evaluation) {
  GaugeOf(job, kJobEvaluationLoss).Set(evaluation.loss());
  if (evaluation.has_accuracy()) GaugeOf(job, kJobEvaluationAccuracy).Set(evaluation.accuracy());
}

void JobSeries::DropExpired() {
  const absl::Duration now = clock_->Monotonic();
  next_look_ = now + kLookPeriod;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->second.expires > now) {
      ++job;
      continue;
    }
    for (const auto& [key, gauge] : job->second.gauges) gauges_->at(key.first)->Remove(gauge);
    for (const auto& [key, counter] : job->second.counters) counters_->at(key.first)->Remove(counter);
    job = jobs_.erase(job);
  }
}

}  // namespace ampd
