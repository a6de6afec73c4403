// Stopping running jobs for another one. A worker that was told to stop cannot be told otherwise, so it is asked for a
// checkpoint alone first: that shows that it can write one in time (docs/decisions/0032-lifecycle-verbs.md). Of several
// that are to stop for the same job none is told to before all have shown it.
#include <algorithm>
#include <string>
#include <vector>

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
  live.preempt_timer = After(options_.preempt_grace, live, &ControllerCore::OnPreemptGrace);
  // A measurement has no checkpoint to wait for: what it measured has been told of, and it goes on from there.
  live.preempt_ready = live.job.proto().spec().has_bench();
  if (!live.preempt_ready) SendCommand(live, v1::DaemonCommand::CHECKPOINT);
  return true;
}

bool ControllerCore::PreemptJob(const std::string& id, const std::string& for_job) {
  LiveJob* live = Find(id);
  if (live == nullptr || !Preempt(*live, for_job)) return false;
  StopIfReady(AskedFor(for_job));
  return true;
}

std::vector<LiveJob*> ControllerCore::AskedFor(const std::string& for_job) {
  std::vector<LiveJob*> asked;
  for (const DeviceSlot& slot : devices_) {
    for (const std::string& id : slot.job_ids) {
      LiveJob* live = Find(id);
      if (live == nullptr || live->job.state() != v1::Job::PREEMPTING || live->stop != Stop::kNone) continue;
      const bool is_new = std::find(asked.begin(), asked.end(), live) == asked.end();
      if (live->preempted_for == for_job && is_new) asked.push_back(live);
    }
  }
  return asked;
}

void ControllerCore::OnPreemptGrace(LiveJob& live) {
  live.preempt_timer = 0;
  if (live.job.state() != v1::Job::PREEMPTING || live.stop != Stop::kNone) return;
  const std::string for_job = live.preempted_for;
  if (live.preempt_ready) {
    // It waits for others. They have graces of their own, which may have begun later, and may be gone by another way.
    StopForJob(for_job);
    const bool waits = live.job.state() == v1::Job::PREEMPTING && live.stop == Stop::kNone;
    if (waits) live.preempt_timer = After(options_.preempt_grace, live, &ControllerCore::OnPreemptGrace);
    return;
  }
  live.left_running = clock_->Monotonic();
  LeaveRunning(live, absl::StrCat("no checkpoint within ", absl::FormatDuration(options_.preempt_grace)));
  for (LiveJob* other : AskedFor(for_job)) {
    LeaveRunning(*other, absl::StrCat("job ", live.job.id(), ", which was to stop for job ", for_job,
                                      " as well, wrote no checkpoint in time"));
  }
}

void ControllerCore::OnPreemptCheckpoint(LiveJob& live) {
  live.preempt_ready = true;
  StopForJob(live.preempted_for);
}

void ControllerCore::StopForJob(const std::string& for_job) {
  const LiveJob* other = Find(for_job);
  const bool waits = other != nullptr && other->job.state() == v1::Job::QUEUED;
  const std::vector<LiveJob*> asked = AskedFor(for_job);
  const auto stops = [&](const LiveJob* live) { return waits && StillStopsFor(*live, *other); };
  if (std::all_of(asked.begin(), asked.end(), stops)) return StopIfReady(asked);
  // It was cancelled meanwhile, or started elsewhere, or does not get all that it needs. Whom else the job keeps
  // waiting, the next round tells.
  for (LiveJob* live : asked) {
    LeaveRunning(*live, absl::StrCat("job ", for_job,
                                     stops(live) ? " does not get all that it needs"
                                     : waits     ? " comes before it no more"
                                                 : " waits no more"));
  }
}

void ControllerCore::StopIfReady(const std::vector<LiveJob*>& asked) {
  const auto is_ready = [](const LiveJob* live) { return live->preempt_ready; };
  if (!std::all_of(asked.begin(), asked.end(), is_ready)) return;
  for (LiveJob* live : asked) StopPreempted(*live);
}

void ControllerCore::LeaveRunning(LiveJob& live, const std::string& why) {
  timers_.Cancel(&live.preempt_timer);
  live.preempt_ready = false;
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
