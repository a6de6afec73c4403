// What the controller needs of whoever starts and ends worker processes.
#ifndef AMPD_SERVER_JOBS_LAUNCHER_H_
#define AMPD_SERVER_JOBS_LAUNCHER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/records.h"

namespace ampd {

struct LaunchRequest {
  std::string job_id;
  uint32_t attempt = 0;
  // Reaches the worker through its environment; its first hello presents it as the credential.
  std::string one_time_token;
  // UUIDs of the GPUs that the worker is to see, and no others.
  std::vector<std::string> gpus;
};

// How a worker process ended.
struct WorkerExit {
  // Exit status of a process that exited by itself; -1 when a signal ended it or nobody saw.
  int exit_status = -1;
  // The signal that ended it; 0 when none did or nobody saw.
  int signal = 0;
};

// A worker that is running.
struct FoundWorker {
  WorkerProcess process;
  std::string job_id;
  uint32_t attempt = 0;
};

// Every function is called on the controller's thread and must not block for longer than starting a process takes.
class Launcher {
 public:
  virtual ~Launcher() = default;
  // Starts the worker of one attempt. The launcher reports the end of each process it started to
  // Controller::WorkerExited, from any thread, also when it ends at once. RESOURCE_EXHAUSTED: there is no room on the
  // disk for what a worker needs; no other shortage has that code.
  virtual absl::StatusOr<WorkerProcess> Launch(const LaunchRequest& request) = 0;
  // Ends the process by SIGKILL. Harmless when it is gone; never hits another process that got its pid. It may fail,
  // for want of descriptors or memory: whoever must know asks IsAlive and kills again.
  virtual void Kill(const WorkerProcess& process) = 0;
  // Whether that very process is running; a zombie is not. One of which that cannot be told counts as running: to take
  // it for gone would let a second one write the same checkpoints. Also for workers of an earlier daemon.
  virtual bool IsAlive(const WorkerProcess& process) = 0;
  // The process that has `pid` now. NOT_FOUND when there is none, and only then.
  virtual absl::StatusOr<WorkerProcess> Identify(int64_t pid) = 0;
  // Every worker of this state directory that is running, whichever daemon started it.
  virtual std::vector<FoundWorker> FindWorkers() { return {}; }
};

}  // namespace ampd

#endif  // AMPD_SERVER_JOBS_LAUNCHER_H_
