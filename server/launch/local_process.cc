#include "server/launch/local_process.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "server/launch/process.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

ProcessIdentity IdentityOf(const WorkerProcess& process) {
  return ProcessIdentity{static_cast<pid_t>(process.pid), process.start_time};
}

WorkerExit ExitOf(const ProcessExit& exit) {
  WorkerExit worker_exit;
  if (exit.exit_code) worker_exit.exit_status = *exit.exit_code;
  if (exit.signal) worker_exit.signal = *exit.signal;
  return worker_exit;
}

absl::StatusOr<UniqueFd> OpenLog(const std::string& directory, uint32_t attempt) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::Status(absl::ErrnoToStatusCode(error.value()),
                        absl::StrCat("cannot make ", directory, ": ", error.message()));
  }
  const std::string path = absl::StrCat(directory, "/worker-", attempt, ".log");
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (log.valid()) return log;
  return absl::Status(absl::ErrnoToStatusCode(errno), absl::StrCat("cannot open ", path, ": ", strerror(errno)));
}

std::vector<std::string> CommandLine(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  std::vector<std::string> arguments;
  // Each argument is followed by a zero. By getline, which takes the end of a process between opening and reading for
  // no line; an iterator would throw.
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

// What follows the flag; empty where it is missing.
std::string ValueOf(absl::string_view flag, const std::vector<std::string>& arguments) {
  const auto found = std::find(arguments.begin(), arguments.end(), flag);
  return found == arguments.end() || found + 1 == arguments.end() ? "" : *(found + 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalProcessLauncher>> LocalProcessLauncher::Create(std::string worker,
                                                                                   std::string state_dir) {
  std::unique_ptr<LocalProcessLauncher> launcher(new LocalProcessLauncher(std::move(worker), std::move(state_dir)));
  AMPD_ASSIGN_OR_RETURN(launcher->watcher_, ExitWatcher::Create());
  return launcher;
}

void LocalProcessLauncher::SetExitHandler(ExitHandler handler) {
  const MutexLock lock(&mutex_);
  handler_ = std::move(handler);
  if (!handler_) return;
  for (const auto& [process, exit] : unheard_) handler_(process, exit);
  unheard_.clear();
}

void LocalProcessLauncher::OnExit(const WorkerProcess& process, const WorkerExit& exit) {
  const MutexLock lock(&mutex_);
  if (handler_) {
    handler_(process, exit);
  } else {
    unheard_.emplace_back(process, exit);
  }
}

absl::StatusOr<WorkerProcess> LocalProcessLauncher::Launch(const LaunchRequest& request) {
  const std::string directory = absl::StrCat(state_dir_, "/jobs/", request.job_id);
  AMPD_ASSIGN_OR_RETURN(const UniqueFd log, OpenLog(directory, request.attempt));
  SpawnOptions options;
  options.argv = {worker_,        "--socket-dir", state_dir_,
                  "--work-dir",   directory,      "--job",
                  request.job_id, "--attempt",    absl::StrCat(request.attempt)};
  options.environment = ScrubbedEnvironment();
  options.environment.push_back(absl::StrCat(kWorkerTokenVariable, "=", request.one_time_token));
  // Also where it is empty: a job of a CPU device must not take memory of a GPU.
  options.environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", absl::StrJoin(request.gpus, ",")));
  // A worker's threads share the processors with other processes; spinning at a barrier, they would keep one another
  // from reaching it. A setting inherited above stands first and so wins.
  options.environment.push_back("OMP_WAIT_POLICY=passive");
  options.stdout_fd = log.get();
  options.stderr_fd = log.get();
  AMPD_ASSIGN_OR_RETURN(ProcessHandle process, Spawn(options));
  const WorkerProcess started{process.identity().pid, process.identity().start_time};
  absl::Status watched =
      watcher_->Watch(std::move(process), [this, started](const ProcessExit& exit) { OnExit(started, ExitOf(exit)); });
  if (!watched.ok()) {
    Kill(started);
    return Annotate(watched, "cannot watch the worker");
  }
  return started;
}

void LocalProcessLauncher::Kill(const WorkerProcess& process) {
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(IdentityOf(process));
  if (handle.ok()) handle->Signal(SIGKILL).IgnoreError();
}

bool LocalProcessLauncher::IsAlive(const WorkerProcess& process) {
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(IdentityOf(process));
  return handle.ok() && handle->running();
}

std::vector<FoundWorker> LocalProcessLauncher::FindWorkers() {
  std::vector<FoundWorker> workers;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t pid = 0;
    if (!absl::SimpleAtoi(name, &pid)) continue;
    // Before the command line is read: another process may get the pid meanwhile.
    const absl::StatusOr<WorkerProcess> process = Identify(pid);
    if (!process.ok()) continue;
    const std::vector<std::string> arguments = CommandLine(name);
    FoundWorker worker{*process, ValueOf("--job", arguments)};
    const bool ours = ValueOf("--socket-dir", arguments) == state_dir_ && !worker.job_id.empty() &&
                      absl::SimpleAtoi(ValueOf("--attempt", arguments), &worker.attempt);
    if (ours && IsAlive(worker.process)) workers.push_back(std::move(worker));
  }
  return workers;
}

absl::StatusOr<WorkerProcess> LocalProcessLauncher::Identify(int64_t pid) {
  AMPD_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentifyProcess(static_cast<pid_t>(pid)));
  return WorkerProcess{identity.pid, identity.start_time};
}

}  // namespace ampd
