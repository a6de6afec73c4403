#include "server/launch/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

absl::Status ErrnoStatus(int error, absl::string_view what) {
  return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(what, ": ", strerror(error)));
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// glibc 2.36 has no wrapper that C++ code may rely on for P_PIDFD.
constexpr idtype_t kPidfdIdType = static_cast<idtype_t>(3);

class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

class SpawnFileActions {
 public:
  explicit SpawnFileActions(const SpawnOptions& options) {
    posix_spawn_file_actions_init(&actions_);
    Map(options.stdin_fd, 0, O_RDONLY);
    Map(options.stdout_fd, 1, O_WRONLY);
    Map(options.stderr_fd, 2, O_WRONLY);
    posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
  }
  ~SpawnFileActions() { posix_spawn_file_actions_destroy(&actions_); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  void Map(int fd, int target, int null_mode) {
    if (fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions_, fd, target);
    } else {
      posix_spawn_file_actions_addopen(&actions_, target, "/dev/null", null_mode, 0);
    }
  }

  posix_spawn_file_actions_t actions_;
};

void Limit(pid_t pid, __rlimit_resource resource, uint64_t value) {
  const rlimit limit{value, value};
  prlimit(pid, resource, &limit, nullptr);
}

absl::StatusOr<ProcessHandle> OpenPid(pid_t pid) {
  AMPD_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentifyProcess(pid));
  return ProcessHandle::Open(identity);
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  // By getline, which takes the end of a process between opening and reading for no line; an iterator would throw.
  std::string text;
  std::getline(file, text, '\0');
  // The program's name, field 2, may hold spaces and parentheses; it ends at the last ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::NotFoundError(absl::StrCat("no process has pid ", pid));
  const std::vector<std::string> fields =
      absl::StrSplit(absl::string_view(text).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStartTime = 22 - 3;
  ProcessIdentity identity{pid, 0};
  if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &identity.start_time)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has an unknown form"));
  }
  return identity;
}

std::string DescribeExit(const ProcessExit& exit) {
  if (exit.exit_code) return absl::StrCat("exited with code ", *exit.exit_code);
  if (exit.signal) return absl::StrCat("was ended by signal ", *exit.signal, " (", strsignal(*exit.signal), ")");
  return "ended";
}

absl::StatusOr<ProcessHandle> ProcessHandle::Open(const ProcessIdentity& identity) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, identity.pid, 0)));
  if (!pidfd.valid()) {
    if (errno == ESRCH || errno == EINVAL) {
      return absl::NotFoundError(absl::StrCat("process ", identity.pid, " has ended"));
    }
    return ErrnoStatus(errno, absl::StrCat("pidfd_open of process ", identity.pid));
  }
  // Only once the descriptor pins the process does its start time say which process it is.
  AMPD_ASSIGN_OR_RETURN(const ProcessIdentity now, IdentifyProcess(identity.pid));
  if (now != identity) return absl::NotFoundError(absl::StrCat("process ", identity.pid, " is another one by now"));
  return ProcessHandle(identity, std::move(pidfd));
}

bool ProcessHandle::running() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

absl::Status ProcessHandle::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return absl::NotFoundError(absl::StrCat("process ", identity_.pid, " has ended"));
  return ErrnoStatus(errno, absl::StrCat("signal ", signal, " to process ", identity_.pid));
}

ProcessExit ProcessHandle::Reap() const {
  siginfo_t info{};
  int rc;
  do {
    rc = waitid(kPidfdIdType, static_cast<id_t>(pidfd_.get()), &info, WEXITED);
  } while (rc != 0 && errno == EINTR);
  ProcessExit exit;
  if (rc != 0) return exit;
  exit.status_known = true;
  if (info.si_code == CLD_EXITED) {
    exit.exit_code = info.si_status;
  } else {
    exit.signal = info.si_status;
  }
  return exit;
}

absl::StatusOr<ProcessHandle> Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no program to start");
  const SpawnAttributes attributes;
  const SpawnFileActions actions(options);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, options.argv[0].c_str(), actions.get(), attributes.get(),
                                Pointers(options.argv).data(), Pointers(options.environment).data());
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", options.argv[0]));
  Limit(pid, RLIMIT_CORE, 0);
  if (options.cpu_seconds > 0) Limit(pid, RLIMIT_CPU, options.cpu_seconds);
  if (options.address_space_bytes > 0) Limit(pid, RLIMIT_AS, options.address_space_bytes);
  // A child that was not reaped keeps its pid, so this finds it even when it has ended already.
  absl::StatusOr<ProcessHandle> handle = OpenPid(pid);
  if (!handle.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return handle;
}

std::vector<std::string> ScrubbedEnvironment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const absl::string_view name = text.substr(0, text.find('='));
    if (name == "PATH" || name == "HOME" || name == "TZ" || name == "LANG" || name == "LC_ALL" ||
        name.substr(0, 4) == "OMP_") {
      kept.emplace_back(text.data(), text.size());
    }
  }
  return kept;
}

}  // namespace ampd
