#include "client/commands/explain.h"

#include <utility>

#include "absl/time/clock.h"

namespace ampd::client {

absl::StatusOr<JobAndEvents> FetchJob(Connection* connection, const std::string& job_id) {
  absl::StatusOr<v1::Job> job = connection->GetJob(job_id);
  if (!job.ok()) return job.status();
  absl::StatusOr<Events> events = connection->ReadEvents(job->id(), job->last_sequence());
  if (!events.ok()) return events.status();
  return JobAndEvents{*std::move(job), *std::move(events)};
}

double UnixNow() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

}  // namespace ampd::client
