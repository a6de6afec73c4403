// Waits for processes to end, on one thread, whoever their parent is.
#ifndef AMPD_SERVER_LAUNCH_EXIT_WATCHER_H_
#define AMPD_SERVER_LAUNCH_EXIT_WATCHER_H_

#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "server/launch/process.h"

namespace ampd {

// Thread safe.
class ExitWatcher {
 public:
  // Called once per process on the watcher's thread, after the process was reaped (if it was ours). Must not block.
  using Callback = std::function<void(const ProcessExit&)>;

  static absl::StatusOr<std::unique_ptr<ExitWatcher>> Create();
  // Stops watching; processes live on, callbacks not yet made are dropped.
  ~ExitWatcher();

  absl::Status Watch(ProcessHandle process, Callback on_exit);

  // Signals a watched process. NOT_FOUND once it has ended or when it is not watched.
  absl::Status Signal(const ProcessIdentity& identity, int signal);

 private:
  struct Watched {
    ProcessHandle process;
    Callback on_exit;
  };

  ExitWatcher(UniqueFd epoll, UniqueFd stop) : epoll_(std::move(epoll)), stop_(std::move(stop)) {}
  void Loop();
  void Collect(int pidfd);

  const UniqueFd epoll_;
  const UniqueFd stop_;
  Mutex mutex_;
  // By pidfd.
  std::map<int, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_EXIT_WATCHER_H_
