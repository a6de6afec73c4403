#include "server/scheduling/device_pool.h"

#include <algorithm>
#include <utility>

namespace ampd {

DevicePool::DevicePool(const SchedulingSnapshot& snapshot, absl::Time now)
    : snapshot_(snapshot), now_(now), slots_(snapshot.devices.size()) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].free_at = slots_[i].next_free = now;
    const auto group = static_cast<size_t>(snapshot.devices[i].group);
    if (group >= groups_.size()) groups_.resize(group + 1);
    groups_[group].push_back(static_cast<int>(i));
  }
  for (size_t r = 0; r < snapshot.running.size(); ++r) {
    const RunningJob& job = snapshot.running[r];
    absl::Time end = std::max(now, job.end);
    if (job.stopping) end = std::min(end, now + snapshot.policy.stop_grace);
    const bool can_stop = job.preemptible && CheckpointFits(job.checkpoint_time, snapshot.policy.stop_grace);
    ends_.push_back(end);
    yields_.push_back(!job.overtook.empty() && can_stop && !job.stopping ? 1 : 0);
    for (const int device : job.devices) {
      Slot& slot = slots_[static_cast<size_t>(device)];
      ++slot.holders;
      slot.running.push_back(static_cast<int>(r));
      slot.shared = job.share;
      slot.used_bytes += job.memory_bytes;
      slot.free_at = slot.next_free = std::max(slot.free_at, end);
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (IsRoomy(static_cast<int>(i))) roomy_.push_back(static_cast<int>(i));
  }
}

bool DevicePool::IsUsable(int device, const Requirement& need) const {
  const auto i = static_cast<size_t>(device);
  return need.Fits(i) && snapshot_.devices[i].held_back == v1::Job::QUEUE_REASON_UNSPECIFIED;
}

bool DevicePool::IsOpen(int device, const Requirement& need) const {
  return IsUsable(device, need) && !slots_[static_cast<size_t>(device)].promised;
}

bool DevicePool::CouldHold(int device, const Requirement& need) const {
  return IsUsable(device, need) &&
         (!need.share || need.memory_bytes <= snapshot_.devices[static_cast<size_t>(device)].share_bytes);
}

bool DevicePool::IsPossible(const Requirement& need) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const std::vector<int>& group) {
    return std::count_if(group.begin(), group.end(), [&](int device) { return CouldHold(device, need); }) >= need.gpus;
  });
}

bool DevicePool::HasRoom(int device, const Requirement& need) const {
  const Slot& slot = slots_[static_cast<size_t>(device)];
  if (!need.share) return slot.holders == 0;
  const int64_t capacity = snapshot_.devices[static_cast<size_t>(device)].share_bytes;
  if (slot.holders > 0 && (!slot.shared || slot.holders >= snapshot_.policy.max_sharing)) return false;
  return need.memory_bytes <= capacity && slot.used_bytes <= capacity - need.memory_bytes;
}

bool DevicePool::MayPass(int device, const Requirement& need) const {
  const Slot& slot = slots_[static_cast<size_t>(device)];
  if (!slot.contended || need.preemptible) return true;
  return need.max_hold != absl::InfiniteDuration() && now_ + need.max_hold <= slot.reserved_at;
}

bool DevicePool::IsRoomy(int device) const {
  const auto i = static_cast<size_t>(device);
  const Slot& slot = slots_[i];
  if (slot.promised || snapshot_.devices[i].held_back != v1::Job::QUEUE_REASON_UNSPECIFIED) return false;
  return slot.holders == 0 || (slot.shared && slot.holders < snapshot_.policy.max_sharing &&
                               slot.used_bytes < snapshot_.devices[i].share_bytes);
}

std::vector<int> DevicePool::Place(const Requirement& need) const {
  // Beside others first, so that whole devices stay free; and what nobody waits for before what somebody does.
  const auto rank = [&](int device) {
    const Slot& slot = slots_[static_cast<size_t>(device)];
    const int waited_for = !slot.contended ? 0 : slot.reserved_at == absl::InfiniteFuture() ? 1 : 2;
    return std::pair(waited_for, need.share && slot.holders > 0 ? 0 : 1);
  };
  std::vector<int> found;
  for (const int device : roomy_) {
    if (IsOpen(device, need) && HasRoom(device, need) && MayPass(device, need)) found.push_back(device);
  }
  const auto wanted = static_cast<size_t>(need.gpus);
  if (found.size() < wanted) return {};
  std::stable_sort(found.begin(), found.end(), [&](int a, int b) { return rank(a) < rank(b); });
  std::vector<int> best;
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<int> devices;
    for (const int device : found) {
      const bool is_in = snapshot_.devices[static_cast<size_t>(device)].group == static_cast<int>(group);
      if (is_in && devices.size() < wanted) devices.push_back(device);
    }
    if (devices.size() < wanted) continue;
    if (best.empty() || rank(devices.back()) < rank(best.back())) best = std::move(devices);
  }
  std::sort(best.begin(), best.end());
  return best;
}

void DevicePool::Take(const std::vector<int>& devices, const Requirement& need) {
  for (const int device : devices) {
    Slot& slot = slots_[static_cast<size_t>(device)];
    ++slot.holders;
    slot.shared = need.share;
    slot.used_bytes += need.memory_bytes;
    slot.free_at = slot.next_free = std::max(slot.free_at, now_ + need.max_hold);
  }
  std::erase_if(roomy_, [&](int device) { return !IsRoomy(device); });
}

absl::Time DevicePool::NextFree(const Slot& slot, const QueuedJob& job) const {
  const bool is_reserved = slot.next_free != slot.free_at;
  const bool has_started = static_cast<size_t>(slot.holders) != slot.running.size();
  if (is_reserved || has_started || slot.promised) return slot.next_free;
  absl::Time free = now_;
  for (const int r : slot.running) {
    const auto i = static_cast<size_t>(r);
    const std::vector<std::string>& overtook = snapshot_.running[i].overtook;
    const bool yields = yields_[i] != 0 && snapshot_.running[i].priority <= job.priority &&
                        std::find(overtook.begin(), overtook.end(), job.id) != overtook.end();
    if (!yields) free = std::max(free, ends_[i]);
  }
  return free;
}

DevicePool::Slots DevicePool::EarliestIn(const std::vector<int>& group, const QueuedJob& job,
                                         const Requirement& need) const {
  std::vector<std::pair<absl::Time, int>> times;
  for (const int device : group) {
    if (!CouldHold(device, need)) continue;
    times.push_back({NextFree(slots_[static_cast<size_t>(device)], job), device});
  }
  Slots slots;
  const auto wanted = static_cast<size_t>(need.gpus);
  if (times.size() < wanted) return slots;
  std::sort(times.begin(), times.end());
  times.resize(wanted);
  slots.at = times.back().first;
  for (const auto& [time, device] : times) slots.devices.push_back(device);
  return slots;
}

DevicePool::Slots DevicePool::Earliest(const QueuedJob& job, const Requirement& need) const {
  Slots first;
  for (const std::vector<int>& group : groups_) {
    Slots found = EarliestIn(group, job, need);
    if (found.devices.empty()) continue;
    if (first.devices.empty() || found.at < first.at) first = std::move(found);
  }
  return first;
}

void DevicePool::Reserve(const QueuedJob& job, const Requirement& need) {
  const Slots earliest = Earliest(job, need);
  // Only what is out of order at present would make it possible.
  if (earliest.devices.empty()) return;
  bool is_head = true;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!IsUsable(static_cast<int>(i), need)) continue;
    if (slots_[i].contended) is_head = false;
    slots_[i].contended = true;
  }
  const auto reserve = [&](Slot& slot, absl::Time at) {
    if (slot.reserved_at == absl::InfiniteFuture()) {
      slot.reserved_at = at;
      slot.reserved_by = job.id;
    }
    slot.next_free = std::max(slot.next_free, at + need.max_hold);
  };
  if (earliest.at != absl::InfiniteFuture()) {
    for (const int device : earliest.devices) reserve(slots_[static_cast<size_t>(device)], earliest.at);
    return;
  }
  // Whichever is free next may be what it waits for.
  for (size_t i = 0; is_head && i < slots_.size(); ++i) {
    if (IsUsable(static_cast<int>(i), need)) reserve(slots_[i], now_);
  }
}

absl::Time DevicePool::Plan(const QueuedJob& job, const Requirement& need) {
  const Slots earliest = Earliest(job, need);
  for (const int device : earliest.devices) {
    slots_[static_cast<size_t>(device)].next_free = earliest.at + need.max_hold;
  }
  return earliest.at;
}

void DevicePool::Resume(const std::vector<absl::Time>& free_at) {
  for (size_t i = 0; i < slots_.size() && i < free_at.size(); ++i) slots_[i].free_at = slots_[i].next_free = free_at[i];
}

void DevicePool::Promise(const std::vector<int>& devices, const Requirement& need) {
  absl::Time start = now_;
  for (const int device : devices) {
    const absl::Time stopped = now_ + snapshot_.policy.stop_grace;
    if (!HasRoom(device, need)) start = std::max(start, std::min(slots_[static_cast<size_t>(device)].free_at, stopped));
  }
  for (const int device : devices) {
    Slot& slot = slots_[static_cast<size_t>(device)];
    // Where there is room those who are there stay.
    const absl::Time others = HasRoom(device, need) ? slot.free_at : now_;
    slot.promised = true;
    slot.next_free = std::max(others, start + need.max_hold);
  }
  std::erase_if(roomy_, [&](int device) { return !IsRoomy(device); });
}

}  // namespace ampd
