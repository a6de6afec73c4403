// What is to be said of a queued job: its place, why it waits, when it starts.
#ifndef AMPD_SERVER_SCHEDULING_QUEUE_INFO_H_
#define AMPD_SERVER_SCHEDULING_QUEUE_INFO_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "server/scheduling/pick.h"

namespace ampd {

struct QueueInfo {
  // 1 is next. Held jobs (NOT_BEFORE, DEPENDENCY) come behind all others, by submit sequence.
  int64_t position = 0;
  v1::Job::QueueReason reason = v1::Job::QUEUE_REASON_UNSPECIFIED;
  // The reason in words.
  std::string message;
};

// Of a job of the snapshot's queue that `decision`, on the same snapshot, does not start. What has changed in the queue
// since then counts for the position. O(lines of the queue).
QueueInfo Describe(const SchedulingSnapshot& snapshot, const Decision& decision, const QueuedJob& job);

// When the first `limit` jobs in line start at the latest, by id, if all jobs take the time they may and none overtakes
// another; without those of which it cannot be told: a job before them has no limit, or they wait for a quota, for a
// device that is held back, or out of line. Empty while nothing starts.
std::unordered_map<std::string, absl::Time> EstimateStarts(const SchedulingSnapshot& snapshot, const Decision& decision,
                                                           absl::Time now, int limit);

// Jobs by why they wait. O(lines of the queue).
std::map<v1::Job::QueueReason, int64_t> CountReasons(const SchedulingSnapshot& snapshot, const Decision& decision);

// The one that was submitted first; null for an empty queue. O(lines of the queue).
const QueuedJob* OldestJob(const JobQueue& queue);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_QUEUE_INFO_H_
