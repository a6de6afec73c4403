#include "server/scheduling/pick.h"

#include <algorithm>

namespace ampd {

Decision Pick(const SchedulingSnapshot& snapshot, absl::Time /*now*/) {
  std::vector<const QueuedJob*> order;
  order.reserve(snapshot.queued.size());
  for (const QueuedJob& job : snapshot.queued) order.push_back(&job);
  std::sort(order.begin(), order.end(),
            [](const QueuedJob* a, const QueuedJob* b) { return a->submit_sequence < b->submit_sequence; });
  const size_t startable = snapshot.draining ? 0 : std::min(order.size(), snapshot.free_devices.size());
  const auto reason = snapshot.draining ? v1::Job::DRAINING : v1::Job::RESOURCES;
  Decision decision;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < startable) {
      decision.start.push_back({order[i]->id, snapshot.free_devices[i]});
    } else {
      decision.wait.push_back({order[i]->id, static_cast<int32_t>(i - startable + 1), reason});
    }
  }
  return decision;
}

}  // namespace ampd
