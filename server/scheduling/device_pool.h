// The devices while Pick gives them out: who holds them, who waits for them.
#ifndef AMPD_SERVER_SCHEDULING_DEVICE_POOL_H_
#define AMPD_SERVER_SCHEDULING_DEVICE_POOL_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/pick.h"

namespace ampd {

class DevicePool {
 public:
  struct Slot {
    // Jobs on it; of running ones their indices in the snapshot.
    int holders = 0;
    std::vector<int> running;
    bool shared = false;
    int64_t used_bytes = 0;
    // When the last of them is gone, not before now; and the last of those that it is reserved for.
    absl::Time free_at;
    absl::Time next_free;
    // A job before could use it, and waits.
    bool contended = false;
    // When the first job that waits for it is to have it, and which; infinite future: none.
    absl::Time reserved_at = absl::InfiniteFuture();
    std::string reserved_by;
    // What becomes free is for a job that others stop for.
    bool promised = false;
  };

  // `snapshot` must outlive the pool.
  DevicePool(const SchedulingSnapshot& snapshot, absl::Time now);

  const std::vector<Slot>& slots() const { return slots_; }
  // By group, its devices in order.
  const std::vector<std::vector<int>>& groups() const { return groups_; }
  // Devices, in order, on which something could start.
  const std::vector<int>& roomy() const { return roomy_; }
  // The job may ever run on it, as things stand: it is among the usable ones and large enough, and nothing holds it
  // back.
  bool IsUsable(int device, const Requirement& need) const;
  // And it is not promised to another, who has it first.
  bool IsOpen(int device, const Requirement& need) const;
  // Devices of one group, as many as it needs, are usable and large enough: else it is neither reserved for nor made
  // room for.
  bool IsPossible(const Requirement& need) const;
  // There is room for the job now.
  bool HasRoom(int device, const Requirement& need) const;
  // The job may start there although others wait for it.
  bool MayPass(int device, const Requirement& need) const;

  // Devices on which the job can start now; empty: none.
  std::vector<int> Place(const Requirement& need) const;
  void Take(const std::vector<int>& devices, const Requirement& need);

  // Finds the job its devices and marks them: jobs behind it pass it only on the terms of Pick from now on.
  void Reserve(const QueuedJob& job, const Requirement& need);
  // When the job starts at the latest, after all that was reserved or asked before; infinite future: cannot be told.
  absl::Time Plan(const QueuedJob& job, const Requirement& need);
  // As it was when Pick ended: by device, its free_at.
  void Resume(const std::vector<absl::Time>& free_at);
  // For a job for which those who hold the devices stop: it has them for as long as it may, once they are gone.
  void Promise(const std::vector<int>& devices, const Requirement& need);

 private:
  struct Slots {
    // Infinite future: cannot be told.
    absl::Time at = absl::InfiniteFuture();
    std::vector<int> devices;
  };
  // It is usable, and what jobs that share it may plan is enough.
  bool CouldHold(int device, const Requirement& need) const;
  // When devices for the job in `group` are all free, after those that they are reserved for; without devices where
  // there are not enough.
  Slots EarliestIn(const std::vector<int>& group, const QueuedJob& job, const Requirement& need) const;
  Slots Earliest(const QueuedJob& job, const Requirement& need) const;
  // Its next_free for this job, for which those that overtook it stop.
  absl::Time NextFree(const Slot& slot, const QueuedJob& job) const;

  const SchedulingSnapshot& snapshot_;
  const absl::Time now_;
  bool IsRoomy(int device) const;

  std::vector<Slot> slots_;
  // By running job: when it lets go, not before now; and whether it stops for those whom it overtook.
  std::vector<absl::Time> ends_;
  std::vector<char> yields_;
  std::vector<std::vector<int>> groups_;
  std::vector<int> roomy_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_DEVICE_POOL_H_
