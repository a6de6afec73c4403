// Which job starts where: a pure function over a snapshot.
#ifndef AMPD_SERVER_SCHEDULING_PICK_H_
#define AMPD_SERVER_SCHEDULING_PICK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"

namespace ampd {

struct QueuedJob {
  std::string id;
  // Order of submission; unique.
  int64_t submit_sequence = 0;
  // Devices that it cannot run on, whether free or held.
  std::vector<std::string> unusable_devices;
};

// A device that nobody holds and that is not to be used at present.
struct HeldBack {
  std::string device_id;
  // What jobs that could use it wait for.
  v1::Job::QueueReason reason = v1::Job::QUEUE_REASON_UNSPECIFIED;
};

struct SchedulingSnapshot {
  // In any order.
  std::vector<QueuedJob> queued;
  // Devices that nobody holds, in the order in which they are to be used.
  std::vector<std::string> free_devices;
  // Nothing starts any more.
  bool draining = false;
  std::vector<HeldBack> held_back;
};

struct Assignment {
  std::string job_id;
  std::string device_id;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

struct Waiting {
  std::string job_id;
  // 1 is next.
  int32_t position = 0;
  v1::Job::QueueReason reason = v1::Job::QUEUE_REASON_UNSPECIFIED;

  friend bool operator==(const Waiting&, const Waiting&) = default;
};

struct Decision {
  std::vector<Assignment> start;
  // Every other queued job, next first.
  std::vector<Waiting> wait;
};

// First come, first served: in the order of their submit sequences, jobs each get the first free device that they can
// use; one that finds none holds up no later job on devices that are not for it. A waiting job's reason is that of the
// first device held back that it could use, RESOURCES without one. `now` is for policies that look at the time; this
// one does not.
Decision Pick(const SchedulingSnapshot& snapshot, absl::Time now);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_PICK_H_
