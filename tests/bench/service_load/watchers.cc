#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "tests/bench/service_load/parts.h"
#include "tests/bench/service_load/synthetic_worker.h"

namespace ampd::load {
namespace {

constexpr int kConnections = 8;
constexpr absl::Duration kDeadline = absl::Minutes(2);
// Of a watcher that never reads, bytes: some ten events.
constexpr int kDeadWindow = 1024;

// What all watchers saw.
class Sightings {
 public:
  void Add(double delay) {
    const std::lock_guard lock(mutex_);
    if (measuring_) delays_.push_back(delay);
  }
  void Gap() { ++gaps_; }
  void Measure(bool on) {
    const std::lock_guard lock(mutex_);
    measuring_ = on;
  }
  std::vector<double> delays() {
    const std::lock_guard lock(mutex_);
    return delays_;
  }
  int gaps() const { return gaps_; }

 private:
  std::mutex mutex_;
  bool measuring_ = false;
  std::vector<double> delays_;
  std::atomic<int> gaps_ = 0;
};

class Watcher final : public grpc::ClientReadReactor<v1::JobEvent> {
 public:
  Watcher(v1::TrainingService::Stub* stub, const std::string& job_id, uint64_t after, Sightings* sightings)
      : sightings_(sightings), last_(after) {
    request_.set_job_id(job_id);
    request_.set_after_sequence(after);
    stub->async()->WatchJob(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (event_.first_sequence() != last_ + 1) sightings_->Gap();
    last_ = event_.sequence();
    const absl::Time sent = absl::FromUnixSeconds(event_.time().seconds()) + absl::Nanoseconds(event_.time().nanos());
    if (event_.has_log()) sightings_->Add(absl::ToDoubleSeconds(absl::Now() - sent));
    watching_ = true;
    StartRead(&event_);
  }
  void OnDone(const grpc::Status&) override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  bool watching() const { return watching_; }
  void Cancel() { context_.TryCancel(); }
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }

 private:
  Sightings* const sightings_;
  grpc::ClientContext context_;
  v1::WatchJobRequest request_;
  v1::JobEvent event_;
  uint64_t last_;
  std::atomic<bool> watching_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// Takes what fits into a small window, and then nothing.
class DeadWatcher final : public grpc::ClientReadReactor<v1::JobEvent> {
 public:
  DeadWatcher(v1::TrainingService::Stub* stub, const std::string& job_id) {
    request_.set_job_id(job_id);
    stub->async()->WatchJob(&context_, &request_, this);
    StartCall();
  }
  ~DeadWatcher() override {
    context_.TryCancel();
    done_.WaitForNotification();
  }
  void OnDone(const grpc::Status&) override { done_.Notify(); }

 private:
  grpc::ClientContext context_;
  v1::WatchJobRequest request_;
  absl::Notification done_;
};

}  // namespace

absl::StatusOr<std::string> StartTicking(LoadDaemon* daemon) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = JobNamed(kTickingJob);
  v1::Job job;
  grpc::ClientContext context;
  const grpc::Status created = daemon->stub()->CreateJob(&context, request, &job);
  if (!created.ok()) return absl::UnavailableError(created.error_message());
  v1::WatchJobRequest watch;
  watch.set_job_id(job.id());
  grpc::ClientContext watching;
  watching.set_deadline(absl::ToChronoTime(absl::Now() + kDeadline));
  const auto reader = daemon->stub()->WatchJob(&watching, watch);
  for (v1::JobEvent event; reader->Read(&event);) {
    if (!event.has_log()) continue;
    watching.TryCancel();
    reader->Finish();
    return job.id();
  }
  return absl::UnavailableError(absl::StrCat("the ticking job does not tick: ", reader->Finish().error_message()));
}

namespace {

absl::StatusOr<v1::Job> GetJob(LoadDaemon* daemon, const std::string& id) {
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_job_id(id);
  v1::Job job;
  const grpc::Status status = daemon->stub()->GetJob(&context, request, &job);
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  return job;
}

absl::Status AwaitAll(const std::vector<std::unique_ptr<Watcher>>& watchers) {
  const absl::Time deadline = absl::Now() + kDeadline;
  for (const auto& watcher : watchers) {
    while (!watcher->watching()) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("not every watcher got an event");
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureWatchers(const Sizes& sizes, const std::string& ticking, LoadDaemon* daemon, Figures* figures) {
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, GetJob(daemon, ticking));
  Sightings sightings;
  std::vector<std::unique_ptr<v1::TrainingService::Stub>> stubs;
  for (int i = 0; i < kConnections; ++i) stubs.push_back(v1::TrainingService::NewStub(daemon->NewChannel()));
  const int64_t before = daemon->ResidentBytes();
  const auto dead_stub = v1::TrainingService::NewStub(daemon->NewChannel(kDeadWindow));
  std::vector<std::unique_ptr<DeadWatcher>> dead;
  for (int i = 0; i < sizes.dead_watchers; ++i) {
    dead.push_back(std::make_unique<DeadWatcher>(dead_stub.get(), ticking));
  }
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < sizes.watchers; ++i) {
    watchers.push_back(std::make_unique<Watcher>(stubs[static_cast<size_t>(i % kConnections)].get(), ticking,
                                                 job.last_sequence(), &sightings));
  }
  const absl::Status all = AwaitAll(watchers);
  const absl::Duration cpu = daemon->CpuTime();
  sightings.Measure(true);
  if (all.ok()) absl::SleepFor(absl::Seconds(sizes.seconds));
  sightings.Measure(false);
  const double share = absl::ToDoubleSeconds(daemon->CpuTime() - cpu) / sizes.seconds;
  const int64_t after = daemon->ResidentBytes();
  for (const auto& watcher : watchers) watcher->Cancel();
  for (const auto& watcher : watchers) watcher->Await();
  AMPD_RETURN_IF_ERROR(all);
  const std::vector<double> delays = sightings.delays();
  const double wanted = 10.0 * sizes.watchers * sizes.seconds;
  figures->AtLeast(absl::StrCat("events delivered to ", sizes.watchers, " watchers, of those sent"),
                   static_cast<double>(delays.size()) / wanted, 0.95, "");
  figures->Below("delay from the worker to a watcher, p99", 1e3 * Quantile(delays, 0.99), 100, "ms");
  figures->Note("delay from the worker to a watcher, p50", 1e3 * Quantile(delays, 0.5), "ms");
  figures->Below("gaps in what watchers saw", sightings.gaps(), 1, "");
  figures->Note("processors that the daemon used for it", share, "");
  figures->Note("memory a watcher", static_cast<double>(after - before) / (sizes.watchers + sizes.dead_watchers) / 1024,
                "KiB");
  figures->Below("resident memory with all watchers", static_cast<double>(daemon->PeakResidentBytes()) / 1e6, 300,
                 "MB");
  return absl::OkStatus();
}

absl::Status MeasureIdle(const Sizes& sizes, const std::string& ticking, LoadDaemon* daemon, Figures* figures) {
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  request.set_job_id(ticking);
  v1::Job job;
  const grpc::Status cancelled = daemon->stub()->CancelJob(&context, request, &job);
  if (!cancelled.ok()) return absl::UnavailableError(cancelled.error_message());
  const absl::Time deadline = absl::Now() + kDeadline;
  while (job.state() != v1::Job::CANCELLED) {
    if (absl::Now() > deadline) return absl::DeadlineExceededError("the ticking job does not end");
    absl::SleepFor(absl::Milliseconds(100));
    AMPD_ASSIGN_OR_RETURN(job, GetJob(daemon, ticking));
  }
  // The next one's start is over as well.
  absl::SleepFor(absl::Seconds(3));
  const absl::Duration cpu = daemon->CpuTime();
  const absl::Time start = absl::Now();
  absl::SleepFor(absl::Seconds(sizes.seconds));
  const double share = absl::FDivDuration(daemon->CpuTime() - cpu, absl::Now() - start);
  figures->Below("idle daemon, share of one processor", 100 * share, 1, "%");
  return absl::OkStatus();
}

}  // namespace ampd::load
