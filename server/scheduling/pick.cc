#include "server/scheduling/pick.h"

#include <algorithm>

namespace ampd {
namespace {

bool CanUse(const QueuedJob& job, const std::string& device) {
  return std::find(job.unusable_devices.begin(), job.unusable_devices.end(), device) == job.unusable_devices.end();
}

v1::Job::QueueReason ReasonOf(const QueuedJob& job, const SchedulingSnapshot& snapshot) {
  if (snapshot.draining) return v1::Job::DRAINING;
  for (const HeldBack& held : snapshot.held_back) {
    if (CanUse(job, held.device_id)) return held.reason;
  }
  return v1::Job::RESOURCES;
}

}  // namespace

Decision Pick(const SchedulingSnapshot& snapshot, absl::Time /*now*/) {
  std::vector<const QueuedJob*> order;
  order.reserve(snapshot.queued.size());
  for (const QueuedJob& job : snapshot.queued) order.push_back(&job);
  std::sort(order.begin(), order.end(),
            [](const QueuedJob* a, const QueuedJob* b) { return a->submit_sequence < b->submit_sequence; });
  std::vector<std::string> free;
  if (!snapshot.draining) free = snapshot.free_devices;
  Decision decision;
  for (const QueuedJob* job : order) {
    const auto device = std::find_if(free.begin(), free.end(), [&](const std::string& id) { return CanUse(*job, id); });
    if (device != free.end()) {
      decision.start.push_back({job->id, *device});
      free.erase(device);
    } else {
      const auto position = static_cast<int32_t>(decision.wait.size() + 1);
      decision.wait.push_back({job->id, position, ReasonOf(*job, snapshot)});
    }
  }
  return decision;
}

}  // namespace ampd
