// One job in memory: its record, and the changes of it that are not durable yet.
#ifndef AMPD_SERVER_JOBS_JOB_H_
#define AMPD_SERVER_JOBS_JOB_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/job_state.h"
#include "server/store/records.h"

namespace ampd {

// Not thread-safe.
class Job {
 public:
  // As it is in the store.
  explicit Job(JobRecord record) : record_(std::move(record)) {}
  // A new one in QUEUED, with its first event.
  static Job New(const std::string& id, int64_t submit_sequence, v1::JobSpec spec, v1::ModelPlan plan, absl::Time now);

  const JobRecord& record() const { return record_; }
  const v1::Job& proto() const { return record_.job; }
  const std::string& id() const { return record_.job.id(); }
  v1::Job::State state() const { return record_.job.state(); }

  // Enters `to`: appends the state_change event (with `failure` for FAILED and RETRYING, the summary for SUCCEEDED)
  // and keeps the times, the run time and the failure. Entering STARTING begins the next attempt. FAILED_PRECONDITION,
  // and nothing changes, when the table has no such edge.
  absl::Status TransitionTo(v1::Job::State to, const std::string& reason, absl::Time now,
                            const v1::Failure* failure = nullptr);

  // Appends what a worker reported, as its attempt's event `number`. `event.time` is kept, or set to `now`.
  void AddWorkerEvent(v1::JobEvent event, uint64_t number, absl::Time now);
  // A log line of the daemon's own.
  void AddWarning(const std::string& text, absl::Time now);

  // Adds to what the next write stores; the state, the events and the fields they feed are changed only by the above.
  JobRecord& MutableRecord();

  // Adds to the fleet's counters with the next write.
  void AddToCounters(const std::map<std::string, double>& deltas);
  // Changes what of the spec may change.
  void ReplaceSpec(v1::JobSpec spec);

  // Tells the time of the clock that never goes back, by which run time is counted: before a transition, before
  // TakeWrite and before RunTime. The wall clock may be set while a job runs.
  void Tick(absl::Duration monotonic);

  // Time in RUNNING up to the last Tick, over all attempts.
  absl::Duration RunTime() const { return absl::Seconds(record_.run_seconds); }

  // What passed since the last write was not spent running: for a worker that was found dead. Before the first Tick.
  void StopRunClock();

  bool dirty() const { return dirty_; }
  size_t pending_events() const { return pending_.events.size() + (in_flight_ ? in_flight_->events.size() : 0); }
  bool in_flight() const { return in_flight_.has_value(); }
  // What is to be written next; one write is in flight at a time, until WriteDone. Spec and plan go only with the write
  // that creates the job, after ReplaceSpec, and where it begins to run, for those who follow what it is asked for.
  JobWrite TakeWrite();
  // After a failure the same changes are part of the next write.
  void WriteDone(bool ok);

 private:
  void Append(v1::JobEvent event, absl::Time now);
  void KeepTimes(v1::Job::State to, absl::Time now);

  JobRecord record_;
  absl::Duration ticked_;
  bool dirty_ = false;
  // Events and counters only; the record is taken when the write is.
  JobWrite pending_;
  std::optional<JobWrite> in_flight_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_JOB_H_
