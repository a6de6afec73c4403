// Which job starts where, and which stops for another: a pure function over a snapshot.
#ifndef AMPD_SERVER_SCHEDULING_PICK_H_
#define AMPD_SERVER_SCHEDULING_PICK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "ampd/v1/job.pb.h"
#include "server/scheduling/job_queue.h"

namespace ampd {

struct DeviceState {
  std::string id;
  // Equal for devices of one kind and model; from 0, without gaps.
  int group = 0;
  // What jobs that share it may plan together, bytes; 0: nobody shares it.
  int64_t share_bytes = 0;
  // What a job that has it to itself may plan, bytes; 0: not known, and whatever is planned is tried.
  int64_t memory_bytes = 0;
  // Set when nothing is to start on it at present, and what jobs that could use it wait for; the same in words.
  v1::Job::QueueReason held_back = v1::Job::QUEUE_REASON_UNSPECIFIED;
  std::string held_back_message;
};

// Fills need->too_small: of the usable devices those whose memory is known and less than the job plans. Where that
// leaves too few, only those that have less than four fifths of it: a plan is made for the CPU, and may be too high for
// a GPU. A job that shares has none: for it share_bytes decides.
void MarkTooSmall(const std::vector<DeviceState>& devices, Requirement* need);

// A job that holds devices.
struct RunningJob {
  std::string id;
  std::string user;
  int32_t priority = 0;
  // By index.
  std::vector<int> devices;
  bool share = false;
  int64_t memory_bytes = 0;
  // When it took them.
  absl::Time start = absl::InfinitePast();
  // When it lets go of them, at the latest or as expected; infinite future: cannot be told.
  absl::Time end = absl::InfiniteFuture();
  bool preemptible = false;
  // Jobs before it in line that wait for what it has: it started ahead of them, as Assignment told.
  std::vector<std::string> overtook;
  // Asked to stop already, for whatever reason; and the job that it stops for, if one.
  bool stopping = false;
  std::string stops_for;
  // What a checkpoint of it takes, by those of late; unset: there was none yet.
  std::optional<absl::Duration> checkpoint_time;
  std::string sweep_id;
};

struct SchedulingPolicy {
  // Devices that a user's jobs hold at the same time (a shared one counts once a job); 0: no limit.
  int max_running_devices_per_user = 0;
  // What a start adds to its user's usage at once, a device; so that devices that become free together are shared.
  absl::Duration start_charge = absl::Minutes(1);
  // Jobs on one shared device, >= 1.
  int max_sharing = 8;
  // A job is not stopped for one of higher priority before it held its devices so long.
  absl::Duration min_run = absl::Minutes(5);
  // Time that a job has to write its checkpoint when it is to stop.
  absl::Duration stop_grace = absl::Minutes(1);
};

// Its checkpoint is written within the grace, by what those of late took: with a third of it to spare.
bool CheckpointFits(const std::optional<absl::Duration>& checkpoint_time, absl::Duration stop_grace);

struct SchedulingSnapshot {
  // Borrowed; not null in Pick and Describe.
  const JobQueue* queue = nullptr;
  // In the order in which they are to be used.
  std::vector<DeviceState> devices;
  std::vector<RunningJob> running;
  // Device-seconds by user, decayed; a user that is missing has had none. See fair_share.h.
  std::map<std::string, double> usage;
  // Nothing starts any more.
  bool draining = false;
  // Nothing starts, for want of room in the state directory: that in words. Empty: there is room.
  std::string no_space;
  SchedulingPolicy policy;
};

struct Assignment {
  std::string job_id;
  std::vector<std::string> device_ids;
  // Jobs before it in line that wait and could use one of the devices, whether it is reserved for them or not, the
  // first 32; the running job's `overtook` in snapshots to come.
  std::vector<std::string> overtook;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// `job_id` is to write a checkpoint and stop.
struct Preemption {
  std::string job_id;
  std::string for_job;

  friend bool operator==(const Preemption&, const Preemption&) = default;
};

// Why a job does not start.
struct Block {
  v1::Job::QueueReason reason = v1::Job::RESOURCES;
  std::string message;
};

// Why no job of a class does: of the devices that it could use.
struct ClassBlock {
  // With room for it now.
  int free = 0;
  // The job before it that what is free is kept for; empty: none.
  std::string kept_for;
};

// Of what users and sweeps may have, what is used up.
struct QuotaUse {
  // Devices that their jobs hold, by the queue's index of users.
  std::vector<int> held;
  // Jobs that hold any.
  std::unordered_map<std::string, int> sweeps;

  // A user who came since the snapshot holds none.
  int HeldBy(int user) const { return static_cast<size_t>(user) < held.size() ? held[static_cast<size_t>(user)] : 0; }
  int RunningOf(const std::string& sweep_id) const {
    const auto sweep = sweeps.find(sweep_id);
    return sweep == sweeps.end() ? 0 : sweep->second;
  }
};

struct Decision {
  std::vector<Assignment> start;
  std::vector<Preemption> preempt;

  // For Describe and EstimateStarts.
  struct Line {
    int cls = 0;
    QueueClass::Key key;
    friend auto operator<=>(const Line&, const Line&) = default;
  };
  // The most special one holds: of the job, of its line (quotas), of its class.
  std::map<std::string, Block> job_blocks;
  std::map<Line, Block> line_blocks;
  // Without one, none of them has room.
  std::unordered_map<int, ClassBlock> class_blocks;
  // By the queue's index of users, and by device, when it will be free; after what starts.
  std::vector<double> usage;
  std::vector<absl::Time> free_at;
  QuotaUse quota_use;
  // As in the snapshot.
  bool draining = false;
  std::string no_space;
  // As Pick was told.
  absl::Time now = absl::InfinitePast();
  // How often Pick looked at the first job of a line: what the round cost.
  int64_t lines_looked_at = 0;
};

// Jobs in line come by priority, higher first, then by their user's usage, less first, then by submit sequence. Each
// gets the first devices that it can have:
// - none whose memory is less than it plans (too_small), nor is such a one kept for it;
// - a gang all of its devices, of one group, or none;
// - one that shares, a device that others share where the memory that all of them planned fits, else a free one.
// A job that must wait is given a reservation: devices of one group, and the time at which they will be free when all
// who hold them take the time they may. Jobs behind it pass it only
// - on devices that it cannot use, or
// - where they are sure to be gone by then (max_hold), or can be stopped (preemptible). Where that time cannot be told,
//   only the latter do, and on every device that it could use.
// So nobody who overtakes a job delays it, as far as the ends of running jobs are what the snapshot says and jobs stop
// that can. A job whose user has all the devices that the quota allows, or whose sweep runs as many as it may, keeps
// nothing from others; neither does one that only devices held back would make possible.
//
// Of the devices that the quota allows a user, the first of the user's jobs that must wait, be it for the quota or for
// devices, has what it needs kept: the user's jobs behind it start where the quota has room for both, or, where it
// waits for the quota, where they are sure to be gone by the time at which the quota has room for it.
//
// For a job that must wait, running ones stop where that makes it possible at once: preemptible ones of lower priority,
// after policy.min_run, the lowest and then the newest first; and those that overtook it, at any time. None is stopped
// whose checkpoints take more than two thirds of the grace. What they leave is kept for the job.
//
// Its cost grows with the number of lines and devices, not with the length of the queue.
Decision Pick(const SchedulingSnapshot& snapshot, absl::Time now);

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_PICK_H_
