// Snapshots for tests of Pick, written shortly.
#ifndef AMPD_TESTS_UNIT_SERVER_SCHEDULING_PICK_WORLD_H_
#define AMPD_TESTS_UNIT_SERVER_SCHEDULING_PICK_WORLD_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/scheduling/pick.h"
#include "server/scheduling/queue_info.h"

namespace ampd {

inline constexpr int64_t kGiB = int64_t{1} << 30;

// A queue and devices "d0", "d1", ... at a time of their own. Jobs come in the order in which they are added.
struct PickWorld {
  // By group, how many devices that jobs share by 16 GiB; how much memory they have is not known.
  explicit PickWorld(const std::vector<int>& groups) {
    for (size_t group = 0; group < groups.size(); ++group) {
      for (int i = 0; i < groups[group]; ++i) {
        DeviceState device;
        device.id = absl::StrCat("d", snapshot.devices.size());
        device.group = static_cast<int>(group);
        device.share_bytes = 16 * kGiB;
        snapshot.devices.push_back(device);
      }
    }
    snapshot.queue = &queue;
  }

  QueuedJob Job(const std::string& id, int gpus = 1) {
    QueuedJob job;
    job.id = id;
    job.submit_sequence = ++sequence;
    job.user = "ada";
    job.requirement.gpus = gpus;
    job.requirement.usable.assign(snapshot.devices.size(), true);
    return job;
  }
  void Queue(QueuedJob job) { queue.Put(std::move(job), now); }
  void Queue(const std::string& id, int gpus = 1) { Queue(Job(id, gpus)); }
  RunningJob Running(const std::string& id, std::vector<int> devices) {
    RunningJob job;
    job.id = id;
    job.user = "ada";
    job.devices = std::move(devices);
    job.start = now - absl::Hours(1);
    return job;
  }
  void Run(RunningJob job) { snapshot.running.push_back(std::move(job)); }
  void Run(const std::string& id, std::vector<int> devices) { Run(Running(id, std::move(devices))); }
  static DeviceSet Only(size_t count, const std::vector<int>& devices) {
    DeviceSet set(count, false);
    for (const int device : devices) set[static_cast<size_t>(device)] = true;
    return set;
  }

  void Decide() { decision = Pick(snapshot, now); }
  // "a@d0+d1, b@d2", in order; '*' behind those that overtake.
  std::string Starts() {
    Decide();
    std::vector<std::string> texts;
    for (const Assignment& start : decision.start) {
      texts.push_back(
          absl::StrCat(start.job_id, "@", absl::StrJoin(start.device_ids, "+"), start.overtook.empty() ? "" : "*"));
    }
    return absl::StrJoin(texts, ", ");
  }
  // "victim for job, ..." of the last decision.
  std::string Stops() const {
    std::vector<std::string> texts;
    for (const Preemption& stop : decision.preempt) texts.push_back(absl::StrCat(stop.job_id, " for ", stop.for_job));
    return absl::StrJoin(texts, ", ");
  }
  QueueInfo Info(const std::string& id) const { return Describe(snapshot, decision, *queue.Find(id)); }
  v1::Job::QueueReason Reason(const std::string& id) const { return Info(id).reason; }

  JobQueue queue;
  SchedulingSnapshot snapshot;
  Decision decision;
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  int64_t sequence = 0;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_SCHEDULING_PICK_WORLD_H_
