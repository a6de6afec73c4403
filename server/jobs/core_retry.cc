// Queuing jobs again that have ended.
#include <string>
#include <utility>

#include "engine/core/status.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

// How to go on behind its limit, where that is possible.
std::string GoingOn(const v1::Job& job) {
  if (job.summary().checkpoint().empty()) return "";
  return "; a new job with another limit may continue its training (start_from.continue_training)";
}

// Why the job would only end as it did.
absl::Status CannotRetry(const v1::Job& job, absl::Duration run_time) {
  if (job.state() != v1::Job::FAILED && job.state() != v1::Job::CANCELLED) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " is ", v1::Job::State_Name(job.state()),
                                                      ": only FAILED and CANCELLED ones are retried"));
  }
  const v1::LimitSpec& limits = job.spec().limits();
  if (limits.has_max_run_seconds() && run_time >= absl::Seconds(limits.max_run_seconds())) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " ran for ", absl::FormatDuration(run_time),
                                                      " of limits.max_run_seconds: ", limits.max_run_seconds(),
                                                      GoingOn(job)));
  }
  if (limits.has_max_cost_usd() && job.cost_usd() >= limits.max_cost_usd()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " cost ", job.cost_usd(), " of limits.max_cost_usd: ", limits.max_cost_usd(), GoingOn(job)));
  }
  return absl::OkStatus();
}

// It would go on from its checkpoint, by its old plan, with data of another kind.
absl::Status CheckDatasets(const JobRecord& job, const std::map<std::string, std::string>& now) {
  for (const auto& [name, content] : job.datasets) {
    const auto found = now.find(name);
    if (found != now.end() && found->second == content) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("dataset ", name, " is not the one that job ", job.job.id(),
                     " was submitted with: that was deleted, and another has its name; submit a new job"));
  }
  return absl::OkStatus();
}

// Of the jobs that must succeed before this one, the states; STATE_UNSPECIFIED: there is no such job any more.
absl::StatusOr<JobStates> FindNeeded(const v1::Job& job, const Database& database) {
  JobStates needed;
  if (job.attempt() > 0) return needed;
  for (const std::string& id : job.spec().after_ok()) {
    const absl::StatusOr<JobRecord> other = database.FindJob(id);
    if (!other.ok() && !absl::IsNotFound(other.status())) return other.status();
    needed[id] = other.ok() ? other->job.state() : v1::Job::STATE_UNSPECIFIED;
  }
  return needed;
}

}  // namespace

void ControllerCore::RetryJob(RetryJobParams params, ReplyPtr<v1::Job> reply) {
  auto shared = std::make_shared<const RetryJobParams>(std::move(params));
  store_->ReadInOrder([this, shared, reply = std::move(reply)](const Database& database) {
    absl::StatusOr<JobRecord> record = database.FindJob(shared->job_id);
    absl::StatusOr<JobStates> needed =
        record.ok() ? FindNeeded(record->job, database) : absl::StatusOr<JobStates>(record.status());
    post_([this, shared, reply, record = std::move(record), needed = std::move(needed)]() mutable {
      if (!needed.ok()) return reply->Send(needed.status());
      const std::string whole_id = record->job.id();
      if (const absl::Status status = Revive(*std::move(record), *shared, *needed); !status.ok()) {
        return reply->Send(status);
      }
      LiveJob& live = *Find(whole_id);
      live.waiters.push_back([this, whole_id, reply](const absl::Status& status) {
        if (!status.ok()) return reply->Send(status);
        GetJob(whole_id, reply);
      });
    });
  });
}

// It would be cancelled at once.
absl::Status ControllerCore::CheckNeeded(const std::string& id, const JobStates& needed) const {
  for (const auto& [other, durable] : needed) {
    const auto live = live_.find(other);
    const v1::Job::State state = live == live_.end() ? durable : live->second.job.state();
    if (state == v1::Job::STATE_UNSPECIFIED) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", id, ": job ", other, ", which must succeed first (after_ok), is not known any more"));
    }
    if (!IsTerminal(state) || state == v1::Job::SUCCEEDED) continue;
    return absl::FailedPreconditionError(absl::StrCat("job ", id, ": job ", other,
                                                      ", which must succeed first (after_ok), ended ",
                                                      v1::Job::State_Name(state), "; retry that one first"));
  }
  return absl::OkStatus();
}

absl::Status ControllerCore::Revive(JobRecord record, const RetryJobParams& params, const JobStates& needed) {
  if (draining_->load()) return absl::UnavailableError("the daemon is shutting down");
  // An ended job that is not in memory has not changed since it was read: its next change would have made it live.
  const std::string id = record.job.id();
  LiveJob* live = Find(id);
  Job ended = live == nullptr ? Job(std::move(record)) : live->job;
  AMPD_RETURN_IF_ERROR(CannotRetry(ended.proto(), ended.RunTime()));
  AMPD_RETURN_IF_ERROR(CheckDatasets(ended.record(), params.datasets));
  AMPD_RETURN_IF_ERROR(CheckNeeded(id, needed));
  AMPD_RETURN_IF_ERROR(CheckQueueQuota(ended.proto().user(), 1));
  if (live == nullptr) {
    if (params.start != nullptr) {
      AMPD_RETURN_IF_ERROR(params.start->GiveTo(id));
      if (const absl::Status synced = starts_.Sync(); !synced.ok()) {
        starts_.Release(id);
        return synced;
      }
    }
    live = &live_.emplace(id, LiveJob(std::move(ended))).first->second;
  }
  Enter(*live, v1::Job::QUEUED, "retried by request");
  JobRecord& revived = live->job.MutableRecord();
  // Left over by a daemon that ended before it saw the worker end.
  if (!live->has_worker && revived.worker.pid != 0) KillUntilGone(std::exchange(revived.worker, WorkerProcess()));
  revived.job.clear_end_time();
  revived.job.clear_failures();
  revived.lost_attempts = 0;
  revived.cancel_now = false;
  LookUpDependencies(AddDependencies(*live));
  return absl::OkStatus();
}

}  // namespace ampd
