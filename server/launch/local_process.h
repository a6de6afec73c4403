// Runs workers as processes of this machine.
#ifndef AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_
#define AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/jobs/launcher.h"
#include "server/launch/exit_watcher.h"

namespace ampd {

// Each worker has its own session and a scrubbed environment, dumps no core, and writes stdout and stderr to
// STATE_DIR/jobs/<job>/worker-<attempt>.log, whose size the worker keeps bounded. Workers outlive the launcher.
// Thread safe.
class LocalProcessLauncher : public Launcher {
 public:
  using ExitHandler = std::function<void(const WorkerProcess&, const WorkerExit&)>;

  // `worker` is the path of ampd-worker, `state_dir` the daemon's; both absolute.
  static absl::StatusOr<std::unique_ptr<LocalProcessLauncher>> Create(std::string worker, std::string state_dir);

  // Who hears of ends; those that no handler heard yet are told at once. Null: nobody, and once it returns the handler
  // before is no longer called.
  void SetExitHandler(ExitHandler handler);

  absl::StatusOr<WorkerProcess> Launch(const LaunchRequest& request) override;
  void Kill(const WorkerProcess& process) override;
  bool IsAlive(const WorkerProcess& process) override;
  absl::StatusOr<WorkerProcess> Identify(int64_t pid) override;
  // By their command lines, as Launch() makes them.
  std::vector<FoundWorker> FindWorkers() override;

 private:
  LocalProcessLauncher(std::string worker, std::string state_dir)
      : worker_(std::move(worker)), state_dir_(std::move(state_dir)) {}
  void OnExit(const WorkerProcess& process, const WorkerExit& exit);

  const std::string worker_;
  const std::string state_dir_;
  Mutex mutex_;
  ExitHandler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<WorkerProcess, WorkerExit>> unheard_ ABSL_GUARDED_BY(mutex_);
  // Set by Create().
  std::unique_ptr<ExitWatcher> watcher_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_
