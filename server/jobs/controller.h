// The one thread that owns jobs and scheduling. RPC handlers, the worker link and the launcher post to it; what it
// answers is durable.
#ifndef AMPD_SERVER_JOBS_CONTROLLER_H_
#define AMPD_SERVER_JOBS_CONTROLLER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
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
#include "proto/spec/device_models.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/jobs/launcher.h"
#include "server/jobs/worker_connection.h"
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
  // Job J's artifacts lie in artifact_root/J, likewise.
  std::string artifact_root;
  // As they go to the workers.
  std::vector<std::string> data_roots;
  absl::Duration reattach_timeout = absl::Minutes(10);
  absl::Duration heartbeat_timeout = absl::Seconds(60);
  // Time a launched worker has to attach.
  absl::Duration start_timeout = absl::Seconds(60);
  // Time a worker has to checkpoint and stop when its job is cancelled or over a limit, and to exit after `goodbye`.
  absl::Duration stop_grace = absl::Seconds(60);
  // Told, in words, what an operator should know: failed writes, workers killed. May be empty. Controller's thread.
  std::function<void(const std::string&)> log;
};

struct CreateJobParams {
  // Resolved.
  v1::JobSpec spec;
  v1::ModelPlan plan;
  // Empty: none.
  std::string request_id;
  // The spec as the client sent it, serialised deterministically; compared (as a hash) when a request id comes again.
  std::string body;
};

// Thread-safe. Callbacks (`done`) run on the controller's thread or the store's; they must not block, nor wait for the
// controller. A callback that is still pending when the controller is destroyed gets CANCELLED.
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
  // body, RESOURCE_EXHAUSTED when the state directory is full.
  void CreateJob(CreateJobParams params, Done<v1::Job> done);
  // The job that `request_id` already made, so that a repeat need not be planned; empty when there is none.
  // ALREADY_EXISTS when it was used with another body.
  void FindRequest(std::string request_id, std::string body, Done<std::optional<v1::Job>> done);
  // `id`: whole, or a unique prefix of at least 4 characters. Errors as Database::FindJob.
  void GetJob(std::string id, Done<v1::Job> done);
  // page_size 0 is 100. INVALID_ARGUMENT outside 0..1000 and for a bad token.
  void ListJobs(v1::ListJobsRequest request, Done<v1::ListJobsResponse> done);
  // Answers once the request to stop, or the end of a job without a worker, is durable.
  void CancelJob(std::string id, Done<v1::Job> done);
  void ListDevices(Done<std::vector<v1::Device>> done);
  // New figures and conditions of devices, by id; unknown ids are passed over. Processes that are no worker of this
  // daemon become FOREIGN_PROCESS; a device with a condition that blocks jobs gets none, while one that runs goes on.
  void UpdateDevices(std::vector<v1::Device> devices);

  // Stops admitting and starting jobs, has every worker checkpoint and stop, requeues their jobs. `done` gets OK when
  // no worker is left, or DEADLINE_EXCEEDED naming the jobs whose workers were killed after `timeout` (they are
  // requeued too). A second call joins the first.
  void Drain(absl::Duration timeout, std::function<void(absl::Status)> done);
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

  std::atomic<bool> draining_{false};
  Store* store_ = nullptr;
  const Clock* clock_ = nullptr;
  std::unique_ptr<ControllerCore> core_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_CONTROLLER_H_
