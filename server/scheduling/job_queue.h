// The queued jobs, indexed by what decides whether and when they start.
#ifndef AMPD_SERVER_SCHEDULING_JOB_QUEUE_H_
#define AMPD_SERVER_SCHEDULING_JOB_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ampd {

// By a device's index in SchedulingSnapshot.devices.
using DeviceSet = std::vector<bool>;

// What a job needs, and how long it takes it.
struct Requirement {
  // Devices of one group, >= 1; all at once or none.
  int gpus = 1;
  // Runs beside other such jobs on one device; with gpus 1 only.
  bool share = false;
  // Planned, bytes; 0: not known. With `share` it is what is packed; else it says which devices are `too_small`.
  int64_t memory_bytes = 0;
  // Those that it can run on, whether free or held.
  DeviceSet usable;
  // Of the usable ones those that it is not to run on, for want of memory; empty: none. See MarkTooSmall.
  DeviceSet too_small;
  // May be stopped for another job, as far as is known: its checkpoint would fit its grace.
  bool preemptible = false;
  // The longest time it holds its devices from its next start on; infinite when nothing ends it.
  absl::Duration max_hold = absl::InfiniteDuration();

  bool IsTooSmall(size_t device) const { return device < too_small.size() && too_small[device]; }
  // It can run there, and its plan fits.
  bool Fits(size_t device) const { return device < usable.size() && usable[device] && !IsTooSmall(device); }
};

struct QueuedJob {
  std::string id;
  // Order of submission; unique.
  int64_t submit_sequence = 0;
  std::string user;
  // Higher first.
  int32_t priority = 0;
  Requirement requirement;
  // Not in line before.
  absl::Time not_before = absl::InfinitePast();
  // Ids of jobs; out of line while there are any.
  std::vector<std::string> waits_for;
  // Of a sweep with a limit; else empty and 0.
  std::string sweep_id;
  int32_t sweep_max_parallel = 0;
};

// Jobs of one class, priority, user and sweep, in the order of their submit sequences: where the first cannot start,
// none of them can.
struct QueueLine {
  int32_t priority = 0;
  int user = 0;
  std::string sweep_id;
  int32_t sweep_max_parallel = 0;
  // Never empty.
  std::deque<const QueuedJob*> jobs;
};

// Jobs with one requirement.
struct QueueClass {
  Requirement requirement;
  // (-priority, user, sweep).
  using Key = std::tuple<int64_t, int, std::string>;
  std::map<Key, QueueLine> lines;
};

// Not thread-safe. What it gives is valid until the next change.
class JobQueue {
 public:
  // Adds the job, or takes it in place of the one of the same id. It is held, out of line, while its time has not come
  // (at `now`, and later Release) or it waits for others,
  // which only another Put ends.
  void Put(QueuedJob job, absl::Time now);
  // Harmless where there is no such job.
  void Remove(const std::string& id);

  // In line comes what has its time.
  void Release(absl::Time now);
  // When Release has something to do; infinite future: never.
  absl::Time NextRelease() const;

  // Null where there is none.
  const QueuedJob* Find(const std::string& id) const;
  bool IsHeld(const QueuedJob& job) const { return held_.contains({job.submit_sequence, job.id}); }
  // All, and those held among them.
  size_t size() const { return jobs_.size(); }
  size_t held() const { return held_.size(); }
  // The held one that was submitted first; null without any.
  const QueuedJob* FirstHeld() const { return held_.empty() ? nullptr : Find(held_.begin()->second); }
  // Of the held ones, those that wait for their time alone.
  size_t timed() const { return timed_.size(); }
  // Held jobs that were submitted before this one. O(log) of them, and the first call after a change O(them).
  size_t HeldBefore(const QueuedJob& job) const;
  // Of the user, held ones included.
  size_t SizeOf(const std::string& user) const;

  // Classes and users keep their index; a class may have no lines.
  const std::vector<QueueClass>& classes() const { return classes_; }
  const std::vector<std::string>& users() const { return users_; }
  // Of a job in line.
  int ClassOf(const QueuedJob& job) const;
  const QueueLine& LineOf(const QueuedJob& job) const;

 private:
  struct Entry {
    QueuedJob job;
    int cls = 0;
    int user = 0;
  };
  using ClassKey = std::tuple<int, bool, int64_t, bool, int64_t, DeviceSet, DeviceSet>;

  int InternClass(const Requirement& requirement);
  int InternUser(const std::string& user);
  static QueueClass::Key KeyOf(const Entry& entry);
  void Hold(const Entry& entry);
  // Whether it was held.
  bool Unhold(const Entry& entry);
  void Queue(const Entry& entry);
  void Unqueue(const Entry& entry);

  // Nodes stay where they are.
  std::unordered_map<std::string, Entry> jobs_;
  std::vector<QueueClass> classes_;
  std::map<ClassKey, int> class_ids_;
  std::vector<std::string> users_;
  std::vector<size_t> user_sizes_;
  std::unordered_map<std::string, int> user_ids_;
  std::set<std::pair<int64_t, std::string>> held_;
  // Of those the submit sequences, ascending; empty once some came or went.
  mutable std::vector<int64_t> held_sequences_;
  // Of held jobs that wait for nobody.
  std::set<std::pair<absl::Time, std::string>> timed_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_JOB_QUEUE_H_
