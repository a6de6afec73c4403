// A state directory without room: nothing starts, and what could not be written is tried again when there is room.
#include <utility>

#include "engine/core/status.h"
#include "server/jobs/core.h"
#include "server/jobs/retry_policy.h"

namespace ampd {
namespace {

// The daemon may see room where a worker sees none: a quota, or a checkpoint larger than what is free.
constexpr double kFirstWaitSeconds = 1;
constexpr double kLongestWaitSeconds = 300;

bool WaitsForSpace(const LiveJob& live) {
  return live.job.state() == v1::Job::PAUSED && live.job.proto().pause_reason() == v1::Job::NO_DISK_SPACE;
}

}  // namespace

void ControllerCore::SetDiskShortage(std::string shortage) {
  if (shortage == disk_shortage_) return;
  disk_shortage_ = std::move(shortage);
  needs_schedule_ = true;
  if (!disk_shortage_.empty()) return;
  for (auto& [id, live] : live_) {
    if (live.space_timer == 0) ResumeForSpace(live);
  }
}

void ControllerCore::NoteStoreWrite(const absl::Status& status) {
  const bool full = absl::IsResourceExhausted(status);
  // Another error says nothing of the room: only what was written does.
  if (full == !store_shortage_.empty() || (!full && !status.ok())) return;
  store_shortage_ = full ? "the state directory takes no writes: it has no room" : "";
  needs_schedule_ = true;
}

void ControllerCore::PauseForSpace(LiveJob& live, const std::string& message) {
  const bool by_request = live.job.proto().pause_reason() != v1::Job::PAUSE_REASON_UNSPECIFIED;
  if (by_request) return Requeue(live, message);
  live.job.MutableRecord().job.set_pause_reason(v1::Job::NO_DISK_SPACE);
  Enter(live, v1::Job::PAUSED, absl::StrCat("no room in the state directory: ", message));
  v1::RetrySpec wait;
  wait.set_backoff_seconds(kFirstWaitSeconds);
  wait.set_max_backoff_seconds(kLongestWaitSeconds);
  timers_.Cancel(&live.space_timer);
  live.space_timer = After(RetryDelay(wait, ++live.space_pauses, Draw()), live, &ControllerCore::ResumeForSpace);
}

void ControllerCore::ResumeForSpace(LiveJob& live) {
  live.space_timer = 0;
  if (!WaitsForSpace(live) || !disk_shortage_.empty()) return;
  Enter(live, v1::Job::QUEUED, "the state directory has room again");
}

}  // namespace ampd
