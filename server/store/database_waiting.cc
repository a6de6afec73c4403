// What metrics tell of jobs, at the start of a daemon.
#include <algorithm>
#include <optional>

#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
}

// The last time, of the job of that number; nullopt: never.
absl::StatusOr<std::optional<absl::Time>> EntryIntoQueue(const Database& database, int64_t job) {
  Statement query(database, "SELECT event FROM events WHERE job=?1 ORDER BY sequence DESC");
  query.Int(job);
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return std::nullopt;
    v1::JobEvent event;
    AMPD_RETURN_IF_ERROR(query.ParseAt(0, &event));
    if (event.state_change().to() == v1::Job::QUEUED) return TimeOf(event);
  }
}

template <typename Phases>
void Raise(const Phases& phases, std::map<std::string, PhaseSteps>* most) {
  for (const auto& phase : phases) {
    PhaseSteps& steps = (*most)[phase.name()];
    steps.applied = std::max<int64_t>(steps.applied, phase.steps_applied());
    steps.skipped = std::max<int64_t>(steps.skipped, phase.steps_skipped());
  }
}

}  // namespace

// Hardly anything happens to a job while it waits: mostly its last events tell.
absl::StatusOr<std::map<std::string, absl::Time>> Database::QueuedSince() const {
  Statement query(*this,
                  "SELECT j.id, j.sequence, e.event FROM jobs j JOIN events e ON e.job=j.sequence AND "
                  "e.sequence>j.last_event-8 WHERE j.state=?1 ORDER BY j.sequence, e.sequence");
  query.Int(v1::Job::QUEUED);
  std::map<std::string, absl::Time> since;
  // Their numbers.
  std::map<std::string, int64_t> missed;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) break;
    v1::JobEvent event;
    AMPD_RETURN_IF_ERROR(query.ParseAt(2, &event));
    const std::string id = query.BytesAt(0);
    if (event.state_change().to() == v1::Job::QUEUED) {
      since[id] = TimeOf(event);
      missed.erase(id);
    } else if (since.count(id) == 0) {
      missed[id] = query.IntAt(1);
    }
  }
  for (const auto& [id, number] : missed) {
    AMPD_ASSIGN_OR_RETURN(const std::optional<absl::Time> entry, EntryIntoQueue(*this, number));
    if (entry) since[id] = *entry;
  }
  return since;
}

// Before its first attempt a job has no steps.
absl::StatusOr<StepsOfJobs> Database::LastSteps() const {
  Statement query(*this,
                  "SELECT j.id, e.event FROM jobs j JOIN events e ON e.job=j.sequence AND e.sequence>j.last_event-200 "
                  "WHERE j.state<?1 AND j.attempt>0");
  query.Int(v1::Job::SUCCEEDED);
  StepsOfJobs steps;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return steps;
    v1::JobEvent event;
    AMPD_RETURN_IF_ERROR(query.ParseAt(1, &event));
    if (event.step().phases().empty() && event.checkpoint().phases().empty()) continue;
    std::map<std::string, PhaseSteps>& most = steps[query.BytesAt(0)];
    Raise(event.step().phases(), &most);
    Raise(event.checkpoint().phases(), &most);
  }
}

absl::StatusOr<std::map<std::string, v1::Job::PauseReason>> Database::PauseReasons() const {
  Statement query(*this, "SELECT id, job FROM jobs WHERE state=?1");
  query.Int(v1::Job::PAUSED);
  std::map<std::string, v1::Job::PauseReason> reasons;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return reasons;
    v1::Job job;
    AMPD_RETURN_IF_ERROR(query.ParseAt(1, &job));
    reasons[query.BytesAt(0)] = job.pause_reason();
  }
}

}  // namespace ampd
