#include "server/jobs/job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/core/status.h"
#include "server/jobs/summary.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

void SetTime(absl::Time time, google::protobuf::Timestamp* timestamp) {
  const int64_t nanos = absl::ToUnixNanos(time);
  const int64_t seconds = absl::ToUnixSeconds(time);
  timestamp->set_seconds(seconds);
  timestamp->set_nanos(static_cast<int32_t>(nanos - seconds * 1'000'000'000));
}

const char* TerminalCounter(v1::Job::State state) {
  if (state == v1::Job::SUCCEEDED) return kJobsSucceededCounter;
  return state == v1::Job::FAILED ? kJobsFailedCounter : kJobsCancelledCounter;
}

bool BeginsToRun(const std::vector<v1::JobEvent>& events) {
  return std::any_of(events.begin(), events.end(),
                     [](const v1::JobEvent& event) { return event.state_change().to() == v1::Job::RUNNING; });
}

}  // namespace

Job Job::New(const std::string& id, int64_t submit_sequence, v1::JobSpec spec, v1::ModelPlan plan, absl::Time now) {
  JobRecord record;
  record.submit_sequence = submit_sequence;
  record.job.set_id(id);
  *record.job.mutable_spec() = std::move(spec);
  *record.job.mutable_plan() = std::move(plan);
  record.job.set_state(v1::Job::QUEUED);
  SetTime(now, record.job.mutable_create_time());
  Job job(std::move(record));
  job.pending_.create = true;
  v1::JobEvent event;
  event.mutable_state_change()->set_to(v1::Job::QUEUED);
  job.Append(std::move(event), now);
  return job;
}

absl::Status Job::TransitionTo(v1::Job::State to, const std::string& reason, absl::Time now,
                               const v1::Failure* failure) {
  const v1::Job::State from = state();
  if (!IsLegalTransition(from, to)) {
    return absl::FailedPreconditionError(absl::StrCat("job ", id(), ": no transition from ", v1::Job::State_Name(from),
                                                      " to ", v1::Job::State_Name(to)));
  }
  KeepTimes(to, now);
  record_.job.set_state(to);
  if (to == v1::Job::STARTING) record_.job.set_attempt(record_.job.attempt() + 1);
  if (!HoldsDevice(to)) record_.job.clear_devices();
  record_.job.clear_failure();
  if (to == v1::Job::QUEUED || IsTerminal(to)) record_.job.clear_pause_reason();
  v1::JobEvent event;
  v1::StateChange& change = *event.mutable_state_change();
  change.set_from(from);
  change.set_to(to);
  change.set_reason(reason);
  if (failure != nullptr) {
    *record_.job.mutable_failure() = *failure;
    *change.mutable_failure() = *failure;
  }
  if (to == v1::Job::SUCCEEDED) *change.mutable_summary() = record_.job.summary();
  if (IsTerminal(to)) pending_.counter_deltas[TerminalCounter(to)] += 1;
  Append(std::move(event), now);
  return absl::OkStatus();
}

void Job::KeepTimes(v1::Job::State to, absl::Time now) {
  // A worker whose daemon is away trains on: the time until it is back, or given up, is run time as well.
  const bool was_running = record_.run_counted.has_value();
  const bool keeps_running = to == v1::Job::RUNNING || HoldsDevice(to);
  if (was_running && !keeps_running) StopRunClock();
  if (!was_running && to == v1::Job::RUNNING) record_.run_counted = ticked_;
  if (to == v1::Job::RUNNING && !record_.job.has_start_time()) SetTime(now, record_.job.mutable_start_time());
  if (IsTerminal(to)) SetTime(now, record_.job.mutable_end_time());
}

void Job::Tick(absl::Duration monotonic) {
  ticked_ = monotonic;
  if (!record_.run_counted) return;
  // It is ahead in a database that a daemon wrote before the machine was started anew, and by one that counted by the
  // wall clock.
  if (monotonic > *record_.run_counted) record_.run_seconds += absl::ToDoubleSeconds(monotonic - *record_.run_counted);
  record_.run_counted = monotonic;
}

void Job::StopRunClock() {
  record_.run_counted.reset();
  dirty_ = true;
}

void Job::AddWorkerEvent(v1::JobEvent event, uint64_t number, absl::Time now) {
  record_.worker_number = number;
  Append(std::move(event), now);
}

void Job::AddWarning(const std::string& text, absl::Time now) {
  v1::JobEvent event;
  event.mutable_log()->set_severity(v1::LogLine::WARNING);
  event.mutable_log()->set_text(text);
  Append(std::move(event), now);
}

void Job::Append(v1::JobEvent event, absl::Time now) {
  const uint64_t sequence = record_.job.last_sequence() + 1;
  record_.job.set_last_sequence(sequence);
  event.set_first_sequence(sequence);
  event.set_sequence(sequence);
  event.set_attempt(record_.job.attempt());
  if (!event.has_time()) SetTime(now, event.mutable_time());
  FoldEvent(event, &record_, &pending_.counter_deltas);
  pending_.events.push_back(std::move(event));
  dirty_ = true;
}

JobRecord& Job::MutableRecord() {
  dirty_ = true;
  return record_;
}

void Job::AddToCounters(const std::map<std::string, double>& deltas) {
  for (const auto& [name, delta] : deltas) pending_.counter_deltas[name] += delta;
  dirty_ = true;
}

void Job::ReplaceSpec(v1::JobSpec spec) {
  *record_.job.mutable_spec() = std::move(spec);
  pending_.new_spec = true;
  dirty_ = true;
}

JobWrite Job::TakeWrite() {
  JobWrite write = std::exchange(pending_, JobWrite());
  in_flight_ = write;
  dirty_ = false;
  if (write.create || write.new_spec || BeginsToRun(write.events)) {
    write.record = record_;
    return write;
  }
  // Both can be large.
  v1::JobSpec spec = std::move(*record_.job.mutable_spec());
  v1::ModelPlan plan = std::move(*record_.job.mutable_plan());
  record_.job.clear_spec();
  record_.job.clear_plan();
  write.record = record_;
  *record_.job.mutable_spec() = std::move(spec);
  *record_.job.mutable_plan() = std::move(plan);
  return write;
}

void Job::WriteDone(bool ok) {
  JobWrite flown = *std::exchange(in_flight_, std::nullopt);
  if (ok) return;
  flown.events.insert(flown.events.end(), std::make_move_iterator(pending_.events.begin()),
                      std::make_move_iterator(pending_.events.end()));
  flown.new_spec = flown.new_spec || pending_.new_spec;
  for (const auto& [name, delta] : pending_.counter_deltas) flown.counter_deltas[name] += delta;
  pending_ = std::move(flown);
  dirty_ = true;
}

}  // namespace ampd
