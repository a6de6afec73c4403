// The one thread that owns jobs and scheduling. RPC handlers, the worker link and the launcher post to it; what it
// answers is durable.
#ifndef AMPD_SERVER_JOBS_CONTROLLER_H_
#define AMPD_SERVER_JOBS_CONTROLLER_H_

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/device.pb.h"
#include "ampd/v1/job.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/mutex.h"
#include "proto/spec/device_models.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/events/log_subject.h"
#include "server/jobs/launcher.h"
#include "server/jobs/start_folders.h"
#include "server/jobs/worker_connection.h"
#include "server/scheduling/pick.h"
#include "server/store/store.h"

namespace ampd {

class ControllerCore;
class Metrics;

struct ControllerOptions {
  // At least one; see server/scheduling/devices.h and server/gpu/nvml.h. The order is that in which they are used.
  // `job_id`, and `utilization` of CPU devices, are the controller's to fill.
  std::vector<v1::Device> devices;
  // Kinds of devices, for rating steps and for workers; see proto/spec/device_models.h.
  std::vector<v1::DeviceModel> device_models = BuiltInDeviceModels();
  // Whether the pids that the GPUs' driver tells are those that this daemon knows its workers by; they are not in a
  // container. Where false, what computes on a device that a job holds is taken for the job's.
  bool same_pid_namespace = true;
  // Job J's checkpoints lie in checkpoint_root/J; an absolute path. The worker creates its folder.
  std::string checkpoint_root;
  // Where they are copied to, likewise; empty: nowhere.
  std::string mirror_root;
  // Job J's artifacts lie in artifact_root/J, likewise.
  std::string artifact_root;
  // Where uploaded files lie, and what is held of the weights that jobs start from; absolute paths.
  std::string upload_dir;
  std::string start_root;
  // As they go to the workers.
  std::vector<std::string> data_roots;
  absl::Duration reattach_timeout = absl::Minutes(10);
  absl::Duration heartbeat_timeout = absl::Seconds(60);
  // Time a launched worker has to attach.
  absl::Duration start_timeout = absl::Seconds(60);
  // Time a worker has to checkpoint and stop when its job is cancelled or over a limit, and to exit after `goodbye`.
  absl::Duration stop_grace = absl::Seconds(60);
  // How devices are given out; its stop_grace is the one above.
  SchedulingPolicy scheduling;
  // Time in which half of a user's usage is forgotten; see server/scheduling/fair_share.h.
  absl::Duration usage_half_life = absl::Hours(7 * 24);
  // QUEUED and PAUSED jobs that a user may have before another is submitted or retried; 0: no limit. What is paused or
  // goes back to the queue is not refused.
  int max_queued_jobs_per_user = 0;
  // As of SetDiskShortage, until its first call.
  std::string disk_shortage;
  // Time a job that is to be preempted has for a checkpoint; without one it is left running. And the time that a worker
  // has to stop at least, once told to for another job, or once it wrote a checkpoint to leave a drained device, before
  // it is killed.
  absl::Duration preempt_grace = absl::Seconds(60);
  // Draws from [0, 1), to spread retries; empty: at random.
  std::function<double()> draw;
  // Told, in words, what an operator should know: failed writes, workers killed. May be empty. Controller's thread.
  SubjectLog log;
};

struct CreateJobParams {
  // Resolved.
  v1::JobSpec spec;
  v1::ModelPlan plan;
  // Who submits; empty where nobody is told apart.
  std::string user;
  // Empty: none.
  std::string request_id;
  // The spec as the client sent it, serialised deterministically; compared (as a hash) when a request id comes again.
  std::string body;
  // With start_from.job_id: the weights, which become the job's.
  std::shared_ptr<HeldWeights> start;
  // Of a sweep's job: all but the sweep's id, which the controller gives.
  std::optional<v1::SweepPoint> sweep;
  // As JobRecord's.
  std::map<std::string, std::string> datasets;
  // What must stay until the job is there, or is not to be: let go of once the call is answered. May be null.
  std::shared_ptr<const void> held;
};

struct RetryJobParams {
  std::string job_id;
  // With start_from.job_id: the weights anew; those of before were let go of when the job ended. Null where it needs
  // none, or has checkpoints of its own.
  std::shared_ptr<HeldWeights> start;
  // As CreateJobParams's: what they contain now.
  std::map<std::string, std::string> datasets;
  std::shared_ptr<const void> held;
};

// Whether jobs that have not ended use a dataset.
struct DatasetUse {
  bool used = false;
  // One of them that whoever asks may see; empty where there is none.
  std::string job_id;
};

// Thread-safe. Callbacks (`done`) run on the controller's thread or on one of the store's; they must not block, nor
// wait for the controller. A callback that is still pending when the controller is destroyed gets CANCELLED.
class Controller {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // Takes up the jobs in `store`, then starts. The pointers must outlive the controller; `metrics` may be null.
  // INVALID_ARGUMENT for options without devices; the store's errors.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(ControllerOptions options, Store* store, EventLog* log,
                                                           Launcher* launcher, Metrics* metrics, const Clock* clock);
  // Stops the thread; jobs and workers stay as they are, and the next daemon takes them up.
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Errors of TrainingService.CreateJob: UNAVAILABLE while draining, ALREADY_EXISTS for a request id with another
  // body, RESOURCE_EXHAUSTED when the state directory is full or the user has max_queued_jobs_per_user.
  void CreateJob(CreateJobParams params, Done<v1::Job> done);
  // All jobs of a sweep or none, in this order. At least one; each has its `sweep`, the first the request's id and
  // body, as the other jobs do not. Errors as CreateJob's.
  void CreateSweep(std::vector<CreateJobParams> params, Done<v1::JobSweep> done);
  // `id`: whole, or a prefix of at least 4 characters that is unique among the sweeps of `owner`, others being unknown.
  // Errors as Database::FindSweep.
  void GetSweep(std::string id, Done<v1::JobSweep> done, Owner owner = std::nullopt);
  // page_size 0 is 100. INVALID_ARGUMENT outside 0..1000 and for a bad token. Of `owner` there are that user's alone,
  // whomever the request names.
  void ListSweeps(v1::ListSweepsRequest request, Done<v1::ListSweepsResponse> done, Owner owner = std::nullopt);
  // Answers once the requests to stop are durable. `now`: as CancelJob's.
  void CancelSweep(std::string id, bool now, Done<v1::JobSweep> done);
  // The job that `request_id` of this user already made, of a sweep the first, so that a repeat need not be planned;
  // empty when there is none. ALREADY_EXISTS when it was used with another body.
  void FindRequest(std::string user, std::string request_id, std::string body, Done<std::optional<v1::Job>> done);
  // `id`: whole, or a prefix of at least 4 characters that is unique among the jobs of `owner`, others being unknown.
  // Errors as Database::FindJob.
  void GetJob(std::string id, Done<v1::Job> done, Owner owner = std::nullopt);
  // The whole id of the job, or sweep, that GetJob or GetSweep would answer with: for who needs no more of it.
  void FindJobId(std::string id, Done<std::string> done, Owner owner = std::nullopt);
  void FindSweepId(std::string id, Done<std::string> done, Owner owner = std::nullopt);
  // page_size 0 is 100. INVALID_ARGUMENT outside 0..1000 and for a bad token.
  void ListJobs(v1::ListJobsRequest request, Done<v1::ListJobsResponse> done, Owner owner = std::nullopt);
  // Answers once the request to stop, or the end of a job without a worker, is durable. With `now` its worker is
  // killed, also one that was asked to stop before.
  void CancelJob(std::string id, bool now, Done<v1::Job> done);
  // The next two answer as TrainingService's calls do, once what was asked for is durable: a running
  // job is PREEMPTING then and becomes PAUSED when its worker has stopped.
  void PauseJob(std::string id, Done<v1::Job> done);
  void ResumeJob(std::string id, Done<v1::Job> done);
  // As TrainingService's call. Gives what to call when the caller has gone away, as ProfileJob does.
  std::function<void()> CheckpointJob(std::string id, Done<v1::Checkpoint> done);
  // As TrainingService's call, once the profile is durable. request.steps() is set. Gives what to call when the caller
  // has gone away: the call ends with CANCELLED, unless it is over, and leaves its place to another.
  std::function<void()> ProfileJob(v1::ProfileJobRequest request, Done<v1::StepProfile> done);
  // FAILED_PRECONDITION, naming it, where a dataset no longer contains what it did when the job was submitted, or where
  // a job that must succeed first (after_ok) ended otherwise. One that never started waits again for those it names.
  // RESOURCE_EXHAUSTED where its user has max_queued_jobs_per_user.
  void RetryJob(RetryJobParams params, Done<v1::Job> done);
  void UpdateJob(v1::UpdateJobRequest request, Done<v1::Job> done);
  // Stops a running job for job `for_job`, as scheduling does by itself for one of higher priority;
  // ControllerCore::Preempt says how. False where that cannot be. `id` is whole.
  void PreemptJob(std::string id, std::string for_job, Done<bool> done);
  // By jobs that have not ended, those that CreateJob or RetryJob has answered with among them. The job told is of
  // `owner`; nullopt: whose it is does not matter.
  void FindDatasetUse(std::string dataset, Owner owner, Done<DatasetUse> done);
  // Jobs whose workers train at present.
  void CountWorkers(Done<int> done);
  void ListDevices(Done<std::vector<v1::Device>> done);
  // Answer as TrainingService's calls do. Drains outlive the daemon.
  void DrainDevice(v1::DrainDeviceRequest request, Done<v1::Device> done);
  void UndrainDevice(std::string id, Done<v1::Device> done);
  // New figures and conditions of devices, by id; unknown ids are passed over. Processes that are no worker of this
  // daemon become FOREIGN_PROCESS; a device with a condition that blocks jobs gets none, while one that runs goes on.
  void UpdateDevices(std::vector<v1::Device> devices);

  // Why no job may start for want of room in the state directory, in words; empty: there is room. Jobs that are PAUSED
  // with NO_DISK_SPACE are queued again when there is.
  void SetDiskShortage(std::string shortage);

  // Stops admitting and starting jobs, has every worker checkpoint and stop, requeues their jobs. `done` gets OK when
  // no worker is left, or DEADLINE_EXCEEDED naming the jobs whose workers were killed after `timeout` (they are
  // requeued too). A second call joins the first, with what is left of the shorter time.
  // `reason`, which may be empty, goes into the jobs' events, the first call's alone.
  void Drain(absl::Duration timeout, std::function<void(absl::Status)> done) { Drain(timeout, "", std::move(done)); }
  void Drain(absl::Duration timeout, std::string reason, std::function<void(absl::Status)> done);
  // Stops admitting and starting jobs, and leaves their workers alone. `done` is called once what is known of every one
  // is durable, so that the next daemon takes them all up. A second call joins the first.
  void Detach(std::function<void()> done);
  bool draining() const { return draining_.load(); }

  // The worker link. The first message of a stream goes to WorkerAttached, the others to WorkerMessage, the end of the
  // stream (once, after the last message, whoever ended it) to WorkerDisconnected. The controller answers through
  // `connection`: `welcome` first, or Close with
  //   UNAUTHENTICATED  wrong credential;  FAILED_PRECONDITION  the attempt is over, or no common protocol;
  //   NOT_FOUND  unknown job;  UNAVAILABLE  try again (the store is full, or another connection took over).
  void WorkerAttached(v1::WorkerHello hello, std::shared_ptr<WorkerConnection> connection);
  void WorkerMessage(std::shared_ptr<WorkerConnection> connection, v1::WorkerMessage message);
  void WorkerDisconnected(std::shared_ptr<WorkerConnection> connection);

  // The launcher's report of a process that it started.
  void WorkerExited(WorkerProcess process, WorkerExit exit);

  // Runs `task` on the controller's thread, after what was posted before.
  void Post(std::function<void()> task);

 private:
  Controller();
  void Run();
  std::deque<std::function<void()>> Take();
  // As Post, but before whatever has not begun: for what changes nothing and was read from the store already.
  void PostAnswer(std::function<void()> task);
  void Answer();

  std::atomic<bool> draining_{false};
  // Set by Start(), before the thread starts.
  Store* store_ = nullptr;
  const Clock* clock_ = nullptr;
  // Used by the thread alone.
  std::unique_ptr<ControllerCore> core_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> answers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_CONTROLLER_H_
