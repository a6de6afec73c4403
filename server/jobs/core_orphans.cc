// Workers that outlive a daemon, and those that nobody wants any more.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/core.h"

namespace ampd {

void ControllerCore::Detach(std::function<void()> done) {
  draining_->store(true);
  needs_schedule_ = true;
  WriteIdle();
  detach_done_.push_back(std::move(done));
}

void ControllerCore::CheckDetached() {
  if (detach_done_.empty() || idle_in_flight_) return;
  for (const auto& [id, live] : live_) {
    // One that is about to be launched: what the next daemon would wait for in vain, or not know the process of.
    if (live.job.dirty() || live.job.in_flight() || (live.has_worker && !live.launched)) return;
  }
  for (const auto& done : std::exchange(detach_done_, {})) done();
}

// At the start: a process that was launched just before the last daemon ended may not be in the store.
void ControllerCore::AdoptOrEnd(const FoundWorker& found) {
  LiveJob* live = Find(found.job_id);
  if (live != nullptr && live->has_worker && live->job.proto().attempt() == found.attempt) {
    if (live->job.record().worker.pid != 0) return;
    live->job.MutableRecord().worker = found.process;
    if (live->poll_timer == 0) Poll(*live);
    return Touch(*live);
  }
  if (live != nullptr) return EndOrphan(found, "its attempt is over");
  // One whose job has ended may only be waiting for a goodbye.
  timers_.Add(clock_->Monotonic() + options_.stop_grace, [this, found] {
    if (launcher_->IsAlive(found.process)) EndOrphan(found, "its job is over or unknown");
  });
}

// A worker is welcomed only once its process and session key are durable, and does nothing before: one that FindWorkers
// did not see, such as a child of the last daemon that has yet to become the program, is turned away when it dials.
bool ControllerCore::NeverBegan(const LiveJob& live) {
  const JobRecord& record = live.job.record();
  return live.adopted && live.has_worker && record.worker.pid == 0 && record.session_key_hash.empty();
}

void ControllerCore::EndOrphan(const FoundWorker& found, const std::string& why) {
  Log(absl::StrCat("killing an orphaned worker, pid ", found.process.pid, ": ", why), {found.job_id, found.attempt});
  KillUntilGone(found.process);
}

void ControllerCore::KillUntilGone(const WorkerProcess& process) {
  launcher_->Kill(process);
  timers_.Add(clock_->Monotonic() + kPollInterval, [this, process] {
    if (launcher_->IsAlive(process)) KillUntilGone(process);
  });
}

}  // namespace ampd
