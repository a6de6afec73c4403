// Runs workers as processes of this machine.
#ifndef AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_
#define AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/jobs/launcher.h"
#include "server/launch/exit_watcher.h"
#include "server/launch/mirror_folders.h"
#include "server/launch/worker_account.h"

namespace ampd {

// Workers that are not the daemon's user.
struct OtherUser {
  std::optional<WorkerAccount> account;
  // What workers write in besides STATE_DIR/jobs: each has a folder there, called as its job, whose name is on disk
  // before the worker starts. Empty ones are none.
  std::vector<std::string> job_roots;
  // As one of these, on a disk that may fail or hang; empty: none. No launch waits for it: a worker may be there before
  // its folder is.
  std::string mirror_root;
  // Told of the mirror's failures, as MirrorFolders::Options::log; null: nobody is.
  std::function<void(const std::string&)> log;
  // In place of GiveIn(mirror_root), for tests.
  MirrorFolders::Give give_in_mirror;
};

// Each worker has its own session and a scrubbed environment, dumps no core, opens at most 4,096 files, has no more
// memory of its own than the machine has where it uses no GPU, and writes stdout and stderr to
// STATE_DIR/jobs/<job>/worker-<attempt>.log, whose size the worker keeps bounded. All processes and threads of its user
// are 32,768 at most, if that is not root. Workers outlive the launcher. Thread safe.
class LocalProcessLauncher : public Launcher {
 public:
  using ExitHandler = std::function<void(const WorkerProcess&, const WorkerExit&)>;

  // `worker` is the path of ampd-worker, `state_dir` the daemon's; both absolute.
  static absl::StatusOr<std::unique_ptr<LocalProcessLauncher>> Create(std::string worker, std::string state_dir,
                                                                      const OtherUser& user = {});

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
  LocalProcessLauncher(std::string worker, std::string state_dir, OtherUser user)
      : worker_(std::move(worker)), state_dir_(std::move(state_dir)), user_(std::move(user)) {}
  void OpenMirror();
  absl::StatusOr<WorkerProcess> Start(const LaunchRequest& request);
  absl::Status GiveFolders(const std::string& job_id) const;
  void OnExit(const WorkerProcess& process, const WorkerExit& exit);

  const std::string worker_;
  const std::string state_dir_;
  const OtherUser user_;
  Mutex mutex_;
  ExitHandler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<WorkerProcess, WorkerExit>> unheard_ ABSL_GUARDED_BY(mutex_);
  // Both are set by Create(). Null: workers need nobody to make their folders in the mirror, or there is none.
  std::unique_ptr<MirrorFolders> mirror_;
  // Uses what is above.
  std::unique_ptr<ExitWatcher> watcher_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_LOCAL_PROCESS_H_
