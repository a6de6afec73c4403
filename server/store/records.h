// What the store holds, as plain values.
#ifndef AMPD_SERVER_STORE_RECORDS_H_
#define AMPD_SERVER_STORE_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/auth.pb.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "server/store/job_filter.h"

namespace ampd {

// Whose jobs are meant; nullopt: everybody's.
using Owner = std::optional<std::string>;

// A process that outlives changes of its pid's owner: both fields together name one process of this boot.
struct WorkerProcess {
  // 0: none.
  int64_t pid = 0;
  // Clock ticks since boot, field 22 of /proc/PID/stat.
  uint64_t start_time = 0;

  friend bool operator==(const WorkerProcess&, const WorkerProcess&) = default;
};

// Time on devices (of one that is shared, the job's part of it) and its price, and what of them was for nothing.
struct Charged {
  double device_seconds = 0;
  double usd = 0;
  double wasted_device_seconds = 0;
  double wasted_usd = 0;

  friend bool operator==(const Charged&, const Charged&) = default;
};

// A job with everything that must survive a restart of the daemon.
struct JobRecord {
  v1::Job job;
  // Order of submission, from 1; unique.
  int64_t submit_sequence = 0;
  // The process of the current attempt; pid 0 when there is none, or it was not launched yet.
  WorkerProcess worker;
  // SHA-256 of the current attempt's one-time token; empty once the session key was used.
  std::string token_hash;
  // SHA-256 of the current attempt's session key; empty before the first attach.
  std::string session_key_hash;
  // Highest event number of the current attempt's worker that the event log holds.
  uint64_t worker_number = 0;
  // Highest attempted step that the events report since the last `rewound`.
  int64_t last_reported_step = 0;
  // Seconds in RUNNING over all attempts, up to `run_counted`.
  double run_seconds = 0;
  // While it is RUNNING: up to when that is counted, on the clock that never goes back (Clock::Monotonic), which counts
  // on over restarts of the daemon for as long as the machine runs.
  std::optional<absl::Duration> run_counted;
  // Attempts in a row, without a checkpoint between them, whose worker was lost together with the daemon.
  int32_t lost_attempts = 0;
  // The longest time that a checkpoint of it took; empty before the first.
  std::optional<absl::Duration> checkpoint_time;
  // While it is CANCELLING: its worker is to be killed, not asked for a checkpoint.
  bool cancel_now = false;
  // Ids of the waiting jobs that its present attempt started ahead of, on what is reserved for them.
  std::vector<std::string> overtook;
  // The uploaded datasets that its spec names: by name, what they contained when it was submitted, as SHA-256 in hex.
  // Does not change.
  std::map<std::string, std::string> datasets;
  // Its summaries as they were at its newest checkpoints, by step: what is left of them when training goes back there.
  std::map<int64_t, v1::JobSummary> at_checkpoints;
  // What it was charged so far, and had been when it stood at its newest checkpoints, by step.
  Charged charged;
  std::map<int64_t, Charged> charged_at_checkpoints;
};

// One durable change of one job; applied as a whole or not at all.
struct JobWrite {
  // Creates the job; otherwise it must exist, and the stored spec and plan are left alone.
  bool create = false;
  // The record's spec takes the place of the stored one.
  bool new_spec = false;
  // With `create`, and not empty: remembered together with `body_hash`.
  std::string request_id;
  std::string body_hash;
  JobRecord record;
  // Appended to the event log; sequences follow the job's last one without a gap.
  std::vector<v1::JobEvent> events;
  // With `create`, of the first job of a sweep: its id, and how many jobs it has, whose submit sequences follow each
  // other. Empty: none.
  std::string sweep_id;
  int64_t sweep_jobs = 0;
  // Added to the fleet's counters.
  std::map<std::string, double> counter_deltas;
};

// What was asked for under a request id.
struct RequestRecord {
  std::string body_hash;
  std::string job_id;
};

// Steps of a job's phase over all attempts, as its reports tell them.
struct PhaseSteps {
  int64_t applied = 0;
  int64_t skipped = 0;

  friend bool operator==(const PhaseSteps&, const PhaseSteps&) = default;
};

// By job's id, then by phase.
using StepsOfJobs = std::map<std::string, std::map<std::string, PhaseSteps>>;

// A device on which no job is to start.
struct DrainRecord {
  std::string device;
  // For people.
  std::string reason;
  absl::Time time;
  // Jobs that ran on it were to stop.
  bool stop_jobs = false;
};

// A client's token, without its secret.
struct TokenRecord {
  v1::Token token;
  // SHA-256 of the secret.
  std::string hash;
};

// Where a job lies, how much of it, and its state.
struct JobLocation {
  std::string id;
  int64_t sequence = 0;
  // Of its spec and plan.
  int64_t bytes = 0;
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
};

// The jobs of a sweep by their submit sequences.
struct SweepRecord {
  std::string id;
  int64_t first = 0;
  int64_t jobs = 0;
};

struct EventPage {
  std::vector<v1::JobEvent> events;
  // Of the job's newest event; 0 when there is none.
  uint64_t last_sequence = 0;
};

// Which jobs, in which order, how many.
struct JobQuery {
  // Jobs on a page, >= 1. A page may have fewer, or none, though more follow.
  int page_size = 100;
  // Of the page before; empty: the first page.
  std::string page_token;
  // In one of these; empty: any.
  std::vector<v1::Job::State> states;
  JobFilter filter;
  JobOrder order;
  // Of this user alone; empty optional: of all.
  std::optional<std::string> owner;
};

// INVALID_ARGUMENT for a page token that ListJobs did not give for the rest of the query.
absl::Status CheckPageToken(const JobQuery& query);

struct JobPage {
  std::vector<v1::Job> jobs;
  // Empty on the last page.
  std::string next_page_token;
};

struct SweepQuery {
  // Sweeps on a page, >= 1. A page may have fewer, but one at least where there is one.
  int page_size = 100;
  // Of the page before; empty: the first page.
  std::string page_token;
  // Of this user alone; empty optional: of all.
  std::optional<std::string> user;
};

// INVALID_ARGUMENT for a page token that ListSweeps did not give for this user.
absl::Status CheckPageToken(const SweepQuery& query);

struct SweepPage {
  std::vector<v1::SweepSummary> sweeps;
  // Empty on the last page.
  std::string next_page_token;
};

}  // namespace ampd

#endif  // AMPD_SERVER_STORE_RECORDS_H_
