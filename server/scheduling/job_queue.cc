#include "server/scheduling/job_queue.h"

#include <algorithm>
#include <cmath>

namespace ampd {
namespace {

// Jobs of nearly one size or length are of one class, so that classes stay few.
constexpr int64_t kMemoryUnit = int64_t{64} << 20;

// The next of a geometric series.
int64_t RoundUp(double value, double steps_per_octave) {
  if (value <= 1) return 1;
  const double exponent = std::ceil(std::log2(value) * steps_per_octave - 1e-9) / steps_per_octave;
  return static_cast<int64_t>(std::ceil(std::exp2(std::min(exponent, 62.0))));
}

Requirement Rounded(Requirement requirement) {
  if (requirement.max_hold != absl::InfiniteDuration()) {
    requirement.max_hold = absl::Seconds(RoundUp(absl::ToDoubleSeconds(requirement.max_hold), 4));
  }
  const int64_t units = std::max<int64_t>(0, requirement.memory_bytes - 1) / kMemoryUnit + 1;
  requirement.memory_bytes = requirement.share ? units * kMemoryUnit : 0;
  return requirement;
}

bool Before(const QueuedJob* job, int64_t sequence) { return job->submit_sequence < sequence; }

}  // namespace

void JobQueue::Put(QueuedJob job, absl::Time now) {
  Remove(job.id);
  const std::string id = job.id;
  Entry& entry = jobs_.emplace(id, Entry{std::move(job)}).first->second;
  entry.cls = InternClass(entry.job.requirement);
  entry.user = InternUser(entry.job.user);
  ++user_sizes_[static_cast<size_t>(entry.user)];
  if (entry.job.waits_for.empty() && entry.job.not_before <= now) return Queue(entry);
  Hold(entry);
}

void JobQueue::Hold(const Entry& entry) {
  held_.emplace(entry.job.submit_sequence, entry.job.id);
  held_sequences_.clear();
  if (entry.job.waits_for.empty()) timed_.emplace(entry.job.not_before, entry.job.id);
}

bool JobQueue::Unhold(const Entry& entry) {
  timed_.erase({entry.job.not_before, entry.job.id});
  if (held_.erase({entry.job.submit_sequence, entry.job.id}) == 0) return false;
  held_sequences_.clear();
  return true;
}

void JobQueue::Remove(const std::string& id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  const Entry& entry = found->second;
  if (!Unhold(entry)) Unqueue(entry);
  --user_sizes_[static_cast<size_t>(entry.user)];
  jobs_.erase(found);
}

void JobQueue::Release(absl::Time now) {
  while (!timed_.empty() && timed_.begin()->first <= now) {
    const Entry& entry = jobs_.at(timed_.begin()->second);
    Unhold(entry);
    Queue(entry);
  }
}

absl::Time JobQueue::NextRelease() const { return timed_.empty() ? absl::InfiniteFuture() : timed_.begin()->first; }

const QueuedJob* JobQueue::Find(const std::string& id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second.job;
}

size_t JobQueue::HeldBefore(const QueuedJob& job) const {
  if (held_sequences_.empty()) {
    held_sequences_.reserve(held_.size());
    for (const auto& [sequence, id] : held_) held_sequences_.push_back(sequence);
  }
  const auto place = std::lower_bound(held_sequences_.begin(), held_sequences_.end(), job.submit_sequence);
  return static_cast<size_t>(place - held_sequences_.begin());
}

size_t JobQueue::SizeOf(const std::string& user) const {
  const auto found = user_ids_.find(user);
  return found == user_ids_.end() ? 0 : user_sizes_[static_cast<size_t>(found->second)];
}

int JobQueue::ClassOf(const QueuedJob& job) const { return jobs_.at(job.id).cls; }

const QueueLine& JobQueue::LineOf(const QueuedJob& job) const {
  const Entry& entry = jobs_.at(job.id);
  return classes_[static_cast<size_t>(entry.cls)].lines.at(KeyOf(entry));
}

int JobQueue::InternClass(const Requirement& asked) {
  const Requirement requirement = Rounded(asked);
  const auto [found, is_new] = class_ids_.try_emplace(
      ClassKey(requirement.gpus, requirement.share, requirement.memory_bytes, requirement.preemptible,
               absl::ToInt64Seconds(requirement.max_hold), requirement.usable, requirement.too_small),
      static_cast<int>(classes_.size()));
  if (is_new) classes_.push_back({requirement, {}});
  return found->second;
}

int JobQueue::InternUser(const std::string& user) {
  const auto [found, is_new] = user_ids_.try_emplace(user, static_cast<int>(users_.size()));
  if (is_new) {
    users_.push_back(user);
    user_sizes_.push_back(0);
  }
  return found->second;
}

QueueClass::Key JobQueue::KeyOf(const Entry& entry) {
  return {-int64_t{entry.job.priority}, entry.user, entry.job.sweep_id};
}

void JobQueue::Queue(const Entry& entry) {
  const QueuedJob& job = entry.job;
  QueueLine& line = classes_[static_cast<size_t>(entry.cls)].lines[KeyOf(entry)];
  if (line.jobs.empty()) {
    line.priority = job.priority;
    line.user = entry.user;
    line.sweep_id = job.sweep_id;
  }
  line.sweep_max_parallel = job.sweep_max_parallel;
  const auto place = std::lower_bound(line.jobs.begin(), line.jobs.end(), job.submit_sequence, Before);
  line.jobs.insert(place, &job);
}

void JobQueue::Unqueue(const Entry& entry) {
  auto& lines = classes_[static_cast<size_t>(entry.cls)].lines;
  const auto line = lines.find(KeyOf(entry));
  auto& jobs = line->second.jobs;
  jobs.erase(std::lower_bound(jobs.begin(), jobs.end(), entry.job.submit_sequence, Before));
  if (jobs.empty()) lines.erase(line);
}

}  // namespace ampd
