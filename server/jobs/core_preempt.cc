// Stopping a running job for another one. A worker that was told to stop cannot be told otherwise, so it is asked for a
// checkpoint alone first: that shows that it can write one in time (docs/decisions/0032-lifecycle-verbs.md).
#include <algorithm>

#include "engine/core/status.h"
#include "server/jobs/core.h"

namespace ampd {
namespace {

// A job that was left running is not asked again for so many times its grace.
constexpr int kPauseGraces = 10;
// What a worker has to write its last checkpoint and stop, in times that one takes it; and preempt_grace at least.
constexpr double kStopCheckpoints = 1.5;

// Either priority may have been changed since the job was chosen.
bool StillStopsFor(const LiveJob& live, const LiveJob& other) {
  const int32_t own = live.job.proto().spec().resources().priority();
  const int32_t its = other.job.proto().spec().resources().priority();
  if (own != its) return own < its;
  const std::vector<std::string>& overtook = live.job.record().overtook;
  return std::find(overtook.begin(), overtook.end(), other.job.id()) != overtook.end();
}

}  // namespace

bool ControllerCore::LeftRunningLately(const LiveJob& live) const {
  return live.left_running && clock_->Monotonic() - *live.left_running < kPauseGraces * options_.preempt_grace;
}

bool ControllerCore::Preempt(LiveJob& live, const std::string& for_job) {
  if (live.job.state() != v1::Job::RUNNING || live.stop != Stop::kNone) return false;
  if (live.connection == nullptr || !live.welcomed) return false;
  if (LeftRunningLately(live)) return false;
  live.preempted_for = for_job;
  Enter(live, v1::Job::PREEMPTING, absl::StrCat("to make room for job ", for_job));
  // A measurement has no checkpoint to wait for: what it measured has been told of, and it goes on from there.
  if (live.job.proto().spec().has_bench()) {
    StopPreempted(live);
    return true;
  }
  live.preempt_timer = After(options_.preempt_grace, live, &ControllerCore::OnPreemptGrace);
  SendCommand(live, v1::DaemonCommand::CHECKPOINT);
  return true;
}

bool ControllerCore::PreemptJob(const std::string& id, const std::string& for_job) {
  LiveJob* live = Find(id);
  return live != nullptr && Preempt(*live, for_job);
}

void ControllerCore::OnPreemptGrace(LiveJob& live) {
  live.preempt_timer = 0;
  if (live.job.state() != v1::Job::PREEMPTING || live.stop != Stop::kNone) return;
  live.left_running = clock_->Monotonic();
  LeaveRunning(live, absl::StrCat("no checkpoint within ", absl::FormatDuration(options_.preempt_grace)));
}

void ControllerCore::OnPreemptCheckpoint(LiveJob& live) {
  const LiveJob* other = Find(live.preempted_for);
  const bool waits = other != nullptr && other->job.state() == v1::Job::QUEUED;
  if (waits && StillStopsFor(live, *other)) return StopPreempted(live);
  // It was cancelled meanwhile, or started elsewhere. Whom else the job keeps waiting, the next round tells.
  timers_.Cancel(&live.preempt_timer);
  LeaveRunning(live, absl::StrCat("job ", live.preempted_for, waits ? " comes before it no more" : " waits no more"));
}

void ControllerCore::LeaveRunning(LiveJob& live, const std::string& why) {
  Enter(live, v1::Job::RUNNING, absl::StrCat("left running: ", why));
  ArmLimits(live);
}

void ControllerCore::StopPreempted(LiveJob& live) {
  timers_.Cancel(&live.preempt_timer);
  live.stop = Stop::kPreempt;
  if (live.connection != nullptr && live.welcomed) SendStop(live);
}

void ControllerCore::ArmStop(LiveJob& live, int graces) {
  const absl::Duration own = kStopCheckpoints * live.job.record().checkpoint_time.value_or(absl::ZeroDuration());
  timers_.Cancel(&live.stop_timer);
  live.stop_timer = After(graces * std::max(options_.preempt_grace, own), live, &ControllerCore::Kill);
}

void ControllerCore::RequeuePreempted(LiveJob& live) {
  v1::Job& job = live.job.MutableRecord().job;
  job.set_preemptions(job.preemptions() + 1);
  Requeue(live, absl::StrCat("stopped for job ", live.preempted_for));
}

}  // namespace ampd
