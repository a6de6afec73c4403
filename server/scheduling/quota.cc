#include "server/scheduling/quota.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

// "jobs of ada hold 1 of the 2 devices that a user may have (max_running_devices_per_user)".
std::string Held(const SchedulingSnapshot& snapshot, const QuotaUse& use, const QueueLine& line) {
  const std::string& user = snapshot.queue->users()[static_cast<size_t>(line.user)];
  const int limit = snapshot.policy.max_running_devices_per_user;
  return absl::StrCat(user.empty() ? "jobs" : absl::StrCat("jobs of ", user), " hold ", use.HeldBy(line.user),
                      " of the ", limit, limit == 1 ? " device" : " devices",
                      " that a user may have (max_running_devices_per_user)");
}

}  // namespace

bool IsSweepFull(const QuotaUse& use, const QueueLine& line) {
  return line.sweep_max_parallel > 0 && use.RunningOf(line.sweep_id) >= line.sweep_max_parallel;
}

std::optional<Block> OverQuota(const SchedulingSnapshot& snapshot, const QuotaUse& use, const QueueLine& line,
                               int gpus) {
  const int limit = snapshot.policy.max_running_devices_per_user;
  if (limit > 0 && use.HeldBy(line.user) + gpus > limit) {
    return Block{v1::Job::QUOTA, absl::StrCat(Held(snapshot, use, line), ", and it needs ", gpus)};
  }
  if (!IsSweepFull(use, line)) return std::nullopt;
  const int running = use.RunningOf(line.sweep_id);
  return Block{v1::Job::QUOTA, absl::StrCat(running, running == 1 ? " job" : " jobs",
                                            " of its sweep run, as many as max_parallel allows")};
}

QuotaLedger::QuotaLedger(const SchedulingSnapshot& snapshot, absl::Time now)
    : snapshot_(snapshot), now_(now), limit_(snapshot.policy.max_running_devices_per_user) {
  const std::vector<std::string>& users = snapshot.queue->users();
  use_.held.assign(users.size(), 0);
  kept_.resize(users.size());
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < users.size(); ++i) index[users[i]] = i;
  for (const RunningJob& running : snapshot.running) {
    if (const auto user = index.find(running.user); user != index.end()) {
      use_.held[user->second] += static_cast<int>(running.devices.size());
    }
    if (!running.sweep_id.empty()) ++use_.sweeps[running.sweep_id];
  }
}

void QuotaLedger::Start(const QueueLine& line, const Requirement& need) {
  use_.held[static_cast<size_t>(line.user)] += need.gpus;
  if (!line.sweep_id.empty()) ++use_.sweeps[line.sweep_id];
  if (limit_ > 0) started_.push_back({line.user, need.gpus, now_ + need.max_hold});
}

absl::Time QuotaLedger::FreeAt(int user, int devices) const {
  std::vector<std::pair<absl::Time, int>> ends;
  for (const RunningJob& running : snapshot_.running) {
    if (running.user != snapshot_.queue->users()[static_cast<size_t>(user)]) continue;
    absl::Time end = std::max(now_, running.end);
    if (running.stopping) end = std::min(end, now_ + snapshot_.policy.stop_grace);
    ends.push_back({end, static_cast<int>(running.devices.size())});
  }
  for (const Started& started : started_) {
    if (started.user == user) ends.push_back({started.end, started.devices});
  }
  std::sort(ends.begin(), ends.end());
  int held = use_.HeldBy(user);
  for (const auto& [end, count] : ends) {
    held -= count;
    if (held + devices <= limit_) return end;
  }
  return absl::InfiniteFuture();
}

void QuotaLedger::KeepOverQuota(const QueueLine& line, const QueuedJob& job, const Requirement& need) {
  Kept& kept = kept_[static_cast<size_t>(line.user)];
  // One for which the limit was lowered since its submit would keep them for good, and its sweep is no matter of
  // theirs.
  if (limit_ <= 0 || !kept.job_id.empty() || need.gpus > limit_ || IsSweepFull(use_, line)) return;
  kept = {job.id, need.gpus, FreeAt(line.user, need.gpus)};
}

void QuotaLedger::KeepWaiting(const QueueLine& line, const QueuedJob& job, const Requirement& need) {
  Kept& kept = kept_[static_cast<size_t>(line.user)];
  if (limit_ > 0 && kept.job_id.empty()) kept = {job.id, need.gpus};
}

void QuotaLedger::KeepPromised(const QueueLine& line, const QueuedJob& job, const Requirement& need) {
  Kept& kept = kept_[static_cast<size_t>(line.user)];
  if (kept.job_id != job.id) kept.devices += need.gpus;
  if (line.sweep_max_parallel > 0) ++promised_[line.sweep_id];
}

std::optional<Block> QuotaLedger::PromisedToSweep(const QueueLine& line) const {
  const auto promised = promised_.find(line.sweep_id);
  if (line.sweep_max_parallel <= 0 || promised == promised_.end()) return std::nullopt;
  const int running = use_.RunningOf(line.sweep_id);
  if (running + promised->second < line.sweep_max_parallel) return std::nullopt;
  return Block{v1::Job::QUOTA, absl::StrCat(running, running == 1 ? " job" : " jobs", " of its sweep run, and ",
                                            promised->second, promised->second == 1 ? " waits" : " wait",
                                            " for others to stop, as many as max_parallel allows")};
}

std::optional<Block> QuotaLedger::KeptFrom(const QueueLine& line, const Requirement& need, bool is_to_start) const {
  const Kept& kept = kept_[static_cast<size_t>(line.user)];
  if (kept.job_id.empty() || use_.HeldBy(line.user) + kept.devices + need.gpus <= limit_) return std::nullopt;
  // What has no end is not gone by any time, be it the infinite future.
  const bool is_bounded = need.max_hold != absl::InfiniteDuration() && kept.until != absl::InfiniteFuture();
  if (is_to_start && is_bounded && now_ + need.max_hold <= kept.until) return std::nullopt;
  return Block{v1::Job::QUOTA, absl::StrCat(Held(snapshot_, use_, line), ", and what is left is kept for ", kept.job_id,
                                            ", which is before it")};
}

}  // namespace ampd
