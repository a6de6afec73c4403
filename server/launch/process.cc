#include "server/launch/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"
#include "server/launch/sanitized.h"

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

// Never above what the child has from this process.
absl::Status Limit(pid_t pid, __rlimit_resource resource, uint64_t value) {
  rlimit now{};
  if (prlimit(pid, resource, nullptr, &now) != 0) return ErrnoStatus(errno, "cannot read a limit of the process");
  const rlim_t least = std::min<rlim_t>(value, now.rlim_max);
  const rlimit limit{least, least};
  if (prlimit(pid, resource, &limit, nullptr) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot limit the process (resource ", resource, " to ", value, ")"));
}

struct NamedLimit {
  const char* name;
  __rlimit_resource resource;
  // nullopt: unlimited.
  std::optional<uint64_t> value;
};

std::optional<uint64_t> UnlessZero(uint64_t value) { return value > 0 ? std::optional(value) : std::nullopt; }

std::vector<NamedLimit> NamedLimits(const ProcessLimits& limits) {
  return {
      {"cpu", RLIMIT_CPU, UnlessZero(limits.cpu_seconds)},   {"as", RLIMIT_AS, UnlessZero(limits.address_space_bytes)},
      {"data", RLIMIT_DATA, UnlessZero(limits.data_bytes)},  {"nofile", RLIMIT_NOFILE, UnlessZero(limits.open_files)},
      {"nproc", RLIMIT_NPROC, UnlessZero(limits.processes)}, {"fsize", RLIMIT_FSIZE, limits.file_bytes}};
}

absl::Status SetLimits(pid_t pid, const ProcessLimits& limits) {
  AMPD_RETURN_IF_ERROR(Limit(pid, RLIMIT_CORE, 0));
  for (const NamedLimit& limit : NamedLimits(limits)) {
    if (limit.value) AMPD_RETURN_IF_ERROR(Limit(pid, limit.resource, *limit.value));
  }
  return absl::OkStatus();
}

bool Begins(absl::string_view text, const std::vector<absl::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](absl::string_view prefix) { return text.substr(0, prefix.size()) == prefix; });
}

// By its name; values are nobody's to judge.
bool LooksLikeSecret(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(name);
  for (const char* word : {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"}) {
    if (upper.find(word) != std::string::npos) return true;
  }
  return false;
}

bool MayInherit(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {"PATH", "HOME", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH"};
  if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
  if (kSanitized && absl::EndsWith(name, "SAN_OPTIONS")) return true;
  if (name == "CUDA_VISIBLE_DEVICES" || LooksLikeSecret(name)) return false;
  return Begins(name, {"LC_", "OMP_", "KMP_", "CUDA_", "NVIDIA_", "NCCL_", "DNNL_"});
}

// One line.
absl::StatusOr<std::string> ReadStat(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[4096];
  ssize_t size = -1;
  do {
    size = file.valid() ? read(file.get(), bytes, sizeof(bytes)) : -1;
  } while (size < 0 && errno == EINTR && file.valid());
  if (size > 0) return std::string(bytes, static_cast<size_t>(size));
  // ESRCH is said of one that ended between opening and reading. Other errors do not say that there is none.
  if (size == 0 || errno == ENOENT || errno == ESRCH)
    return absl::NotFoundError(absl::StrCat("no process has pid ", pid));
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
}

absl::StatusOr<ProcessHandle> OpenPid(pid_t pid) {
  AMPD_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentifyProcess(pid));
  return ProcessHandle::Open(identity);
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadStat(pid));
  // The program's name, field 2, may hold spaces and parentheses; it ends at the last ')'.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has an unknown form"));
  }
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
    // EINVAL, or ENOENT by newer kernels: a thread has the number by now.
    if (errno == ESRCH || errno == EINVAL || errno == ENOENT) {
      return absl::NotFoundError(absl::StrCat("process ", identity.pid, " has ended"));
    }
    return absl::UnavailableError(absl::StrCat("pidfd_open of process ", identity.pid, ": ", strerror(errno)));
  }
  // Only once the descriptor pins the process does its start time say which process it is.
  AMPD_ASSIGN_OR_RETURN(const ProcessIdentity now, IdentifyProcess(identity.pid));
  if (now != identity) return absl::NotFoundError(absl::StrCat("process ", identity.pid, " is another one by now"));
  return ProcessHandle(identity, std::move(pidfd));
}

bool ProcessHandle::running() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) != 1;
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
  // A child that was not reaped keeps its pid, so these find it even when it has ended already.
  const absl::Status limited = options.limits_itself ? absl::OkStatus() : SetLimits(pid, options.limits);
  absl::StatusOr<ProcessHandle> handle = limited.ok() ? OpenPid(pid) : limited;
  if (!handle.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return handle;
}

std::string LimitsText(const ProcessLimits& limits) {
  std::vector<std::string> texts;
  for (const NamedLimit& limit : NamedLimits(limits)) {
    if (limit.value) texts.push_back(absl::StrCat(limit.name, "=", *limit.value));
  }
  return absl::StrJoin(texts, ",");
}

absl::Status LimitThisProcess(absl::string_view text) {
  for (const absl::string_view one : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(one, '=');
    const std::vector<NamedLimit> known = NamedLimits({});
    const auto limit =
        std::find_if(known.begin(), known.end(), [&](const NamedLimit& each) { return parts[0] == each.name; });
    uint64_t value = 0;
    if (parts.size() != 2 || limit == known.end() || !absl::SimpleAtoi(parts[1], &value)) {
      return absl::InvalidArgumentError(absl::StrCat("--limits: \"", one, "\" is no limit"));
    }
    AMPD_RETURN_IF_ERROR(Limit(0, limit->resource, value));
  }
  return absl::OkStatus();
}

void RunAsAccount(const std::optional<WorkerAccount>& account, SpawnOptions* options) {
  if (!account) return;
  options->argv.insert(options->argv.end(), {"--run-as", RunAsText(*account), "--limits", LimitsText(options->limits)});
  options->limits_itself = true;
  std::vector<std::string>& environment = options->environment;
  const auto is_home = [](const std::string& entry) { return absl::StartsWith(entry, "HOME="); };
  environment.erase(std::remove_if(environment.begin(), environment.end(), is_home), environment.end());
  if (!account->home.empty()) environment.push_back(absl::StrCat("HOME=", account->home));
}

std::vector<std::string> ScrubbedEnvironment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const absl::string_view name = text.substr(0, text.find('='));
    if (MayInherit(name)) kept.emplace_back(text.data(), text.size());
  }
  return kept;
}

}  // namespace ampd
