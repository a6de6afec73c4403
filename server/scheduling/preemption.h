// Whom to stop for a job that must wait.
#ifndef AMPD_SERVER_SCHEDULING_PREEMPTION_H_
#define AMPD_SERVER_SCHEDULING_PREEMPTION_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/device_pool.h"
#include "server/scheduling/pick.h"

namespace ampd {

class PreemptionPlanner {
 public:
  // Both must outlive it.
  PreemptionPlanner(const SchedulingSnapshot& snapshot, DevicePool* pool, absl::Time now);

  // Where stopping jobs gets `job` its devices, asks for it (see Pick) and keeps those devices for it. True also
  // where enough are stopping already. `asked` gets what is asked for anew.
  bool MakeRoom(const QueuedJob& job, const Requirement& need, std::vector<Preemption>* asked);
  // The jobs whose end the job waits for where MakeRoom was true last.
  const std::vector<std::string>& stopping() const { return stopping_; }

 private:
  struct Plan {
    std::vector<int> victims;
    std::vector<int> devices;
  };

  bool MayStop(const RunningJob& running, const QueuedJob& job) const;
  // Whether the device is free once the victims, and who stops already, are gone.
  bool Frees(int device, const std::vector<char>& victim) const;
  std::vector<int> Victims(const QueuedJob& job) const;
  // The victims needed for devices in `group`, fewest last resorts first; false: that is not enough.
  bool PlanIn(const std::vector<int>& group, const QueuedJob& job, const Requirement& need,
              const std::vector<int>& candidates, Plan* plan) const;
  bool IsBetter(const Plan& plan, const Plan& than) const;

  const SchedulingSnapshot& snapshot_;
  DevicePool* const pool_;
  const absl::Time now_;
  // By index in the snapshot.
  std::vector<char> is_stopping_;
  bool any_stopping_ = false;
  bool any_overtook_ = false;
  // Of the preemptible jobs that run.
  int64_t lowest_priority_ = INT64_MAX;
  std::vector<std::string> stopping_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SCHEDULING_PREEMPTION_H_
