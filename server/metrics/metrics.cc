#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/mutex.h"
#include "server/metrics/definitions.h"
#include "server/metrics/device_series.h"
#include "server/metrics/job_series.h"

namespace ampd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// Within the names of counters in the store.
constexpr char kBetween = '|';
constexpr size_t kMaxUsers = 100;
// No user's name has parentheses.
constexpr char kOtherUsers[] = "(other)";
constexpr char kUserMark[] = "user_series|";

// Ports, and why they may refuse connections: series that are there from the start, as 0, so that the first one counts.
const std::map<std::string, std::vector<std::string>>& Refusals() {
  static const std::map<std::string, std::vector<std::string>>& refusals =
      *new std::map<std::string, std::vector<std::string>>{
          {"grpc", {"client", "all"}}, {"workers", {"all"}}, {"http", {"all", "descriptors", "answers"}}};
  return refusals;
}

std::string StateLabel(v1::Job::State state) { return absl::AsciiStrToLower(v1::Job::State_Name(state)); }

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
}

// Of the report's first step; with its later ones it may have waited for its sending.
absl::Time EndOfFirstStep(const v1::StepReport& report, absl::Time sent) {
  const auto later = static_cast<double>(std::max<int64_t>(0, report.last_step() - report.first_step()));
  return sent - absl::Seconds(later * report.step_seconds());
}

// Whether a job in `state` has a device, or may have.
bool IsOnDevice(v1::Job::State state) {
  return state == v1::Job::STARTING || state == v1::Job::RUNNING || state == v1::Job::PREEMPTING ||
         state == v1::Job::RECOVERING || state == v1::Job::CANCELLING;
}

using Buckets = Histogram::BucketBoundaries;

// Of what takes milliseconds: commits, calls, events.
const Buckets& ShortTimes() {
  static const Buckets& buckets =
      *new Buckets{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30};
  return buckets;
}

const Buckets& BucketsOf(const Metric& metric) {
  static const Buckets& waits = *new Buckets{0.1, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400};
  static const Buckets& work = *new Buckets{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
  if (&metric == &kQueueSeconds) return waits;
  return &metric == &kStartSeconds || &metric == &kCheckpointWriteSeconds ? work : ShortTimes();
}

}  // namespace

std::string UseCounter(const char* counter, const char* use, const std::string& user) {
  return absl::StrCat(counter, std::string(1, kBetween), use, std::string(1, kBetween), user);
}

std::string UserMark(const std::string& user) { return absl::StrCat(kUserMark, user); }

class Metrics::Impl {
 public:
  Impl(const std::string& version, const Clock* clock);

  void Restore(const std::map<std::string, double>& counters, const std::map<v1::Job::State, int64_t>& job_counts,
               const WaitingJobs& waiting, const StepsOfJobs& steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnWrite(const JobWrite& write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnEvaluating(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { jobs_.OnEvaluating(job); }
  void SetQueue(const QueueFigures& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnRpc(const std::string& method, const std::string& code, double seconds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnHttp(const std::string& route, int status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnCallRefused(const std::string& call_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnConnectionRefused(const std::string& port, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnAcceptPause(const std::string& port) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddToCounters(const std::map<std::string, double>& deltas) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<prometheus::MetricFamily> Collect(const SampledFigures& sampled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  prometheus::Registry registry ABSL_GUARDED_BY(mutex);
  // Set by the constructor; a histogram is thread-safe.
  Histogram* commit = nullptr;
  DeviceSeries devices ABSL_GUARDED_BY(mutex){&gauges_, &counters_};
  std::function<SampledFigures()> sampler ABSL_GUARDED_BY(mutex);
  std::function<void(const std::string&)> user_listener ABSL_GUARDED_BY(mutex);

 private:
  void OnStateChange(const std::string& job, const v1::StateChange& change, absl::Time time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnStep(const std::string& job, const v1::StepReport& report, absl::Time time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnEvent(const std::string& job, const v1::JobEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Observes the time since what `since` has of the job, and forgets it; nothing without.
  void ObserveSince(std::unordered_map<std::string, absl::Time>* since, const std::string& job, absl::Time time,
                    const Metric& metric) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddToFleet(const std::string& name, double delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddToUse(const std::string& name, double delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool HasSeries(const std::string& user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // PAUSE_REASON_UNSPECIFIED: is not paused.
  void SetPaused(const std::string& job, v1::Job::PauseReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Histogram& HistogramOf(const Metric& metric, const Labels& labels = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const Clock* const clock_;
  const absl::Duration start_;
  std::unordered_map<const Metric*, Family<Gauge>*> gauges_ ABSL_GUARDED_BY(mutex);
  std::unordered_map<const Metric*, Family<Counter>*> counters_ ABSL_GUARDED_BY(mutex);
  std::unordered_map<const Metric*, Family<Histogram>*> histograms_ ABSL_GUARDED_BY(mutex);
  std::map<std::string, Counter*> fleet_ ABSL_GUARDED_BY(mutex);
  // Those with series of their own.
  std::set<std::string> users_ ABSL_GUARDED_BY(mutex);
  std::map<v1::Job::State, Gauge*> states_ ABSL_GUARDED_BY(mutex);
  std::map<v1::Job::QueueReason, Gauge*> reasons_ ABSL_GUARDED_BY(mutex);
  std::map<v1::Job::PauseReason, Gauge*> pause_reasons_ ABSL_GUARDED_BY(mutex);
  // By job.
  std::unordered_map<std::string, v1::Job::PauseReason> paused_ ABSL_GUARDED_BY(mutex);
  // Since when a job waits, and since when it has a device on which it has not taken a step.
  std::unordered_map<std::string, absl::Time> queued_ ABSL_GUARDED_BY(mutex);
  std::unordered_map<std::string, absl::Time> starting_ ABSL_GUARDED_BY(mutex);
  JobSeries jobs_ ABSL_GUARDED_BY(mutex);
  absl::Time oldest_queued_ ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
};

Metrics::Impl::Impl(const std::string& version, const Clock* clock)
    : clock_(clock), start_(clock->Monotonic()), jobs_(&gauges_, &counters_, clock) {
  for (const Metric* metric : AllMetrics()) {
    if (metric->type == Metric::kGauge) {
      gauges_[metric] = &prometheus::BuildGauge().Name(metric->name).Help(metric->help).Register(registry);
    } else if (metric->type == Metric::kCounter) {
      counters_[metric] = &prometheus::BuildCounter().Name(metric->name).Help(metric->help).Register(registry);
    } else {
      histograms_[metric] = &prometheus::BuildHistogram().Name(metric->name).Help(metric->help).Register(registry);
    }
  }
  commit = &HistogramOf(kStoreCommitSeconds);
  gauges_[&kBuildInfo]->Add({{"version", version}}).Set(1);
  for (int state = v1::Job::QUEUED; state <= v1::Job::CANCELLED; ++state) {
    const auto value = static_cast<v1::Job::State>(state);
    states_[value] = &gauges_[&kJobs]->Add({{"state", StateLabel(value)}});
  }
  for (const v1::Job::PauseReason reason : {v1::Job::REQUESTED, v1::Job::NO_DISK_SPACE}) {
    const std::string label = absl::AsciiStrToLower(v1::Job::PauseReason_Name(reason));
    pause_reasons_[reason] = &gauges_[&kJobsPaused]->Add({{"reason", label}});
  }
  for (const Metric* metric : FleetCounters()) fleet_[metric->name] = &counters_[metric]->Add({});
  for (const auto& [port, reasons] : Refusals()) {
    for (const std::string& reason : reasons) {
      counters_[&kConnectionsRefused]->Add({{"port", port}, {"reason", reason}});
    }
    counters_[&kAcceptPauses]->Add({{"port", port}});
  }
}

Histogram& Metrics::Impl::HistogramOf(const Metric& metric, const Labels& labels) {
  return histograms_.at(&metric)->Add(labels, BucketsOf(metric));
}

void Metrics::Impl::Restore(const std::map<std::string, double>& counters,
                            const std::map<v1::Job::State, int64_t>& job_counts, const WaitingJobs& waiting,
                            const StepsOfJobs& steps) {
  for (const auto& [name, mark] : counters) {
    absl::string_view user = name;
    if (absl::ConsumePrefix(&user, kUserMark)) users_.emplace(user);
  }
  AddToCounters(counters);
  queued_.insert(waiting.queued_since.begin(), waiting.queued_since.end());
  jobs_.Restore(steps);
  for (const auto& [job, reason] : waiting.paused) SetPaused(job, reason);
  for (const auto& [state, count] : job_counts) {
    if (states_.count(state) > 0) states_[state]->Set(static_cast<double>(count));
  }
}

void Metrics::Impl::AddToFleet(const std::string& name, double delta) {
  const auto counter = fleet_.find(name);
  if (!(delta > 0)) return;
  if (counter != fleet_.end()) return counter->second->Increment(delta);
  AddToUse(name, delta);
}

void Metrics::Impl::AddToUse(const std::string& name, double delta) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits(kBetween, 2));
  if (parts.size() != 3) return;
  for (const Metric* metric : UseCounters()) {
    if (parts[0] != metric->name) continue;
    const std::string user = HasSeries(parts[2]) ? parts[2] : kOtherUsers;
    counters_[metric]->Add({{"use", parts[1]}, {"user", user}}).Increment(delta);
  }
}

// Each user is a series, for ever.
bool Metrics::Impl::HasSeries(const std::string& user) {
  if (users_.contains(user)) return true;
  if (users_.size() >= kMaxUsers) return false;
  users_.insert(user);
  if (user_listener) user_listener(user);
  return true;
}

void Metrics::Impl::SetPaused(const std::string& job, v1::Job::PauseReason reason) {
  const auto before = paused_.find(job);
  if (before != paused_.end()) {
    pause_reasons_.at(before->second)->Decrement();
    paused_.erase(before);
  }
  const auto gauge = pause_reasons_.find(reason);
  if (gauge == pause_reasons_.end()) return;
  gauge->second->Increment();
  paused_.emplace(job, reason);
}

void Metrics::Impl::AddToCounters(const std::map<std::string, double>& deltas) {
  for (const auto& [name, delta] : deltas) AddToFleet(name, delta);
}

void Metrics::Impl::OnWrite(const JobWrite& write) {
  const std::string& job = write.record.job.id();
  AddToCounters(write.counter_deltas);
  for (const v1::JobEvent& event : write.events) OnEvent(job, event);
  const bool paused = write.record.job.state() == v1::Job::PAUSED;
  SetPaused(job, paused ? write.record.job.pause_reason() : v1::Job::PAUSE_REASON_UNSPECIFIED);
  jobs_.OnWrite(write);
}

void Metrics::Impl::OnEvent(const std::string& job, const v1::JobEvent& event) {
  const absl::Time time = TimeOf(event);
  if (event.has_state_change()) return OnStateChange(job, event.state_change(), time);
  if (event.has_step()) OnStep(job, event.step(), time);
  if (event.has_checkpoint() && !event.checkpoint().already_written()) {
    HistogramOf(kCheckpointWriteSeconds).Observe(event.checkpoint().write_seconds());
  }
  if (!event.has_time()) return;
  HistogramOf(kEventLagSeconds).Observe(std::max(0.0, absl::ToDoubleSeconds(clock_->Now() - time)));
}

void Metrics::Impl::OnStateChange(const std::string& job, const v1::StateChange& change, absl::Time time) {
  if (states_.count(change.from()) > 0) states_[change.from()]->Decrement();
  if (states_.count(change.to()) > 0) states_[change.to()]->Increment();
  if (change.to() == v1::Job::STARTING) ObserveSince(&queued_, job, time, kQueueSeconds);
  queued_.erase(job);
  if (!IsOnDevice(change.to())) starting_.erase(job);
  if (change.to() == v1::Job::QUEUED) queued_[job] = time;
  if (change.to() == v1::Job::STARTING) starting_[job] = time;
}

void Metrics::Impl::OnStep(const std::string& job, const v1::StepReport& report, absl::Time time) {
  ObserveSince(&starting_, job, EndOfFirstStep(report, time), kStartSeconds);
}

void Metrics::Impl::ObserveSince(std::unordered_map<std::string, absl::Time>* since, const std::string& job,
                                 absl::Time time, const Metric& metric) {
  const auto found = since->find(job);
  if (found == since->end()) return;
  HistogramOf(metric).Observe(std::max(0.0, absl::ToDoubleSeconds(time - found->second)));
  since->erase(found);
}

void Metrics::Impl::SetQueue(const QueueFigures& queue) {
  double depth = 0;
  for (auto& [reason, gauge] : reasons_) gauge->Set(0);
  for (const auto& [reason, jobs] : queue.by_reason) {
    Gauge*& gauge = reasons_[reason];
    const std::string label = absl::AsciiStrToLower(v1::Job::QueueReason_Name(reason));
    if (gauge == nullptr) gauge = &gauges_[&kJobsQueued]->Add({{"reason", label}});
    gauge->Set(static_cast<double>(jobs));
    depth += static_cast<double>(jobs);
  }
  gauges_[&kQueueDepth]->Add({}).Set(depth);
  oldest_queued_ = queue.oldest;
}

void Metrics::Impl::OnRpc(const std::string& method, const std::string& code, double seconds) {
  counters_[&kRpcs]->Add({{"method", method}, {"code", code}}).Increment();
  if (seconds >= 0) HistogramOf(kRpcSeconds, {{"method", method}}).Observe(seconds);
}

void Metrics::Impl::OnHttp(const std::string& route, int status) {
  counters_[&kHttpRequests]->Add({{"route", route}, {"code", absl::StrCat(status)}}).Increment();
}

void Metrics::Impl::OnCallRefused(const std::string& call_class) {
  counters_[&kCallsRefused]->Add({{"class", call_class}}).Increment();
}

void Metrics::Impl::OnConnectionRefused(const std::string& port, const std::string& reason) {
  counters_[&kConnectionsRefused]->Add({{"port", port}, {"reason", reason}}).Increment();
}

void Metrics::Impl::OnAcceptPause(const std::string& port) {
  counters_[&kAcceptPauses]->Add({{"port", port}}).Increment();
}

std::vector<prometheus::MetricFamily> Metrics::Impl::Collect(const SampledFigures& sampled) {
  jobs_.DropExpired();
  gauges_[&kUptime]->Add({}).Set(absl::ToDoubleSeconds(clock_->Monotonic() - start_));
  const bool waiting = oldest_queued_ != absl::InfiniteFuture();
  const double age = waiting ? absl::ToDoubleSeconds(clock_->Now() - oldest_queued_) : 0;
  gauges_[&kOldestQueued]->Add({}).Set(std::max(0.0, age));
  gauges_[&kDamagedPages]->Add({}).Set(static_cast<double>(sampled.damaged_pages));
  gauges_[&kWatchers]->Add({}).Set(static_cast<double>(sampled.watchers));
  Counter& reads = counters_[&kWatchStoreReads]->Add({});
  reads.Increment(static_cast<double>(sampled.watch_store_reads) - reads.Value());
  for (const auto& [name, calls] : sampled.calls) {
    gauges_[&kCalls]->Add({{"class", name}}).Set(static_cast<double>(calls));
    counters_[&kCallsRefused]->Add({{"class", name}});
  }
  if (sampled.state_dir_free_bytes) {
    gauges_[&kStateDirFree]->Add({}).Set(static_cast<double>(*sampled.state_dir_free_bytes));
  }
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  // A family without a series is no metric yet.
  families.erase(std::remove_if(families.begin(), families.end(), [](const auto& f) { return f.metric.empty(); }),
                 families.end());
  return families;
}

Metrics::Metrics(const std::string& version, const Clock* clock) : impl_(std::make_unique<Impl>(version, clock)) {}
Metrics::~Metrics() = default;

void Metrics::Restore(const std::map<std::string, double>& counters,
                      const std::map<v1::Job::State, int64_t>& job_counts, const WaitingJobs& waiting,
                      const StepsOfJobs& steps) {
  const MutexLock lock(&impl_->mutex);
  impl_->Restore(counters, job_counts, waiting, steps);
}

void Metrics::SetUserListener(std::function<void(const std::string& user)> listener) {
  const MutexLock lock(&impl_->mutex);
  impl_->user_listener = std::move(listener);
}

void Metrics::OnWrite(const JobWrite& write) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnWrite(write);
}

void Metrics::OnEvaluating(const std::string& job) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnEvaluating(job);
}

void Metrics::AddToCounters(const std::map<std::string, double>& deltas) {
  const MutexLock lock(&impl_->mutex);
  impl_->AddToCounters(deltas);
}

void Metrics::OnCommit(double seconds) { impl_->commit->Observe(seconds); }

void Metrics::SetQueue(const QueueFigures& queue) {
  const MutexLock lock(&impl_->mutex);
  impl_->SetQueue(queue);
}

void Metrics::OnRpc(const std::string& method, const std::string& code, double seconds) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnRpc(method, code, seconds);
}

void Metrics::OnHttp(const std::string& route, int status) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnHttp(route, status);
}

void Metrics::OnCallRefused(const std::string& call_class) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnCallRefused(call_class);
}

void Metrics::OnConnectionRefused(const std::string& port, const std::string& reason) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnConnectionRefused(port, reason);
}

void Metrics::OnAcceptPause(const std::string& port) {
  const MutexLock lock(&impl_->mutex);
  impl_->OnAcceptPause(port);
}

void Metrics::SetSampler(std::function<SampledFigures()> sampler) {
  const MutexLock lock(&impl_->mutex);
  impl_->sampler = std::move(sampler);
}

void Metrics::SetDevices(const std::vector<v1::Device>& devices) {
  const MutexLock lock(&impl_->mutex);
  impl_->devices.Set(devices);
}

std::string Metrics::Serialize() {
  std::function<SampledFigures()> sampler;
  {
    const MutexLock lock(&impl_->mutex);
    sampler = impl_->sampler;
  }
  const SampledFigures sampled = sampler ? sampler() : SampledFigures();
  std::vector<prometheus::MetricFamily> families;
  {
    const MutexLock lock(&impl_->mutex);
    families = impl_->Collect(sampled);
  }
  // Writers wait for the figures, not for their text.
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace ampd
