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
#include "server/jobs/turns.h"
#include "server/scheduling/fair_share.h"
#include "server/scheduling/pick.h"
#include "server/scheduling/queue_info.h"
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
  bool is_sent() const { return done_ == nullptr; }

 private:
  std::function<void(absl::StatusOr<T>)> done_;
};
template <typename T>
using ReplyPtr = std::shared_ptr<Reply<T>>;
using Waiter = std::function<void(const absl::Status&)>;
// By id.
using JobStates = std::map<std::string, v1::Job::State>;

// Why the controller asks a worker to stop, or kills it; decides what becomes of the job.
enum class Stop {
  kNone,
  kCancel,
  kDrain,
  kPause,
  kMove,
  kPreempt,
  kLimit,
  kCost,
  kNoHeartbeat,
  kNoAttach,
  kLost,
  kNotLaunched
};

// FAILED_PRECONDITION, for calls that are answered by a running job.
absl::Status DoesNotRun(const v1::Job& job);

// A CheckpointJob call that waits for its checkpoint.
struct CheckpointWaiter {
  ReplyPtr<v1::Checkpoint> reply;
  // When it was asked for.
  absl::Time since;
  // The newest checkpoint that came afterwards, though begun before.
  std::optional<v1::Checkpoint> older;
};

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
  // The worker was killed; again each second until it is gone, since a kill may fail.
  bool killed = false;
  std::optional<WorkerExit> exit;
  // Ids of those it holds, and since when, by SteadyNow.
  std::vector<std::string> devices;
  absl::Time held_since = absl::InfinitePast();
  // Devices it can run on, once asked for.
  std::optional<DeviceSet> usable_devices;
  // Jobs it waits for before its first start.
  std::vector<std::string> waits_for;
  // Until the launch.
  std::string token;
  // Highest worker's event number that is durable.
  uint64_t durable_number = 0;

  std::shared_ptr<WorkerConnection> connection;
  bool welcomed = false;
  std::string session_key;
  absl::Duration last_heard;
  // When its silence was first looked into.
  std::optional<absl::Duration> suspected;
  std::optional<UtilizationMeter> meter;
  // The most that a heartbeat of this attempt told, to this daemon.
  int64_t evaluated_samples = 0;

  TimerId attach_timer = 0;
  TimerId heartbeat_timer = 0;
  TimerId stop_timer = 0;
  TimerId run_timer = 0;
  TimerId exit_timer = 0;
  TimerId poll_timer = 0;
  TimerId retry_timer = 0;
  TimerId write_timer = 0;
  // The last write met damage in the database.
  bool write_damaged = false;
  // While it is paused for want of room, until it may try again; how often it was so since its last checkpoint.
  TimerId space_timer = 0;
  int space_pauses = 0;
  // While it runs on because it is not known yet whether it can write a checkpoint in time; then for whom it stops.
  TimerId preempt_timer = 0;
  std::string preempted_for;
  // It has shown that it can, and waits for others that are to stop for the same job.
  bool preempt_ready = false;
  // When it was last left running because it could not.
  std::optional<absl::Duration> left_running;
  std::vector<CheckpointWaiter> checkpoint_waiters;
  // ProfileJob calls that wait, and what the last of them asked for.
  std::vector<ReplyPtr<v1::StepProfile>> profile_waiters;
  v1::ProfileJobRequest profile_request;
  // Up to when its devices were paid for, by the monotonic clock; unset while it holds none. And for how long they were
  // since this daemon gave them to it or found it with them.
  std::optional<absl::Duration> charged_until;
  absl::Duration charged;
  // Of all its devices; of one that it shares, its part.
  double usd_per_second = 0;
  // What it had been charged when this attempt began, until the attempt reports a step; unset where that is not known.
  std::optional<Charged> charged_before;
  TimerId cost_timer = 0;
  // Told when the changes so far are durable.
  std::vector<Waiter> waiters;
};

class ControllerCore {
 public:
  // Has the controller's thread run a task.
  using Poster = std::function<void(std::function<void()>)>;

  // `post_answer`: likewise, but before what was posted and has not begun; for tasks that change nothing.
  ControllerCore(ControllerOptions options, Store* store, EventLog* log, Launcher* launcher, Metrics* metrics,
                 const Clock* clock, Poster post, Poster post_answer, std::atomic<bool>* draining);

  // Takes up the jobs in the store. Called before anything else.
  absl::Status Recover();
  // After tasks and timers: starts what can start, writes what changed, forgets what is over; nothing is left to do
  // until the next task or timer.
  void Settle();
  TimerQueue& timers() { return timers_; }

  // Before the store is done with this: no read that waits for its turn begins any more.
  void StopReads() { large_reads_.Close(); }

  // On any thread, as are GetJob, GetSweep and ListJobs; they answer on any, too.
  void FindRequest(const std::string& user, const std::string& request_id, const std::string& body,
                   ReplyPtr<std::optional<v1::Job>> reply);
  void GetJob(const std::string& id, ReplyPtr<v1::Job> reply, const Owner& owner = std::nullopt);

  void CreateJob(CreateJobParams params, ReplyPtr<v1::Job> reply);
  void CreateSweep(std::vector<CreateJobParams> params, ReplyPtr<v1::JobSweep> reply);
  void GetSweep(const std::string& id, ReplyPtr<v1::JobSweep> reply, const Owner& owner = std::nullopt);
  void ListSweeps(const v1::ListSweepsRequest& request, ReplyPtr<v1::ListSweepsResponse> reply, const Owner& owner);
  void CancelSweep(const std::string& id, bool now, const ReplyPtr<v1::JobSweep>& reply);
  void ListJobs(const v1::ListJobsRequest& request, ReplyPtr<v1::ListJobsResponse> reply, const Owner& owner);
  void CancelJob(const std::string& id, bool now, ReplyPtr<v1::Job> reply);
  void PauseJob(const std::string& id, ReplyPtr<v1::Job> reply);
  void ResumeJob(const std::string& id, ReplyPtr<v1::Job> reply);
  void CheckpointJob(const std::string& id, ReplyPtr<v1::Checkpoint> reply);
  // Its caller has gone away.
  void LeaveCheckpoint(const ReplyPtr<v1::Checkpoint>& reply);
  void ProfileJob(const v1::ProfileJobRequest& request, ReplyPtr<v1::StepProfile> reply);
  // Its caller has gone away.
  void LeaveProfile(const ReplyPtr<v1::StepProfile>& reply);
  void RetryJob(RetryJobParams params, ReplyPtr<v1::Job> reply);
  void UpdateJob(const v1::UpdateJobRequest& request, ReplyPtr<v1::Job> reply);
  bool PreemptJob(const std::string& id, const std::string& for_job);
  std::vector<v1::Device> ListDevices() const;
  void UpdateDevices(std::vector<v1::Device> devices);
  void SetDiskShortage(std::string shortage);
  void Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done);
  void Detach(std::function<void()> done);
  DatasetUse FindDatasetUse(const std::string& dataset, const Owner& owner) const;
  // Jobs whose workers train.
  int Workers() const;
  void DrainDevice(const v1::DrainDeviceRequest& request, ReplyPtr<v1::Device> reply);
  void UndrainDevice(const std::string& id, ReplyPtr<v1::Device> reply);

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
  struct GoneWorker {
    int64_t pid;
    absl::Duration at;
  };
  struct DeviceSlot {
    v1::Device device;
    // Of those that hold it; more than one where they share it.
    std::vector<std::string> job_ids;
    // Workers that are gone since not long.
    std::vector<GoneWorker> gone;
    // Why no job starts on it, where that was asked for.
    std::optional<DrainRecord> drain;
  };
  struct Creation {
    std::string body_hash;
    std::vector<ReplyPtr<v1::Job>> replies;
  };

  // core.cc: jobs, writes.
  LiveJob* Find(const std::string& id);
  void Touch(const LiveJob& live) {
    touched_.insert(live.job.id());
    unsynced_.insert(live.job.id());
  }
  TimerId After(absl::Duration delay, const LiveJob& live, void (ControllerCore::*action)(LiveJob&));
  // A transition that the logic knows to be legal.
  void Enter(LiveJob& live, v1::Job::State to, const std::string& reason, const v1::Failure* failure = nullptr);
  void Flush(LiveJob& live);
  // Forgets the job where nothing of it is left to be done.
  void ForgetIfOver(const LiveJob& live);
  void Written(Flight flight, const absl::Status& status);
  void AfterDurable(LiveJob& live, const Flight& flight);
  void RetryWrite(LiveJob& live);
  void Log(const std::string& text, const LogSubject& about = {}) const;
  static LogSubject About(const LiveJob& live) { return {live.job.id(), live.job.proto().attempt()}; }

  // core_schedule.cc
  // The wall clock's time as this daemon began, and what has passed since by the one that nobody sets: who decides by
  // how long something took is not misled by a step of the wall clock.
  absl::Time SteadyNow() const { return begin_ + (clock_->Monotonic() - begin_monotonic_); }
  void Schedule();
  void SyncQueue(const std::string& id);
  // Takes note of all jobs that changed since it was last called.
  void SyncQueue();
  void FillSnapshot();
  RunningJob RunningOf(const LiveJob& live) const;
  // The longest time the job holds devices from now on; infinite without limits.max_run_seconds.
  absl::Duration HoldLimit(const LiveJob& live) const;
  absl::Time ExpectedEnd(const LiveJob& live) const;
  // Devices it holds, as usage counts them: of one that is shared the part that its plan takes.
  double DevicesOf(const LiveJob& live) const;
  void StartJob(LiveJob& live, const Assignment& assignment);
  void ArmRelease();
  void ArmRound();
  void PublishQueue() const;
  // RESOURCE_EXHAUSTED where `more` jobs of the user are more than may be queued or paused; and the end of one's
  // insertion.
  absl::Status CheckQueueQuota(const std::string& user, int more);
  void Inserted(const std::string& user);
  // Counts the job among its user's PAUSED ones, or no more: after every change of its state.
  void NotePaused(const LiveJob& live);
  void NoteCheckpoint(LiveJob& live, const v1::CheckpointSaved& checkpoint);
  // Counts for its user what the job had of its devices for the time up to now.
  void ChargeUsage(LiveJob& live, absl::Duration held);
  // As usage counts it, what it has of its devices and is not charged yet.
  double UnchargedSeconds(const LiveJob& live) const;
  absl::Status RestoreUsage();
  v1::Job WithQueueInfo(v1::Job job) const;

  // core_dependencies.cc
  // Has the job wait for those it names; returns those of them that have ended, for LookUpDependencies.
  std::set<std::string> AddDependencies(LiveJob& live);
  // Of several jobs at once: each is a read on the thread that writes.
  void LookUpDependencies(const std::set<std::string>& ids);
  // Those that wait for the job do so no more; those that need its success are cancelled without it. STATE_UNSPECIFIED:
  // there is no such job.
  void DependencyEnded(const std::string& id, v1::Job::State state);
  void ForgetDependencies(const LiveJob& live);
  std::string DescribeDependencies(const QueuedJob& job) const;

  // core_devices.cc
  DeviceSlot* FindDevice(const std::string& id);
  void PublishDevices();
  // The devices' part of the snapshot.
  void AddDevices(SchedulingSnapshot* snapshot) const;
  const DeviceSet& UsableDevices(LiveJob& live) const;
  void ReleaseDevices(LiveJob& live);
  std::optional<std::string> JobOfProcess(const DeviceSlot& slot, int64_t pid) const;
  void JudgeProcesses(DeviceSlot& slot) const;
  // Adds to a worker's report what only the daemon knows: how much of its device it uses.
  void RateStep(const LiveJob& live, v1::StepReport* step);
  void TakeConditions(DeviceSlot& slot, const v1::Device& before);

  // core_requests.cc
  // Jobs that become durable as one, and are answered with the first of them. The first of `params` has the request's
  // id.
  void CreateJobs(std::vector<CreateJobParams> params, ReplyPtr<v1::Job> reply);
  void InsertJobs(std::vector<CreateJobParams> params, std::string body_hash, ReplyPtr<v1::Job> reply);
  absl::StatusOr<std::shared_ptr<Job>> NewJob(CreateJobParams params, absl::Time now);
  void JobsInserted(std::vector<std::shared_ptr<Job>> jobs, const absl::Status& status, const ReplyPtr<v1::Job>& reply);
  void AnswerInserted();
  void AnswerRequest(const std::string& request_id, absl::StatusOr<v1::Job> job);
  // Answers with the job of the request, where there is one, otherwise with `refusal`.
  ReplyPtr<std::optional<v1::Job>> AnswerOr(const std::string& key, const absl::Status& refusal);
  void FindRequestOf(const std::string& user, const std::string& request_id, const std::string& body_hash,
                     ReplyPtr<std::optional<v1::Job>> reply);
  // On a thread of the store's. `turn`: of a large job, otherwise null.
  void ReadJob(const Database& database, int64_t sequence, const ReplyPtr<v1::Job>& reply, const Turns::Turn& turn);
  // As it is in memory, durable or not; one that is not there, as it is once all writes so far are durable.
  void FindToChange(const std::string& id, ReplyPtr<v1::Job> reply);
  void CancelLive(LiveJob& live, bool now);
  // What the events of its end say.
  static std::string CancelReason(const LiveJob& live);
  // Finds the job, has `change` change it, and answers with it once that is durable. `change`'s errors go to the
  // caller, as does FAILED_PRECONDITION for a job that has ended.
  void ChangeJob(const std::string& id, std::function<absl::Status(LiveJob&)> change, ReplyPtr<v1::Job> reply);

  // core_datasets.cc
  // Counts the job among those that use its datasets, or no more: after every change of its state.
  void NoteDatasets(const LiveJob& live);

  // core_pause.cc
  absl::Status PauseLive(LiveJob& live);
  absl::Status ResumeLive(LiveJob& live);
  // Ends an attempt of a job that is to go on later; a running one is PREEMPTING until its worker has stopped.
  void StopForLater(LiveJob& live, Stop stop, const std::string& reason);
  // The attempt is over and nothing failed: QUEUED, or PAUSED where that was asked for.
  void Requeue(LiveJob& live, const std::string& reason);

  // core_disk.cc
  // The attempt failed for want of room: PAUSED, and QUEUED again by itself once there is room.
  void PauseForSpace(LiveJob& live, const std::string& message);
  void ResumeForSpace(LiveJob& live);
  // A job's change was not, or was, written.
  void NoteStoreWrite(const absl::Status& status);
  // Why nothing may start; empty: something may.
  const std::string& Shortage() const { return disk_shortage_.empty() ? store_shortage_ : disk_shortage_; }

  // core_cost.cc
  // Its devices are the job's from `since` on.
  void StartCharging(LiveJob& live, absl::Duration since);
  void Charge(LiveJob& live);
  // Charges up to now; to be called before `event` is added to the job.
  void ChargeEvent(LiveJob& live, const v1::JobEvent& event);
  void ChargeStep(LiveJob& live, const v1::StepReport& step);
  void ChargeCheckpoint(LiveJob& live, const v1::CheckpointSaved& checkpoint);
  void ChargeRewound(LiveJob& live, int64_t to_step);
  Charged ChargedSoFar(const LiveJob& live) const;
  // Of what the job was charged `seconds` on all its devices were for nothing, or so much.
  void AddWaste(LiveJob& live, double seconds);
  void AddWaste(LiveJob& live, double device_seconds, double usd);
  // Adds to the counters of device time and dollars by use: what a job had; what nobody had.
  void CountUse(LiveJob& live, double seconds);
  void CountIdle();
  // Stores what nobody had: now and every minute from then on, or once.
  void StoreIdle();
  void WriteIdle();
  void RestoreOwed(const std::map<std::string, double>& counters);
  bool HasPrice(const v1::Device& device) const;
  void ArmCostLimit(LiveJob& live);
  void OnCostLimit(LiveJob& live);
  std::string CostLimitText(const LiveJob& live) const;

  // core_drain_device.cc
  absl::Status RecoverDrains();
  void SetDrain(DeviceSlot& slot, std::optional<DrainRecord> drain);
  void AddDrainCondition(DeviceSlot& slot) const;
  absl::StatusOr<v1::Device> GetDevice(const std::string& id) const;
  // Whether a device that it holds was drained of its jobs.
  bool MustLeave(const LiveJob& live);
  void StopJobsOn(const std::string& device);

  // core_retry.cc
  // `needed`: as the store has them, the states of the jobs that must succeed first; STATE_UNSPECIFIED: not there.
  // FAILED_PRECONDITION where one of them ended otherwise.
  absl::Status Revive(JobRecord record, const RetryJobParams& params, const JobStates& needed);
  absl::Status CheckNeeded(const std::string& id, const JobStates& needed) const;

  // core_update.cc
  absl::Status UpdateLive(LiveJob& live, const v1::UpdateJobRequest& request);

  // core_preempt.cc
  // Begins to stop a running job for job `for_job`: PREEMPTING, and QUEUED once its worker stopped after a checkpoint.
  // It is asked for a checkpoint first; StopIfReady() comes behind all who are asked for the same job. Where none comes
  // within preempt_grace it is left running, and so are the others. One that measures writes none. False, and nothing
  // happens, where it does not run, is being stopped already, cannot be told, or was left running not long ago.
  bool Preempt(LiveJob& live, const std::string& for_job);
  // Those that are to stop for a job and were not told to yet.
  std::vector<LiveJob*> AskedFor(const std::string& for_job);
  // Tells those to stop if each of them has its checkpoint.
  void StopIfReady(const std::vector<LiveJob*>& asked);
  // Likewise, of all that are asked for the job; they are left running where it waits no more, or comes before one of
  // them no more.
  void StopForJob(const std::string& for_job);
  bool LeftRunningLately(const LiveJob& live) const;
  void OnPreemptGrace(LiveJob& live);
  void OnPreemptCheckpoint(LiveJob& live);
  void LeaveRunning(LiveJob& live, const std::string& why);
  void StopPreempted(LiveJob& live);
  // A worker that has not stopped in so many graces from now is killed, and the job goes on from its last checkpoint.
  void ArmStop(LiveJob& live, int graces);
  void RequeuePreempted(LiveJob& live);

  // core_checkpoint.cc
  void OnCheckpoint(LiveJob& live, const v1::JobEvent& event);
  void AnswerCheckpoint(LiveJob& live, const ReplyPtr<v1::Checkpoint>& reply, const v1::Checkpoint& checkpoint);
  // The attempt is over. Where it did all its steps, nothing is newer than the last checkpoint that came.
  void EndCheckpointWaiters(LiveJob& live, bool succeeded);
  void SendCommand(LiveJob& live, v1::DaemonCommand::Kind kind);

  // core_profile.cc
  void SendProfile(LiveJob& live);
  void OnProfile(LiveJob& live, const v1::StepProfile& profile);
  // The attempt is over.
  void EndProfileWaiters(LiveJob& live);

  // core_sweeps.cc
  void CancelAll(const std::string& sweep, const std::vector<std::string>& jobs, bool now,
                 const ReplyPtr<v1::JobSweep>& reply);
  void AddQueueInfo(const std::shared_ptr<v1::JobSweep>& sweep, int begin, const ReplyPtr<v1::JobSweep>& reply,
                    const Turns::Turn& turn);

  // core_workers.cc
  void AttachLive(LiveJob& live, const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection);
  void AttachEnded(const v1::WorkerHello& hello, std::shared_ptr<WorkerConnection> connection);
  absl::Status Authenticate(LiveJob& live, const v1::WorkerHello& hello);
  void Welcome(LiveJob& live);
  void OnEvent(LiveJob& live, v1::WorkerEvent event);
  void WarnOfSchedule(LiveJob& live);
  void OnHeartbeat(LiveJob& live, const v1::WorkerHeartbeat& heartbeat);
  void OnFinished(LiveJob& live, const v1::WorkerFinished& finished);
  void CloseForGap(LiveJob& live, const std::string& what);
  void CloseConnection(LiveJob& live, const absl::Status& status);
  void CheckHeartbeat(LiveJob& live);

  // core_lifecycle.cc: how attempts begin and end.
  void RecoverJob(JobRecord record);
  void RecoverWorker(LiveJob& live);
  // Whether each device that could run it has less memory than its plan takes.
  bool FitsNowhere(LiveJob& live) const;
  absl::Duration BackOff(const LiveJob& live) const;
  double Draw() const;
  void Launch(LiveJob& live);
  void Finish(LiveJob& live, const v1::WorkerFinished& finished);
  void Fail(LiveJob& live, v1::Failure::Class failure_class, const std::string& message);
  void RetryNow(LiveJob& live);
  void AskToStop(LiveJob& live, Stop reason);
  void SendStop(LiveJob& live);
  void Kill(LiveJob& live);
  void OnNoAttach(LiveJob& live);
  void ArmLimits(LiveJob& live);
  void OnRunLimit(LiveJob& live);
  // The job trains, also where it is to stop for later and takes its time: a limit that is reached ends it.
  static bool LimitHolds(const LiveJob& live);
  void Poll(LiveJob& live);
  void WorkerGone(LiveJob& live);
  void DecideUnfinished(LiveJob& live);
  void CancelTimers(LiveJob& live);
  void OnDrainTimeout();
  void CheckDrained();
  std::string StoppedWithDaemon() const;

  // core_orphans.cc: workers that outlive a daemon, and those that nobody wants any more.
  void CheckDetached();
  void AdoptOrEnd(const FoundWorker& found);
  // At the start: the last daemon ended before a worker of the attempt ran, and none will.
  static bool NeverBegan(const LiveJob& live);
  void EndOrphan(const FoundWorker& found, const std::string& why);
  // Of a process that no job counts as its worker: again each second, since a kill may fail.
  void KillUntilGone(const WorkerProcess& process);

  // How often processes whose end nobody reports are looked at.
  static constexpr absl::Duration kPollInterval = absl::Seconds(1);

  const ControllerOptions options_;
  const StartFolders starts_;
  Store* const store_;
  EventLog* const log_;
  Launcher* const launcher_;
  Metrics* const metrics_;
  const Clock* const clock_;
  const absl::Time begin_;
  const absl::Duration begin_monotonic_;
  const Poster post_;
  const Poster post_answer_;
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
  // Jobs that changed since the queue was last looked at.
  std::set<std::string> unsynced_;
  JobQueue queue_;
  // By user, jobs on their way to the store.
  std::map<std::string, int64_t> inserting_;
  // By user, those that are PAUSED.
  std::map<std::string, std::set<std::string>> paused_;
  // Of the last round; times in them, in the estimates and in the usage are SteadyNow's.
  SchedulingSnapshot snapshot_;
  Decision decision_;
  mutable std::optional<std::unordered_map<std::string, absl::Time>> estimates_;
  UsageLedger usage_;
  TimerId round_timer_ = 0;
  TimerId release_timer_ = 0;
  absl::Time release_at_ = absl::InfiniteFuture();
  // By the job that they wait for.
  std::unordered_map<std::string, std::set<std::string>> dependents_;
  // Those of them that could not be read, and are looked up again after a while.
  std::set<std::string> unread_dependencies_;
  // By dataset and user, jobs that have not ended.
  std::map<std::string, std::map<std::string, std::set<std::string>>> dataset_jobs_;
  // By request id: submits under way.
  std::map<std::string, Creation> creating_;
  // Reads of large jobs and of sweeps: one is in memory at a time, from the store until it is answered.
  Turns large_reads_;
  // Inserted jobs whose callers wait for the next round.
  std::vector<std::pair<v1::Job, ReplyPtr<v1::Job>>> inserted_;
  std::vector<std::function<void(absl::Status)>> drain_done_;
  std::string drain_late_;
  // This machine's, as it was last read.
  mutable int64_t memory_used_ = 0;
  mutable absl::Duration memory_read_at_ = -absl::InfiniteDuration();
  std::vector<std::function<void()>> detach_done_;
  std::string drain_reason_;
  // Up to when idle time is counted, and what of it is not stored yet.
  absl::Duration idle_until_;
  std::map<std::string, double> idle_;
  // Of jobs' time so far what was for nothing and is not counted so yet, by its name in the store.
  std::map<std::string, double> owed_;
  bool idle_in_flight_ = false;
  bool idle_of_drain_written_ = false;
  // What the daemon saw of the file system, and what the store said.
  std::string disk_shortage_;
  std::string store_shortage_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_CORE_H_
