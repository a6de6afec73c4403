#include "server/scheduling/preemption.h"

#include <algorithm>
#include <utility>

namespace ampd {

PreemptionPlanner::PreemptionPlanner(const SchedulingSnapshot& snapshot, DevicePool* pool, absl::Time now)
    : snapshot_(snapshot), pool_(pool), now_(now), is_stopping_(snapshot.running.size(), 0) {
  for (size_t r = 0; r < snapshot.running.size(); ++r) {
    const RunningJob& running = snapshot.running[r];
    is_stopping_[r] = running.stopping ? 1 : 0;
    any_stopping_ = any_stopping_ || running.stopping;
    if (!running.preemptible || running.stopping) continue;
    any_overtook_ = any_overtook_ || !running.overtook.empty();
    lowest_priority_ = std::min<int64_t>(lowest_priority_, running.priority);
  }
}

bool PreemptionPlanner::MayStop(const RunningJob& running, const QueuedJob& job) const {
  if (!running.preemptible || running.stopping) return false;
  if (!CheckpointFits(running.checkpoint_time, snapshot_.policy.stop_grace)) return false;
  if (running.priority < job.priority && now_ - running.start >= snapshot_.policy.min_run) return true;
  return running.priority <= job.priority &&
         std::find(running.overtook.begin(), running.overtook.end(), job.id) != running.overtook.end();
}

// The lowest priority first, the newest of them first.
std::vector<int> PreemptionPlanner::Victims(const QueuedJob& job) const {
  std::vector<int> victims;
  for (size_t r = 0; r < snapshot_.running.size(); ++r) {
    if (is_stopping_[r] == 0 && MayStop(snapshot_.running[r], job)) victims.push_back(static_cast<int>(r));
  }
  std::sort(victims.begin(), victims.end(), [&](int a, int b) {
    const RunningJob& left = snapshot_.running[static_cast<size_t>(a)];
    const RunningJob& right = snapshot_.running[static_cast<size_t>(b)];
    if (left.priority != right.priority) return left.priority < right.priority;
    return left.start != right.start ? left.start > right.start : a < b;
  });
  return victims;
}

bool PreemptionPlanner::Frees(int device, const std::vector<char>& victim) const {
  const DevicePool::Slot& slot = pool_->slots()[static_cast<size_t>(device)];
  // Those that this round starts are no running jobs yet.
  if (static_cast<size_t>(slot.holders) != slot.running.size()) return false;
  return std::all_of(slot.running.begin(), slot.running.end(), [&](int r) {
    return is_stopping_[static_cast<size_t>(r)] != 0 || victim[static_cast<size_t>(r)] != 0;
  });
}

bool PreemptionPlanner::PlanIn(const std::vector<int>& group, const QueuedJob& job, const Requirement& need,
                               const std::vector<int>& candidates, Plan* plan) const {
  std::vector<char> victim(snapshot_.running.size(), 0);
  const auto free_devices = [&] {
    std::vector<int> devices;
    for (const int device : group) {
      const DevicePool::Slot& slot = pool_->slots()[static_cast<size_t>(device)];
      if (!pool_->IsOpen(device, need) || (!slot.reserved_by.empty() && slot.reserved_by != job.id)) continue;
      if (slot.reserved_by.empty() && !pool_->MayPass(device, need)) continue;
      if (pool_->HasRoom(device, need) || Frees(device, victim)) devices.push_back(device);
    }
    return devices;
  };
  const auto wanted = static_cast<size_t>(need.gpus);
  for (const int candidate : candidates) {
    if (free_devices().size() >= wanted) break;
    const RunningJob& running = snapshot_.running[static_cast<size_t>(candidate)];
    const bool helps = std::any_of(running.devices.begin(), running.devices.end(), [&](int device) {
      return pool_->IsOpen(device, need) && std::find(group.begin(), group.end(), device) != group.end();
    });
    if (!helps) continue;
    victim[static_cast<size_t>(candidate)] = 1;
    plan->victims.push_back(candidate);
  }
  if (free_devices().size() < wanted) return false;
  // A gang that came later may have made one that came before unnecessary.
  for (size_t i = plan->victims.size(); i-- > 0;) {
    const int chosen = plan->victims[i];
    victim[static_cast<size_t>(chosen)] = 0;
    if (free_devices().size() >= wanted) {
      plan->victims.erase(plan->victims.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      victim[static_cast<size_t>(chosen)] = 1;
    }
  }
  plan->devices = free_devices();
  // What is free already first.
  std::stable_partition(plan->devices.begin(), plan->devices.end(),
                        [&](int device) { return pool_->HasRoom(device, need); });
  plan->devices.resize(wanted);
  return true;
}

bool PreemptionPlanner::IsBetter(const Plan& plan, const Plan& than) const {
  const auto highest = [&](const Plan& of) {
    int64_t priority = INT64_MIN;
    for (const int victim : of.victims) {
      priority = std::max<int64_t>(priority, snapshot_.running[static_cast<size_t>(victim)].priority);
    }
    return priority;
  };
  return std::pair(highest(plan), plan.victims.size()) < std::pair(highest(than), than.victims.size());
}

bool PreemptionPlanner::MakeRoom(const QueuedJob& job, const Requirement& need, std::vector<Preemption>* asked) {
  if (lowest_priority_ >= job.priority && !any_stopping_ && !any_overtook_) return false;
  const std::vector<int> candidates = Victims(job);
  if (candidates.empty() && !any_stopping_) return false;
  bool found = false;
  Plan best;
  for (const std::vector<int>& group : pool_->groups()) {
    Plan plan;
    if (!PlanIn(group, job, need, candidates, &plan)) continue;
    if (!found || IsBetter(plan, best)) best = std::move(plan);
    found = true;
  }
  if (!found) return false;
  stopping_.clear();
  for (const int victim : best.victims) {
    is_stopping_[static_cast<size_t>(victim)] = 1;
    any_stopping_ = true;
    asked->push_back({snapshot_.running[static_cast<size_t>(victim)].id, job.id});
  }
  for (const int device : best.devices) {
    for (const int r : pool_->slots()[static_cast<size_t>(device)].running) {
      const std::string& id = snapshot_.running[static_cast<size_t>(r)].id;
      if (std::find(stopping_.begin(), stopping_.end(), id) == stopping_.end()) stopping_.push_back(id);
    }
  }
  // Free, but others are before it.
  if (stopping_.empty()) return false;
  pool_->Promise(best.devices, need);
  return true;
}

}  // namespace ampd
