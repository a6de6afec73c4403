// Pausing and resuming. That a job is to be paused is in its record from the call on (`pause_reason`), whatever state
// it is in until it is PAUSED: it outlives attempts, failures and daemons.
#include "engine/core/status.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

constexpr char kByRequest[] = "paused by request";
constexpr char kToBePaused[] = "to be paused";

absl::Status WrongState(const v1::Job& job, const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " is ", v1::Job::State_Name(job.state()), ": ", what));
}

}  // namespace

void ControllerCore::ChangeJob(const std::string& id, std::function<absl::Status(LiveJob&)> change,
                               ReplyPtr<v1::Job> reply) {
  auto found = std::make_shared<Reply<v1::Job>>([this, change = std::move(change), reply](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return reply->Send(job.status());
    LiveJob* live = Find(job->id());
    if (live == nullptr || IsTerminal(live->job.state())) {
      return reply->Send(WrongState(live == nullptr ? *job : live->job.proto(), "it has ended"));
    }
    if (const absl::Status status = change(*live); !status.ok()) return reply->Send(status);
    live->waiters.push_back([this, whole_id = job->id(), reply](const absl::Status& status) {
      if (!status.ok()) return reply->Send(status);
      GetJob(whole_id, reply);
    });
    Touch(*live);
  });
  FindToChange(id, std::move(found));
}

void ControllerCore::PauseJob(const std::string& id, ReplyPtr<v1::Job> reply) {
  ChangeJob(
      id, [this](LiveJob& live) { return PauseLive(live); }, std::move(reply));
}

void ControllerCore::ResumeJob(const std::string& id, ReplyPtr<v1::Job> reply) {
  ChangeJob(
      id, [this](LiveJob& live) { return ResumeLive(live); }, std::move(reply));
}

absl::Status ControllerCore::PauseLive(LiveJob& live) {
  const v1::Job::State state = live.job.state();
  if (state == v1::Job::CANCELLING) return WrongState(live.job.proto(), "it cannot be paused");
  live.job.MutableRecord().job.set_pause_reason(v1::Job::REQUESTED);
  if (state == v1::Job::QUEUED || state == v1::Job::RETRYING) {
    timers_.Cancel(&live.retry_timer);
    Enter(live, v1::Job::PAUSED, kByRequest);
    return absl::OkStatus();
  }
  // It was so for want of room, perhaps: it does not go on by itself any more.
  timers_.Cancel(&live.space_timer);
  // Another stop ends the attempt; what becomes of the job then heeds the record.
  if (!HoldsDevice(state) || (live.stop != Stop::kNone && live.stop != Stop::kPreempt)) return absl::OkStatus();
  StopForLater(live, Stop::kPause, kToBePaused);
  return absl::OkStatus();
}

void ControllerCore::StopForLater(LiveJob& live, Stop stop, const std::string& reason) {
  const v1::Job::State state = live.job.state();
  const bool told = std::exchange(live.stop, stop) == Stop::kPreempt;
  timers_.Cancel(&live.preempt_timer);
  if (state == v1::Job::RUNNING) Enter(live, v1::Job::PREEMPTING, reason);
  if (!live.launched) {
    WorkerGone(live);
  } else if (state == v1::Job::STARTING) {
    // A worker that never attached has nothing to save.
    Kill(live);
  } else if (!told && live.connection != nullptr && live.welcomed) {
    // One that is to be paused is not killed if it takes its time: nothing is to be lost, and a worker that is dead
    // shows no heartbeat.
    SendStop(live);
  }
}

absl::Status ControllerCore::ResumeLive(LiveJob& live) {
  if (live.job.state() != v1::Job::PAUSED) {
    const bool stops = live.job.proto().pause_reason() != v1::Job::PAUSE_REASON_UNSPECIFIED;
    return WrongState(live.job.proto(), stops ? "it is not paused yet" : "it is not paused");
  }
  timers_.Cancel(&live.space_timer);
  Enter(live, v1::Job::QUEUED, "resumed by request");
  return absl::OkStatus();
}

void ControllerCore::Requeue(LiveJob& live, const std::string& reason) {
  switch (live.job.proto().pause_reason()) {
    case v1::Job::PAUSE_REASON_UNSPECIFIED:
      return Enter(live, v1::Job::QUEUED, reason);
    case v1::Job::REQUESTED:
      return Enter(live, v1::Job::PAUSED, reason.empty() ? kByRequest : absl::StrCat(kByRequest, "; ", reason));
    default:
      return Enter(live, v1::Job::PAUSED, reason);
  }
}

}  // namespace ampd
