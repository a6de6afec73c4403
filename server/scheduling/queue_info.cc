#include "server/scheduling/queue_info.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduling/device_pool.h"
#include "server/scheduling/quota.h"

namespace ampd {
namespace {

std::string Devices(int count) { return absl::StrCat(count, count == 1 ? " device" : " devices"); }

double UsageOf(const Decision& decision, int user) {
  // A user who came since has had none.
  return static_cast<size_t>(user) < decision.usage.size() ? decision.usage[static_cast<size_t>(user)] : 0;
}

int64_t InLineBefore(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job) {
  const QueueLine& own = snapshot.queue->LineOf(job);
  const double usage = UsageOf(decision, own.user);
  int64_t before = 0;
  for (const QueueClass& cls : snapshot.queue->classes()) {
    for (const auto& [key, line] : cls.lines) {
      if (line.priority < own.priority) break;
      const double other = UsageOf(decision, line.user);
      if (line.priority > own.priority || other < usage) {
        before += static_cast<int64_t>(line.jobs.size());
      } else if (other == usage) {
        const auto end = std::lower_bound(
            line.jobs.begin(), line.jobs.end(), job.submit_sequence,
            [](const QueuedJob* candidate, int64_t sequence) { return candidate->submit_sequence < sequence; });
        before += end - line.jobs.begin();
      }
    }
  }
  return before;
}

Block Held(const QueuedJob& job) {
  if (job.waits_for.empty()) {
    return {v1::Job::NOT_BEFORE,
            absl::StrCat("not before ", absl::FormatTime("%Y-%m-%d %H:%M:%SZ", job.not_before, absl::UTCTimeZone()))};
  }
  const size_t more = job.waits_for.size() - 1;
  return {v1::Job::DEPENDENCY, absl::StrCat("waits for ", job.waits_for.front(),
                                            more == 0 ? "" : absl::StrCat(" and ", more, " more"), " to end")};
}

bool IsHeldBack(const DeviceState& device) { return device.held_back != v1::Job::QUEUE_REASON_UNSPECIFIED; }

// The first device of those that nobody holds for which `is_it` is true; null: none.
const DeviceState* FindFree(const SchedulingSnapshot& snapshot, const std::function<bool(size_t)>& is_it) {
  std::vector<char> is_held(snapshot.devices.size(), 0);
  for (const RunningJob& running : snapshot.running) {
    for (const int device : running.devices) is_held[static_cast<size_t>(device)] = 1;
  }
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    if (is_held[i] == 0 && is_it(i)) return &snapshot.devices[i];
  }
  return nullptr;
}

// One that it could use, and that is held back.
const DeviceState* HeldBack(const SchedulingSnapshot& snapshot, const Requirement& need) {
  return FindFree(snapshot, [&](size_t i) { return need.Fits(i) && IsHeldBack(snapshot.devices[i]); });
}

// One that its plan does not fit.
const DeviceState* TooSmall(const SchedulingSnapshot& snapshot, const Requirement& need) {
  return FindFree(snapshot, [&](size_t i) { return need.IsTooSmall(i) && !IsHeldBack(snapshot.devices[i]); });
}

bool FitsAny(const SchedulingSnapshot& snapshot, const Requirement& need) {
  for (size_t i = 0; i < snapshot.devices.size() && i < need.usable.size(); ++i) {
    if (need.usable[i] && need.memory_bytes <= snapshot.devices[i].share_bytes) return true;
  }
  return false;
}

int Count(const DeviceSet& devices) { return static_cast<int>(std::count(devices.begin(), devices.end(), true)); }

// Where the machine has not what it needs, whoever holds it.
std::optional<Block> Never(const Requirement& need) {
  const int usable = Count(need.usable), fit = usable - Count(need.too_small);
  if (usable < need.gpus) {
    return Block{v1::Job::RESOURCES, absl::StrCat("it needs ", Devices(need.gpus), "; ", usable, " can run it")};
  }
  if (fit >= need.gpus) return std::nullopt;
  return Block{v1::Job::GPU_MEMORY,
               absl::StrCat("it takes ", need.memory_bytes, " bytes of a device's memory by its plan; of ",
                            Devices(usable), " that could run it ", fit, fit == 1 ? " has" : " have", " as much, and ",
                            need.gpus, need.gpus == 1 ? " is" : " are", " needed")};
}

// Jobs that would stop for it had they run long enough, where that is all that keeps devices from it.
std::vector<std::string> TooYoung(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job) {
  const Requirement& need = job.requirement;
  std::vector<char> could_have(snapshot.devices.size(), 0);
  for (size_t i = 0; i < could_have.size(); ++i) could_have[i] = need.Fits(i) && !IsHeldBack(snapshot.devices[i]);
  std::vector<const RunningJob*> young;
  for (const RunningJob& running : snapshot.running) {
    const bool yields = running.preemptible && running.priority < job.priority &&
                        CheckpointFits(running.checkpoint_time, snapshot.policy.stop_grace);
    if (running.stopping) continue;
    if (yields && decision.now - running.start < snapshot.policy.min_run) young.push_back(&running);
    for (const int device : running.devices) could_have[static_cast<size_t>(device)] &= yields ? 1 : 0;
  }
  std::map<int, int> in_group;
  for (size_t i = 0; i < could_have.size(); ++i) in_group[snapshot.devices[i].group] += could_have[i];
  std::vector<std::string> ids;
  for (const RunningJob* running : young) {
    const bool helps = std::any_of(running->devices.begin(), running->devices.end(), [&](int device) {
      const auto i = static_cast<size_t>(device);
      return could_have[i] != 0 && in_group[snapshot.devices[i].group] >= need.gpus;
    });
    if (helps) ids.push_back(running->id);
  }
  return ids;
}

// Its time is not told, so that the text stays as it is meanwhile.
std::string WhoMayStopLater(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job) {
  constexpr size_t kTold = 3;
  std::vector<std::string> ids = TooYoung(snapshot, decision, job);
  if (ids.empty()) return "";
  const bool one = ids.size() == 1;
  const size_t more = ids.size() - std::min(ids.size(), kTold);
  ids.resize(ids.size() - more);
  return absl::StrCat("; ", absl::StrJoin(ids, ", "), more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                      ", of lower priority, may be stopped once ", one ? "it has" : "they have", " run ",
                      absl::ToInt64Seconds(snapshot.policy.min_run), " s (preemption_min_run_seconds)");
}

Block OfClass(const SchedulingSnapshot& snapshot, const Decision& decision, const ClassBlock& block,
              const QueuedJob& job) {
  const Requirement& need = job.requirement;
  if (std::optional<Block> never = Never(need)) return *std::move(never);
  if (block.free >= need.gpus && !block.kept_for.empty() && block.kept_for != job.id) {
    return {v1::Job::PRIORITY, absl::StrCat("what is free is kept for ", block.kept_for, ", which is before it")};
  }
  if (block.free >= need.gpus && need.gpus > 1) {
    return {v1::Job::RESOURCES, absl::StrCat(block.free, " devices that it could use are free, but not ", need.gpus,
                                             " of one model that nobody before it waits for")};
  }
  if (block.free >= need.gpus) return {v1::Job::PRIORITY, "a job before it waits for what is free"};
  if (const DeviceState* device = HeldBack(snapshot, need); device != nullptr) {
    return {device->held_back, absl::StrCat(device->id, ": ", device->held_back_message)};
  }
  if (need.share && !FitsAny(snapshot, need)) {
    return {v1::Job::GPU_MEMORY, absl::StrCat("its plan takes ", need.memory_bytes,
                                              " bytes: more than any device has for jobs that share it")};
  }
  if (const DeviceState* device = TooSmall(snapshot, need); device != nullptr) {
    return {v1::Job::GPU_MEMORY, absl::StrCat(device->id, " is free, but has ", device->memory_bytes,
                                              " bytes of memory; by its plan it takes ", need.memory_bytes)};
  }
  const int fit = Count(need.usable) - Count(need.too_small), held = fit - block.free;
  return {v1::Job::RESOURCES,
          absl::StrCat(block.free, " of ", Devices(need.gpus), " free: of ", fit, " that it could use ", held,
                       held == 1 ? " is" : " are", need.share ? " held or full" : " held",
                       WhoMayStopLater(snapshot, decision, job))};
}

// Once the first of a class must wait the round looks at no other line of it.
std::optional<Block> QuotaBlock(const SchedulingSnapshot& snapshot, const Decision& decision, int cls,
                                const QueueClass::Key& key, const QueueLine& line) {
  const auto quota = decision.line_blocks.find({cls, key});
  if (quota != decision.line_blocks.end()) return quota->second;
  const int gpus = snapshot.queue->classes()[static_cast<size_t>(cls)].requirement.gpus;
  return OverQuota(snapshot, decision.quota_use, line, gpus);
}

Block BlockOf(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job) {
  if (decision.draining) return {v1::Job::DRAINING, "the daemon is shutting down"};
  if (snapshot.queue->IsHeld(job)) return Held(job);
  if (!decision.no_space.empty()) return {v1::Job::RESOURCES, decision.no_space};
  if (const auto own = decision.job_blocks.find(job.id); own != decision.job_blocks.end()) return own->second;
  const int cls = snapshot.queue->ClassOf(job);
  const QueueLine& line = snapshot.queue->LineOf(job);
  const QueueClass::Key key{-int64_t{line.priority}, line.user, line.sweep_id};
  if (std::optional<Block> quota = QuotaBlock(snapshot, decision, cls, key, line)) return *std::move(quota);
  const auto found = decision.class_blocks.find(cls);
  return OfClass(snapshot, decision, found == decision.class_blocks.end() ? ClassBlock() : found->second, job);
}

// The jobs in line, in order.
class Walk {
 public:
  Walk(const SchedulingSnapshot& snapshot, const Decision& decision) : decision_(decision) {
    const auto& classes = snapshot.queue->classes();
    for (size_t cls = 0; cls < classes.size(); ++cls) {
      for (const auto& [key, line] : classes[cls].lines) {
        const bool waits = QuotaBlock(snapshot, decision, static_cast<int>(cls), key, line).has_value();
        const size_t end = waits ? GivenRoom(line) : line.jobs.size();
        if (end > 0) heads_.push_back({&classes[cls].requirement, &line, 0, end});
      }
    }
    const auto after = [this](const Head& a, const Head& b) { return IsBefore(b, a); };
    std::make_heap(heads_.begin(), heads_.end(), after);
  }
  // Null at the end.
  const QueuedJob* Next(const Requirement** need) {
    const auto after = [this](const Head& a, const Head& b) { return IsBefore(b, a); };
    if (heads_.empty()) return nullptr;
    std::pop_heap(heads_.begin(), heads_.end(), after);
    Head& head = heads_.back();
    const QueuedJob* job = head.line->jobs[head.next++];
    *need = head.need;
    if (head.next < head.end) {
      std::push_heap(heads_.begin(), heads_.end(), after);
    } else {
      heads_.pop_back();
    }
    return job;
  }

 private:
  struct Head {
    const Requirement* need;
    const QueueLine* line;
    size_t next;
    size_t end;
  };
  // Of a line that waits for a quota so many wait for devices alone: others stop for them.
  size_t GivenRoom(const QueueLine& line) const {
    const auto has_none = [this](const QueuedJob* job) { return !decision_.job_blocks.contains(job->id); };
    return static_cast<size_t>(std::find_if(line.jobs.begin(), line.jobs.end(), has_none) - line.jobs.begin());
  }
  bool IsBefore(const Head& a, const Head& b) const {
    if (a.line->priority != b.line->priority) return a.line->priority > b.line->priority;
    const double usage_a = UsageOf(decision_, a.line->user), usage_b = UsageOf(decision_, b.line->user);
    if (usage_a != usage_b) return usage_a < usage_b;
    return a.line->jobs[a.next]->submit_sequence < b.line->jobs[b.next]->submit_sequence;
  }

  const Decision& decision_;
  std::vector<Head> heads_;
};

}  // namespace

QueueInfo Describe(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job) {
  const JobQueue& queue = *snapshot.queue;
  QueueInfo info;
  info.position = 1 + (queue.IsHeld(job) ? static_cast<int64_t>(queue.size() - queue.held() + queue.HeldBefore(job))
                                         : InLineBefore(snapshot, decision, job));
  Block block = BlockOf(snapshot, decision, job);
  info.reason = block.reason;
  info.message = std::move(block.message);
  return info;
}

std::unordered_map<std::string, absl::Time> EstimateStarts(const SchedulingSnapshot& snapshot, const Decision& decision,
                                                           absl::Time now, int limit) {
  std::unordered_map<std::string, absl::Time> starts;
  if (decision.draining || !decision.no_space.empty()) return starts;
  DevicePool pool(snapshot, now);
  pool.Resume(decision.free_at);
  Walk walk(snapshot, decision);
  const Requirement* need = nullptr;
  for (int i = 0; i < limit; ++i) {
    const QueuedJob* job = walk.Next(&need);
    if (job == nullptr) break;
    const absl::Time at = pool.Plan(*job, *need);
    if (at != absl::InfiniteFuture()) starts[job->id] = at;
  }
  return starts;
}

std::map<v1::Job::QueueReason, int64_t> CountReasons(const SchedulingSnapshot& snapshot, const Decision& decision) {
  std::map<v1::Job::QueueReason, int64_t> counts;
  for (const QueueClass& cls : snapshot.queue->classes()) {
    for (const auto& [key, line] : cls.lines) {
      counts[BlockOf(snapshot, decision, *line.jobs.back()).reason] += static_cast<int64_t>(line.jobs.size());
    }
  }
  const auto timed = static_cast<int64_t>(snapshot.queue->timed());
  const auto dependent = static_cast<int64_t>(snapshot.queue->held()) - timed;
  if (timed > 0) counts[decision.draining ? v1::Job::DRAINING : v1::Job::NOT_BEFORE] += timed;
  if (dependent > 0) counts[decision.draining ? v1::Job::DRAINING : v1::Job::DEPENDENCY] += dependent;
  return counts;
}

const QueuedJob* OldestJob(const JobQueue& queue) {
  const QueuedJob* oldest = queue.FirstHeld();
  for (const QueueClass& cls : queue.classes()) {
    for (const auto& [key, line] : cls.lines) {
      const QueuedJob* first = line.jobs.front();
      if (oldest == nullptr || first->submit_sequence < oldest->submit_sequence) oldest = first;
    }
  }
  return oldest;
}

}  // namespace ampd
