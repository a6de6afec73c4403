// Child processes of the daemon: spawned without fork's hazards, addressed so that a recycled pid is never hit.
#ifndef AMPD_SERVER_LAUNCH_PROCESS_H_
#define AMPD_SERVER_LAUNCH_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/unique_fd.h"

namespace ampd {

// A process for as long as the machine runs: pids are reused, pairs of pid and start time are not.
struct ProcessIdentity {
  pid_t pid = 0;
  // Clock ticks since boot: field 22 of /proc/<pid>/stat.
  uint64_t start_time = 0;

  bool operator==(const ProcessIdentity&) const = default;
};

// Reads the identity of the process that has `pid` now. NOT_FOUND when there is none.
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);

// How a process ended. `status_known` is false for one that was not our child: only that it ended is known then.
struct ProcessExit {
  bool status_known = false;
  // Set when it exited by itself.
  std::optional<int> exit_code;
  // Set when a signal ended it.
  std::optional<int> signal;
};

// "exited with code 3", "was ended by signal 9 (Killed)", "ended".
std::string DescribeExit(const ProcessExit& exit);

// A handle on one living process, child or not. Moves; not thread safe.
class ProcessHandle {
 public:
  // NOT_FOUND when the process of that identity has ended, even where its pid lives on in another.
  static absl::StatusOr<ProcessHandle> Open(const ProcessIdentity& identity);

  const ProcessIdentity& identity() const { return identity_; }
  // Readable once the process ended.
  int pidfd() const { return pidfd_.get(); }
  // False for a zombie.
  bool running() const;
  // NOT_FOUND when it has ended and was reaped.
  absl::Status Signal(int signal) const;
  // Collects a process that ended; blocks while it lives. Call once.
  ProcessExit Reap() const;

 private:
  ProcessHandle(const ProcessIdentity& identity, UniqueFd pidfd) : identity_(identity), pidfd_(std::move(pidfd)) {}

  ProcessIdentity identity_;
  UniqueFd pidfd_;
};

struct SpawnOptions {
  // argv[0] is the program's path.
  std::vector<std::string> argv;
  // The whole environment, "NAME=value".
  std::vector<std::string> environment;
  // Descriptors of this process that become 0, 1 and 2 of the child; -1 is /dev/null. Every other one is closed there.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  // Resource limits of the child, set right after its start. 0 is unlimited.
  uint64_t cpu_seconds = 0;
  uint64_t address_space_bytes = 0;
};

// Starts a child in its own session with an empty signal mask, default signal actions and no core dumps. Safe with
// threads. The child must be reaped through the handle. NOT_FOUND or PERMISSION_DENIED when the program cannot be run.
absl::StatusOr<ProcessHandle> Spawn(const SpawnOptions& options);

// What a worker may inherit of this process's environment: PATH, HOME, TZ, LANG, LC_ALL and OMP_*.
std::vector<std::string> ScrubbedEnvironment();

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_PROCESS_H_
