// What metrics tell of jobs, at the start of a daemon.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

// Some reports of each phase, however seldom it takes a step.
constexpr int64_t kPage = 200;

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

// Its training may go back within an attempt.
bool RollsBack(const v1::JobSpec& spec) {
  return spec.precision().loss_scale().on_floor() == v1::LossScaleSpec::ROLLBACK;
}

// Events of one job, newest first.
struct Page {
  int64_t events = 0;
  // Of the first and the last of them.
  int64_t newest_attempt = 0;
  int64_t oldest_attempt = 0;
  int64_t oldest_sequence = 0;
};

// Of the job's events up to that one the last kPage.
absl::StatusOr<Page> ReadPage(const Database& database, int64_t job, int64_t sequence,
                              std::map<std::string, PhaseSteps>* most) {
  Statement query(database,
                  "SELECT sequence, attempt, event FROM events WHERE job=?1 AND sequence<=?2 ORDER BY sequence DESC "
                  "LIMIT ?3");
  query.Int(job).Int(sequence).Int(kPage);
  Page page;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return page;
    page.oldest_sequence = query.IntAt(0);
    page.oldest_attempt = query.IntAt(1);
    if (page.events++ == 0) page.newest_attempt = page.oldest_attempt;
    v1::JobEvent event;
    AMPD_RETURN_IF_ERROR(query.ParseAt(2, &event));
    Raise(event.step().phases(), most);
    Raise(event.checkpoint().phases(), most);
  }
}

// The last event of an earlier attempt than that of the event `sequence`, which is `attempt`; 0: none. Attempts follow
// each other in the log.
absl::StatusOr<int64_t> LastOfEarlier(const Database& database, int64_t job, int64_t attempt, int64_t sequence) {
  int64_t earlier = 0;
  while (sequence - earlier > 1) {
    const int64_t middle = earlier + (sequence - earlier) / 2;
    Statement query(database,
                    "SELECT sequence, attempt FROM events WHERE job=?1 AND sequence>=?2 ORDER BY sequence LIMIT 1");
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Int(job).Int(middle).Step());
    if (row && query.IntAt(1) < attempt) {
      earlier = query.IntAt(0);
    } else {
      sequence = middle;
    }
  }
  return earlier;
}

// Within an attempt steps only grow, unless it rolls back: its last events tell the most.
absl::Status FindMostSteps(const Database& database, int64_t job, int64_t last_event, bool rolls_back,
                           std::map<std::string, PhaseSteps>* most) {
  int64_t next = last_event;
  while (next > 0) {
    AMPD_ASSIGN_OR_RETURN(const Page page, ReadPage(database, job, next, most));
    if (page.events < kPage || page.oldest_attempt == 0) break;
    next = page.oldest_sequence - 1;
    // Else the last events of the oldest attempt on the page may be on the next one, too.
    if (rolls_back || page.newest_attempt != page.oldest_attempt) continue;
    AMPD_ASSIGN_OR_RETURN(next, LastOfEarlier(database, job, page.oldest_attempt, page.oldest_sequence));
  }
  return absl::OkStatus();
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
                  "SELECT j.sequence, j.id, j.last_event, s.spec FROM jobs j JOIN job_specs s USING(sequence) "
                  "WHERE j.state<?1 AND j.attempt>0");
  query.Int(v1::Job::SUCCEEDED);
  StepsOfJobs steps;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return steps;
    v1::JobSpec spec;
    AMPD_RETURN_IF_ERROR(query.ParseAt(3, &spec));
    std::map<std::string, PhaseSteps> most;
    AMPD_RETURN_IF_ERROR(FindMostSteps(*this, query.IntAt(0), query.IntAt(2), RollsBack(spec), &most));
    if (!most.empty()) steps[query.BytesAt(1)] = std::move(most);
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
