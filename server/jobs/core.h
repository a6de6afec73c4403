// The controller's logic, on one thread: what happens to each job, its worker and its device.
#ifndef AMPD_SERVER_JOBS_CORE_H_
#define AMPD_SERVER_JOBS_CORE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/jobs/controller.h"
#include "server/jobs/job.h"
#include "server/jobs/job_id.h"
#include "server/jobs/timer_queue.h"
#include "server/scheduling/pick.h"
#include "server/scheduling/utilization.h"

namespace ampd {

// Calls `done` once: with a result, or with CANCELLED when it is dropped without one. Shared by what may answer.
template <typename T>
class Reply {
 public:
  explicit Reply(std::function<void(absl::StatusOr<T>)> done) : done_(std::move(done)) {}
  ~Reply() { Send(absl::CancelledError("the daemon is stopping")); }
  void Send(absl::StatusOr<T> result) {
    if (auto done = std::exchange(done_, nullptr)) done(std::move(result));
  }

 private:
  std::function<void(absl::StatusOr<T>)> done_;
};
template <typename T>
using ReplyPtr = std::shared_ptr<Reply<T>>;
using Waiter = std::function<void(const absl::Status&)>;

// Why the controller asks a worker to stop, or kills it; decides what becomes of the job.
enum class Stop { kNone, kCancel, kDrain, kLimit, kNoHeartbeat, kNoAttach, kLost };

// A job that has not ended, or whose end is not durable, or whose worker is not gone.
struct LiveJob {
  explicit LiveJob(Job j) : job(std::move(j)), durable_number(job.record().worker_number) {}

  Job job;
  // A device is held, and a process exists or is about to.
  bool has_worker = false;
  bool launched = false;
  // Started by an earlier daemon: its end is seen by asking.
  bool adopted = false;
  // The attempt's outcome is decided; the worker only waits for `goodbye` and exits.
  bool finished = false;
  Stop stop = Stop::kNone;
  std::optional<WorkerExit> exit;
  std::string device;
  // Devices it cannot run on, once asked for.
  std::optional<std::vector<std::string>> unusable_devices;
  // Until the launch.
  std::string token;
  // Highest worker's event number that is durable.
  uint64_t durable_number = 0;

  std::shared_ptr<WorkerConnection> connection;
  bool welcomed = false;
  std::string session_key;
  absl::Duration last_heard;
  std::optional<UtilizationMeter> meter;

  TimerId attach_timer = 0;
  TimerId heartbeat_timer = 0;
  TimerId stop_timer = 0;
  TimerId run_timer = 0;
  TimerId exit_timer = 0;
  TimerId poll_timer = 0;
  TimerId retry_timer = 0;
  TimerId write_timer = 0;
  // Told when the changes so far are durable.
  std::vector<Waiter> waiters;
};

class ControllerCore {
 public:
  ControllerCore(ControllerOptions options, Store* store, EventLog* log, Launcher* launcher, Metrics* metrics,
                 const Clock* clock, std::function<void(std::function<void()>)> post, std::atomic<bool>* draining);

  // Takes up the jobs in the store. Called before anything else.
  absl::Status Recover();
  // After tasks and timers: starts what can start, writes what changed, forgets what is over.
  void Settle();
  TimerQueue& timers() { return timers_; }

  void CreateJob(CreateJobParams params, ReplyPtr<v1::Job> reply);
  void FindRequest(const std::string& request_id, const std::string& body, ReplyPtr<std::optional<v1::Job>> reply);
  void GetJob(const std::string& id, ReplyPtr<v1::Job> reply);
  void ListJobs(const v1::ListJobsRequest& request, ReplyPtr<v1::ListJobsResponse> reply);
  void CancelJob(const std::string& id, ReplyPtr<v1::Job> reply);
  std::vector<v1::Device> ListDevices() const;
  void UpdateDevices(std::vector<v1::Device> devices);
  void Drain(absl::Duration timeout, std::function<void(absl::Status)> done);

  void Attach(const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection);
  void Message(const std::shared_ptr<WorkerConnection>& connection, v1::WorkerMessage message);
  void Disconnected(const std::shared_ptr<WorkerConnection>& connection);
  void Exited(const WorkerProcess& process, const WorkerExit& exit);

 private:
  // What a write under way makes durable.
  struct Flight {
    std::string job_id;
    uint32_t attempt;
    v1::Job::State state;
    uint64_t number;
    bool finished;
    std::string session_key_hash;
    std::vector<Waiter> waiters;
  };
  struct DeviceSlot {
    v1::Device device;
    std::string job_id;
    // The last worker that is gone, and when it went; 0 without one.
    int64_t last_pid = 0;
    absl::Duration freed = absl::ZeroDuration();
  };
  struct Creation {
    std::string body_hash;
    std::vector<ReplyPtr<v1::Job>> replies;
  };

  // core.cc: jobs, writes, scheduling.
  LiveJob* Find(const std::string& id);
  void Touch(const LiveJob& live) { touched_.insert(live.job.id()); }
  TimerId After(absl::Duration delay, const LiveJob& live, void (ControllerCore::*action)(LiveJob&));
  // A transition that the logic knows to be legal.
  void Enter(LiveJob& live, v1::Job::State to, const std::string& reason, const v1::Failure* failure = nullptr);
  void Flush(LiveJob& live);
  void Written(Flight flight, const absl::Status& status);
  void AfterDurable(LiveJob& live, const Flight& flight);
  void RetryWrite(LiveJob& live);
  void Schedule();
  void StartJob(LiveJob& live, const std::string& device);
  void Log(const std::string& text) const;

  // core_devices.cc
  DeviceSlot* FindDevice(const std::string& id);
  void PublishDevices();
  // The devices' part of the snapshot.
  void AddDevices(SchedulingSnapshot* snapshot) const;
  const std::vector<std::string>& UnusableDevices(LiveJob& live) const;
  void ReleaseDevice(LiveJob& live);
  std::optional<std::string> JobOfProcess(const DeviceSlot& slot, int64_t pid) const;
  void JudgeProcesses(DeviceSlot& slot) const;
  // Adds to a worker's report what only the daemon knows: how much of its device it uses.
  void RateStep(const LiveJob& live, v1::StepReport* step);
  void TakeConditions(DeviceSlot& slot, const v1::Device& before);

  // core_requests.cc
  void InsertJob(CreateJobParams params, std::string body_hash, ReplyPtr<v1::Job> reply);
  void AnswerRequest(const std::string& request_id, const absl::StatusOr<v1::Job>& job);
  void CancelLive(LiveJob& live);
  v1::Job WithQueueInfo(v1::Job job) const;

  // core_workers.cc
  void AttachLive(LiveJob& live, const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection);
  void AttachEnded(const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection);
  absl::Status Authenticate(LiveJob& live, const v1::WorkerHello& hello);
  void Welcome(LiveJob& live);
  void OnEvent(LiveJob& live, v1::WorkerEvent event);
  void OnHeartbeat(LiveJob& live, const v1::WorkerHeartbeat& heartbeat);
  void OnFinished(LiveJob& live, const v1::WorkerFinished& finished);
  void CloseConnection(LiveJob& live, const absl::Status& status);
  void CheckHeartbeat(LiveJob& live);

  // core_lifecycle.cc: how attempts begin and end.
  void RecoverJob(JobRecord record);
  void RecoverWorker(LiveJob& live);
  void StopLostRunClock(LiveJob& live);
  void Launch(LiveJob& live);
  void Finish(LiveJob& live, const v1::WorkerFinished& finished);
  void Fail(LiveJob& live, v1::Failure::Class failure_class, const std::string& message);
  void RetryNow(LiveJob& live);
  void AskToStop(LiveJob& live, Stop reason);
  void SendStop(LiveJob& live);
  void Kill(LiveJob& live);
  void OnNoAttach(LiveJob& live);
  void OnRunLimit(LiveJob& live);
  void Poll(LiveJob& live);
  void WorkerGone(LiveJob& live);
  void DecideUnfinished(LiveJob& live);
  void CancelTimers(LiveJob& live);
  void OnDrainTimeout();
  void CheckDrained();

  const ControllerOptions options_;
  Store* const store_;
  EventLog* const log_;
  Launcher* const launcher_;
  Metrics* const metrics_;
  const Clock* const clock_;
  const std::function<void(std::function<void()>)> post_;
  std::atomic<bool>* const draining_;

  TimerQueue timers_;
  JobIdGenerator ids_;
  int64_t last_submit_sequence_ = 0;
  std::map<std::string, LiveJob> live_;
  std::unordered_map<WorkerConnection*, std::string> connections_;
  // Workers of jobs that ended before this daemon started; they only need their `goodbye`. True once welcomed.
  std::unordered_map<WorkerConnection*, bool> ended_;
  std::vector<DeviceSlot> devices_;
  std::set<std::string> touched_;
  bool needs_schedule_ = true;
  std::unordered_map<std::string, std::pair<int32_t, v1::Job::QueueReason>> waiting_;
  // By request id: submits under way.
  std::map<std::string, Creation> creating_;
  std::vector<std::function<void(absl::Status)>> drain_done_;
  std::string drain_late_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_CORE_H_
