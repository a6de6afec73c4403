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
#include "absl/strings/string_view.h"
#include "server/files/unique_fd.h"
#include "server/launch/worker_account.h"

namespace ampd {

// A process for as long as the machine runs: pids are reused, pairs of pid and start time are not.
struct ProcessIdentity {
  pid_t pid = 0;
  // Clock ticks since boot: field 22 of /proc/<pid>/stat.
  uint64_t start_time = 0;

  bool operator==(const ProcessIdentity&) const = default;
};

// Reads the identity of the process that has `pid` now. NOT_FOUND when there is none, and only then; UNAVAILABLE where
// that cannot be told, for want of descriptors or memory.
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
  // NOT_FOUND when the process of that identity has ended, even where its pid lives on in another, and only then;
  // UNAVAILABLE as IdentifyProcess.
  static absl::StatusOr<ProcessHandle> Open(const ProcessIdentity& identity);

  const ProcessIdentity& identity() const { return identity_; }
  // Readable once the process ended.
  int pidfd() const { return pidfd_.get(); }
  // False for a zombie. True where the kernel does not say.
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

// What a child may take of the machine. Only ever less than this process may.
struct ProcessLimits {
  // 0 is unlimited, for these five.
  uint64_t cpu_seconds = 0;
  // Of addresses, reserved ones too. A CUDA context reserves more than any machine has: not for processes that make
  // one.
  uint64_t address_space_bytes = 0;
  // Of memory of its own that it can write; what is only reserved does not count.
  uint64_t data_bytes = 0;
  uint64_t open_files = 0;
  // Of processes and threads, all of the child's user together; root's are not counted.
  uint64_t processes = 0;
  // Of any file that it writes; 0: it can write none. Unset: unlimited.
  std::optional<uint64_t> file_bytes;
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
  ProcessLimits limits;
  // The child does it, from LimitsText(): once it is another user it may be beyond this process' reach.
  bool limits_itself = false;
};

// Starts a child in its own session with an empty signal mask, default signal actions and no core dumps. Safe with
// threads. The child must be reaped through the handle. Its limits hold once this returns: what it is to be told is
// told after. NOT_FOUND or PERMISSION_DENIED when the program cannot be run; no child is left where a limit cannot be
// set.
absl::StatusOr<ProcessHandle> Spawn(const SpawnOptions& options);

// For ampd-worker's --limits: "cpu=20,fsize=0".
std::string LimitsText(const ProcessLimits& limits);
// Limits this process to what such a text says, and never raises a limit. INVALID_ARGUMENT where it is none.
absl::Status LimitThisProcess(absl::string_view text);

// Has the worker that `options`, otherwise complete, start become `account`, with its home; without effect where there
// is none.
void RunAsAccount(const std::optional<WorkerAccount>& account, SpawnOptions* options);

// What a worker may inherit of this process's environment: PATH, HOME, TMPDIR, TZ, LANG, LC_*, LD_LIBRARY_PATH, and
// what begins with OMP_, KMP_, CUDA_, NVIDIA_, NCCL_ or DNNL_ and does not look like a secret (TOKEN, SECRET, PASSWORD,
// KEY or CREDENTIAL in its name). Not CUDA_VISIBLE_DEVICES, which says what a worker may see.
std::vector<std::string> ScrubbedEnvironment();

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_PROCESS_H_
