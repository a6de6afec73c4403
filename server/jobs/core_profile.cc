// Profiles that a running job is asked for.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

// Of one job.
constexpr size_t kMostWaiters = 16;

// Or is about to.
bool TakesSteps(v1::Job::State state) {
  return state == v1::Job::STARTING || state == v1::Job::RUNNING || state == v1::Job::RECOVERING ||
         state == v1::Job::PREEMPTING;
}

}  // namespace

void ControllerCore::ProfileJob(const v1::ProfileJobRequest& request, ReplyPtr<v1::StepProfile> reply) {
  auto found = std::make_shared<Reply<v1::Job>>([this, request, reply](absl::StatusOr<v1::Job> job) {
    // Whoever went away before takes no place.
    if (reply->is_sent()) return;
    if (!job.ok()) return reply->Send(job.status());
    LiveJob* live = Find(job->id());
    if (live == nullptr) return reply->Send(DoesNotRun(*job));
    if (live->finished || !TakesSteps(live->job.state())) return reply->Send(DoesNotRun(live->job.proto()));
    if (live->job.proto().spec().has_bench()) {
      return reply->Send(absl::FailedPreconditionError(
          absl::StrCat("job ", job->id(), " measures (bench): profile a job that trains")));
    }
    if (live->profile_waiters.size() >= kMostWaiters) {
      return reply->Send(absl::ResourceExhaustedError(
          absl::StrCat(kMostWaiters, " calls wait for a profile of job ", job->id(), " already")));
    }
    live->profile_waiters.push_back(reply);
    live->profile_request = request;
    SendProfile(*live);
  });
  FindToChange(request.job_id(), std::move(found));
}

void ControllerCore::LeaveProfile(const ReplyPtr<v1::StepProfile>& reply) {
  reply->Send(absl::CancelledError("the caller has gone away"));
  for (auto& [id, live] : live_) {
    std::vector<ReplyPtr<v1::StepProfile>>& waiters = live.profile_waiters;
    waiters.erase(std::remove(waiters.begin(), waiters.end(), reply), waiters.end());
  }
}

void ControllerCore::SendProfile(LiveJob& live) {
  if (live.profile_waiters.empty() || live.connection == nullptr || !live.welcomed) return;
  v1::DaemonMessage message;
  message.mutable_command()->set_kind(v1::DaemonCommand::PROFILE);
  message.mutable_command()->set_profile_steps(live.profile_request.steps());
  message.mutable_command()->set_profile_kernels(live.profile_request.kernels());
  live.connection->Send(std::move(message));
}

void ControllerCore::OnProfile(LiveJob& live, const v1::StepProfile& profile) {
  for (const ReplyPtr<v1::StepProfile>& reply : std::exchange(live.profile_waiters, {})) {
    live.waiters.push_back([reply, profile](const absl::Status& status) {
      if (!status.ok()) return reply->Send(status);
      reply->Send(profile);
    });
  }
}

void ControllerCore::EndProfileWaiters(LiveJob& live) {
  for (const ReplyPtr<v1::StepProfile>& reply : std::exchange(live.profile_waiters, {})) {
    reply->Send(
        absl::FailedPreconditionError(absl::StrCat("job ", live.job.id(), ": attempt ", live.job.proto().attempt(),
                                                   " ended before it took a step that was profiled")));
  }
}

}  // namespace ampd
