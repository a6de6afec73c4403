// A cluster in simulated time: jobs come, start where Pick says, stop when asked, end; each round is checked.
#ifndef AMPD_TESTS_UNIT_SERVER_SCHEDULING_SIMULATOR_H_
#define AMPD_TESTS_UNIT_SERVER_SCHEDULING_SIMULATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/fair_share.h"
#include "server/scheduling/pick.h"

namespace ampd {

struct SimulatedJob {
  QueuedJob job;
  // How long it still computes, which its limit may cut.
  absl::Duration left;
  absl::Time submitted;
  absl::Duration checkpoint_time;
  std::vector<int> dependents;
  bool started = false;
  bool ended = false;
  absl::Time first_start;
  int stops = 0;
};

struct SimulationOptions {
  int jobs = 100'000;
  // Of 16 devices each.
  int groups = 4;
  uint64_t seed = 1;
  // Share of the jobs that are there from the start; the others come as fast as the devices can do them.
  double at_once = 0.02;
  // Of the devices, what a user may have.
  double quota = 0.625;
};

class Simulator {
 public:
  explicit Simulator(const SimulationOptions& options);
  // To the last end. The first rule that was broken, in words; empty: none.
  std::string Run();

  struct Figures {
    int64_t rounds = 0, starts = 0, overtakers = 0, stops = 0, gangs = 0, kept = 0, passed = 0, shared = 0, picky = 0,
            heads = 0;
    size_t longest_queue = 0;
    // Of device time from the first submit to the last end.
    double busy = 0;
    // Longest wait of the highest priority from the submit to the first start.
    absl::Duration longest_urgent_wait;
    absl::Duration simulated;
  };
  const Figures& figures() const { return figures_; }

 private:
  struct Event {
    absl::Time at;
    int64_t order;
    enum Kind { kSubmit, kEnd, kStopped, kRelease } kind;
    int job;
    // Of the start that it belongs to.
    int starts;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Head {
    std::string id;
    absl::Time bound;
  };

  void MakeJobs();
  QueuedJob MakeJob(int index);
  void Add(absl::Time at, Event::Kind kind, int job);
  void Handle(const Event& event);
  void Submit(int job);
  void Release(int job, bool ended);
  void Round();
  void Start(const Assignment& assignment);
  void Stop(const Preemption& preemption);
  void Fail(const std::string& what);
  RunningJob* FindRunning(const std::string& id);

  // Independent of Pick: by brute force over what the simulator itself knows.
  void CheckDevices();
  void CheckHead(const std::string& first);
  void CheckStarts(const Decision& decision);
  // Who starts knows whom it overtakes, and those stop for the head that keep it waiting alone.
  void CheckOvertaken(const Decision& decision);
  void CheckOvertakenBy(const Assignment& start, const Decision& decision, const std::set<std::string>& started,
                        const std::set<std::string>& users);
  void CheckYields(const Decision& decision, const QueuedJob& head);
  void CheckStops(const Decision& decision);
  // Fills kept_, too.
  const QueuedJob* FindHead(const std::vector<double>& usage);
  void FindKept();
  bool IsKeptFrom(const QueuedJob& job) const;
  void CheckQuota(const Decision& decision);
  absl::Time BoundOf(const QueuedJob& job) const;
  bool IsPossible(const QueuedJob& job) const;
  int FreeFor(const QueuedJob& job, int group) const;
  bool AtQuota(const QueuedJob& job) const;
  bool AtDeviceQuota(const QueuedJob& job) const;
  bool AtSweepQuota(const QueuedJob& job) const;
  absl::Time QuotaBoundOf(const QueuedJob& job) const;
  bool MayLeaveQuotaTo(const QueuedJob& job, const Decision& decision, const std::set<std::string>& started) const;
  static bool Overtook(const RunningJob& running, const QueuedJob& job);
  bool CouldHold(const QueuedJob& job, size_t device) const;
  bool RunsWhere(const RunningJob& running, const QueuedJob& job) const;

  const SimulationOptions options_;
  std::mt19937_64 random_;
  std::vector<SimulatedJob> jobs_;
  std::unordered_map<std::string, int> index_;
  JobQueue queue_;
  SchedulingSnapshot snapshot_;
  UsageLedger ledger_;
  absl::Time now_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t order_ = 0;
  std::vector<int> generation_;
  std::optional<Head> head_;
  // By user, the first job that its user's quota keeps waiting, and when it no longer does at the latest.
  struct Kept {
    const QueuedJob* job = nullptr;
    absl::Time until;
  };
  std::map<std::string, Kept> kept_;
  std::map<std::string, int> sweep_running_;
  std::map<std::string, int> user_devices_;
  Figures figures_;
  std::string failure_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_SCHEDULING_SIMULATOR_H_
