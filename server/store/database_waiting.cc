// Jobs that have no device, at the start of a daemon.
#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {

// Hardly anything happens to a job while it waits: its last events tell.
absl::StatusOr<std::map<std::string, absl::Time>> Database::QueuedSince() const {
  Statement query(*this,
                  "SELECT j.id, e.event FROM jobs j JOIN events e ON e.job=j.sequence AND e.sequence>j.last_event-8 "
                  "WHERE j.state=?1 ORDER BY j.sequence, e.sequence");
  query.Int(v1::Job::QUEUED);
  std::map<std::string, absl::Time> since;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return since;
    v1::JobEvent event;
    AMPD_RETURN_IF_ERROR(query.ParseAt(1, &event));
    if (event.state_change().to() != v1::Job::QUEUED) continue;
    since[query.BytesAt(0)] = absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
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
