// Checkpoints that a running job is asked for.
#include <google/protobuf/util/time_util.h>

#include <utility>

#include "engine/core/status.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

// Of one job.
constexpr size_t kMostWaiters = 64;

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixNanos(google::protobuf::util::TimeUtil::TimestampToNanoseconds(event.time()));
}

v1::Checkpoint CheckpointOf(const v1::JobEvent& event) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(event.checkpoint().checkpoint());
  checkpoint.set_step(event.checkpoint().step());
  checkpoint.set_size_bytes(event.checkpoint().size_bytes());
  checkpoint.set_best(event.checkpoint().best());
  *checkpoint.mutable_time() = event.time();
  return checkpoint;
}

}  // namespace

absl::Status DoesNotRun(const v1::Job& job) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " does not run, it is ", v1::Job::State_Name(job.state())));
}

void ControllerCore::SendCommand(LiveJob& live, v1::DaemonCommand::Kind kind) {
  v1::DaemonMessage message;
  message.mutable_command()->set_kind(kind);
  live.connection->Send(std::move(message));
}

void ControllerCore::CheckpointJob(const std::string& id, ReplyPtr<v1::Checkpoint> reply) {
  auto found = std::make_shared<Reply<v1::Job>>([this, reply](absl::StatusOr<v1::Job> job) {
    // Whoever went away before takes no place.
    if (reply->is_sent()) return;
    if (!job.ok()) return reply->Send(job.status());
    LiveJob* live = Find(job->id());
    if (live == nullptr) return reply->Send(DoesNotRun(*job));
    const v1::Job::State state = live->job.state();
    if (live->finished || (state != v1::Job::RUNNING && state != v1::Job::PREEMPTING)) {
      return reply->Send(DoesNotRun(live->job.proto()));
    }
    if (live->job.proto().spec().has_bench()) {
      return reply->Send(absl::FailedPreconditionError(
          absl::StrCat("job ", job->id(), " measures (bench): it writes no checkpoints")));
    }
    if (live->checkpoint_waiters.size() >= kMostWaiters) {
      return reply->Send(absl::ResourceExhaustedError(
          absl::StrCat(kMostWaiters, " calls wait for a checkpoint of job ", job->id(), " already")));
    }
    live->checkpoint_waiters.push_back({reply, clock_->Now(), std::nullopt});
    if (live->connection != nullptr && live->welcomed) SendCommand(*live, v1::DaemonCommand::CHECKPOINT);
  });
  FindToChange(id, std::move(found));
}

void ControllerCore::LeaveCheckpoint(const ReplyPtr<v1::Checkpoint>& reply) {
  reply->Send(absl::CancelledError("the caller has gone away"));
  for (auto& [id, live] : live_) {
    std::erase_if(live.checkpoint_waiters, [&](const CheckpointWaiter& waiter) { return waiter.reply == reply; });
  }
}

void ControllerCore::OnCheckpoint(LiveJob& live, const v1::JobEvent& event) {
  if (!event.checkpoint().already_written()) live.space_pauses = 0;
  if (live.job.state() == v1::Job::PREEMPTING && live.stop == Stop::kNone) OnPreemptCheckpoint(live);
  // From now on little is lost.
  if (live.stop == Stop::kMove) ArmStop(live, 1);
  const absl::Time begun = TimeOf(event) - absl::Seconds(event.checkpoint().write_seconds());
  std::vector<CheckpointWaiter> waiters = std::exchange(live.checkpoint_waiters, {});
  for (CheckpointWaiter& waiter : waiters) {
    // A worker writes one at a time: the second that comes after a command was begun after the call, whatever the
    // clocks say.
    if (begun >= waiter.since || waiter.older) {
      AnswerCheckpoint(live, waiter.reply, CheckpointOf(event));
    } else {
      waiter.older = CheckpointOf(event);
      live.checkpoint_waiters.push_back(std::move(waiter));
    }
  }
  // What came may have been what the command brought about.
  if (live.checkpoint_waiters.empty() || live.connection == nullptr || !live.welcomed) return;
  SendCommand(live, v1::DaemonCommand::CHECKPOINT);
}

void ControllerCore::AnswerCheckpoint(LiveJob& live, const ReplyPtr<v1::Checkpoint>& reply,
                                      const v1::Checkpoint& checkpoint) {
  live.waiters.push_back([reply, checkpoint](const absl::Status& status) {
    if (!status.ok()) return reply->Send(status);
    reply->Send(checkpoint);
  });
  Touch(live);
}

void ControllerCore::EndCheckpointWaiters(LiveJob& live, bool succeeded) {
  for (const CheckpointWaiter& waiter : std::exchange(live.checkpoint_waiters, {})) {
    if (succeeded && waiter.older) {
      AnswerCheckpoint(live, waiter.reply, *waiter.older);
      continue;
    }
    waiter.reply->Send(absl::FailedPreconditionError(
        absl::StrCat("job ", live.job.id(), ": attempt ", live.job.proto().attempt(), " ended before it wrote one")));
  }
}

}  // namespace ampd
