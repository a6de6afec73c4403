// The Prometheus metrics of the daemon, derived from the same events that watchers read. Every metric is declared in
// definitions.h, and nowhere else.
#ifndef AMPD_SERVER_METRICS_METRICS_H_
#define AMPD_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "server/events/clock.h"
#include "server/store/records.h"

namespace ampd {

// Names of the fleet's counters in the store; each is a metric without job labels.
inline constexpr char kStepsAppliedCounter[] = "ampd_steps_applied_total";
inline constexpr char kStepsSkippedCounter[] = "ampd_steps_skipped_total";
inline constexpr char kSamplesCounter[] = "ampd_samples_total";
inline constexpr char kEventsCounter[] = "ampd_events_written_total";
inline constexpr char kJobsSucceededCounter[] = "ampd_jobs_succeeded_total";
inline constexpr char kJobsFailedCounter[] = "ampd_jobs_failed_total";
inline constexpr char kJobsCancelledCounter[] = "ampd_jobs_cancelled_total";
inline constexpr char kInputWaitCounter[] = "ampd_input_wait_seconds_total";
inline constexpr char kCheckpointBytesCounter[] = "ampd_checkpoint_bytes_total";

// Counters by what devices were for and by user; UseCounter is their name in the store.
inline constexpr char kDeviceSecondsCounter[] = "ampd_device_seconds_total";
inline constexpr char kCostCounter[] = "ampd_cost_usd_total";
inline constexpr char kUseful[] = "useful";
inline constexpr char kWasted[] = "wasted";
inline constexpr char kIdle[] = "idle";
std::string UseCounter(const char* counter, const char* use, const std::string& user);
// The name in the store, as a counter's, of the mark that `user` has series of its own.
std::string UserMark(const std::string& user);

// Jobs that wait for a device.
struct QueueFigures {
  std::map<v1::Job::QueueReason, int64_t> by_reason;
  // Submit of the oldest; absl::InfiniteFuture() without one.
  absl::Time oldest = absl::InfiniteFuture();
};

// Jobs that have no device, by id, at the start of the daemon.
struct WaitingJobs {
  std::map<std::string, absl::Time> queued_since;
  std::map<std::string, v1::Job::PauseReason> paused;
};

// What is looked up when Prometheus asks.
struct SampledFigures {
  int64_t watchers = 0;
  // Since the daemon's start.
  uint64_t watch_store_reads = 0;
  std::optional<int64_t> state_dir_free_bytes;
  // Under way, by class.
  std::map<std::string, int64_t> calls;
  // As Store::DamagedPages.
  int64_t damaged_pages = 0;
};

// Thread-safe.
class Metrics {
 public:
  // `version` is for ampd_build_info. `clock` must outlive the metrics.
  Metrics(const std::string& version, const Clock* clock);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Told when a user gets series of its own, for ever: the store is to keep UserMark() of it, any value above 0. Set
  // before Restore. It must be thread-safe, must not block and must not call the metrics.
  void SetUserListener(std::function<void(const std::string& user)> listener);
  // What the store knew at the start of the daemon; call once, before the first OnWrite. Users with a mark have series
  // of their own, the others as they come, as long as there is room. Counters of jobs' steps begin at `steps` at least.
  void Restore(const std::map<std::string, double>& counters, const std::map<v1::Job::State, int64_t>& job_counts,
               const WaitingJobs& waiting = {}, const StepsOfJobs& steps = {});
  // A durable change: EventLog's listener.
  void OnWrite(const JobWrite& write);
  // The job's worker got on with an evaluation, now. Without effect where the job has no series.
  void OnEvaluating(const std::string& job);
  // What was added to the fleet's counters apart from jobs, once that is durable.
  void AddToCounters(const std::map<std::string, double>& deltas);
  // A commit of the store: Store::Options::on_commit.
  void OnCommit(double seconds);
  void SetQueue(const QueueFigures& queue);
  // A call that has ended. `method`: of the service, e.g. "GetJob"; `code`: e.g. "NOT_FOUND". `seconds` is negative for
  // a stream, whose length says nothing.
  void OnRpc(const std::string& method, const std::string& code, double seconds);
  // An answer of the HTTP port. `route`: of a few; empty: none fitted.
  void OnHttp(const std::string& route, int status);
  // A call for which its class had no room.
  void OnCallRefused(const std::string& call_class);
  // A connection for which `port` had no room, and why; that new ones have to wait there. Names as kConnectionsRefused
  // has them.
  void OnConnectionRefused(const std::string& port, const std::string& reason);
  void OnAcceptPause(const std::string& port);
  // Called by Serialize; set before the first. It must be thread-safe and must not call the metrics.
  void SetSampler(std::function<SampledFigures()> sampler);
  void SetDevices(const std::vector<v1::Device>& devices);

  // The text exposition format, version 0.0.4. Series of jobs that ended more than five minutes ago are dropped first.
  std::string Serialize();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_METRICS_METRICS_H_
