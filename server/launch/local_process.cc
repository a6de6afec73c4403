#include "server/launch/local_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/core/status.h"
#include "server/files/file_sharing.h"
#include "server/files/files.h"
#include "server/launch/process.h"
#include "server/launch/sanitized.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

// A dataset of many files has some hundreds open.
constexpr uint64_t kMaxOpenFiles = 4096;
// Far more than the workers of a machine full of small jobs have, and less than a machine can bear.
constexpr uint64_t kMaxProcesses = 32768;

ProcessIdentity IdentityOf(const WorkerProcess& process) {
  return ProcessIdentity{static_cast<pid_t>(process.pid), process.start_time};
}

WorkerExit ExitOf(const ProcessExit& exit) {
  WorkerExit worker_exit;
  if (exit.exit_code) worker_exit.exit_status = *exit.exit_code;
  if (exit.signal) worker_exit.signal = *exit.signal;
  return worker_exit;
}

// A worker's logs and what is on its way to the daemon: whatever cuts the power ends the attempt.
absl::Status MakeWorkFolder(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return error ? FileError(absl::StrCat("cannot make ", directory), error.value()) : absl::OkStatus();
}

// Memory, processes and watches may be short as well.
absl::Status NotOfTheDisk(const absl::Status& error) {
  return absl::IsResourceExhausted(error) ? absl::UnavailableError(error.message()) : error;
}

absl::StatusOr<UniqueFd> OpenLog(const std::string& directory, uint32_t attempt) {
  const std::string path = absl::StrCat(directory, "/worker-", attempt, ".log");
  // A new file: in a worker's own folder there may be anything of that name.
  unlink(path.c_str());
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (log.valid()) return log;
  return FileError(absl::StrCat("cannot open ", path), errno);
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

// All of the machine's memory; 0, unlimited, under sanitizers, which write to shadows of it.
uint64_t MachineMemory() {
  if (kSanitized) return 0;
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalProcessLauncher>> LocalProcessLauncher::Create(std::string worker,
                                                                                   std::string state_dir,
                                                                                   const OtherUser& user) {
  std::unique_ptr<LocalProcessLauncher> launcher(
      new LocalProcessLauncher(std::move(worker), std::move(state_dir), user));
  AMPD_ASSIGN_OR_RETURN(launcher->watcher_, ExitWatcher::Create());
  if (user.account && !user.mirror_root.empty()) launcher->OpenMirror();
  return launcher;
}

void LocalProcessLauncher::OpenMirror() {
  MirrorFolders::Options options;
  options.give = user_.give_in_mirror ? user_.give_in_mirror : GiveIn(user_.mirror_root, *user_.account);
  options.log = user_.log;
  mirror_ = std::make_unique<MirrorFolders>(std::move(options));
  // The daemon that launched them may have ended while the mirror failed.
  for (const FoundWorker& found : FindWorkers()) mirror_->Ask(found.job_id, found.attempt);
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

absl::Status LocalProcessLauncher::GiveFolders(const std::string& job_id) const {
  const std::string work = absl::StrCat(state_dir_, "/jobs/", job_id);
  AMPD_RETURN_IF_ERROR(MakeWorkFolder(work));
  if (!user_.account) return absl::OkStatus();
  const FileSharing worker(user_.account->uid, user_.account->gid);
  AMPD_RETURN_IF_ERROR(worker.Give(work));
  for (const std::string& root : user_.job_roots) {
    if (root.empty()) continue;
    const std::string folder = absl::StrCat(root, "/", job_id);
    // On disk as well, with its name: the worker, which syncs what it writes there, may not open the folder above it.
    AMPD_RETURN_IF_ERROR(MakeFolder(folder));
    AMPD_RETURN_IF_ERROR(worker.Give(folder));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerProcess> LocalProcessLauncher::Launch(const LaunchRequest& request) {
  // Begun before the worker is: with a mirror that answers the folder is there long before the first checkpoint.
  if (mirror_) mirror_->Ask(request.job_id, request.attempt);
  absl::StatusOr<WorkerProcess> started = Start(request);
  if (mirror_ && !started.ok()) mirror_->Forget(request.job_id, request.attempt);
  return started;
}

absl::StatusOr<WorkerProcess> LocalProcessLauncher::Start(const LaunchRequest& request) {
  const std::string directory = absl::StrCat(state_dir_, "/jobs/", request.job_id);
  AMPD_RETURN_IF_ERROR(GiveFolders(request.job_id));
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
  options.limits.open_files = kMaxOpenFiles;
  options.limits.processes = kMaxProcesses;
  // Who asks for more gets an error, which ends the job alone, where the kernel might end another process. A context of
  // CUDA has mappings of its own making, which are not counted upon.
  if (request.gpus.empty()) options.limits.data_bytes = MachineMemory();
  options.stdout_fd = log.get();
  options.stderr_fd = log.get();
  RunAsAccount(user_.account, &options);
  absl::StatusOr<ProcessHandle> spawned = Spawn(options);
  if (!spawned.ok()) return NotOfTheDisk(spawned.status());
  ProcessHandle process = *std::move(spawned);
  const WorkerProcess started{process.identity().pid, process.identity().start_time};
  absl::Status watched = watcher_->Watch(
      std::move(process), [this, started, job_id = request.job_id, attempt = request.attempt](const ProcessExit& exit) {
        if (mirror_) mirror_->Forget(job_id, attempt);
        OnExit(started, ExitOf(exit));
      });
  if (!watched.ok()) {
    // Nobody has reaped it, so the pid is still its own.
    kill(static_cast<pid_t>(started.pid), SIGKILL);
    waitpid(static_cast<pid_t>(started.pid), nullptr, 0);
    return NotOfTheDisk(Annotate(watched, "cannot watch the worker"));
  }
  return started;
}

void LocalProcessLauncher::Kill(const WorkerProcess& process) {
  // Its own children are held open, so that this needs no descriptor, of which there may be none left.
  if (watcher_->Signal(IdentityOf(process), SIGKILL).ok()) return;
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(IdentityOf(process));
  if (handle.ok()) handle->Signal(SIGKILL).IgnoreError();
}

bool LocalProcessLauncher::IsAlive(const WorkerProcess& process) {
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(IdentityOf(process));
  if (!handle.ok()) return !absl::IsNotFound(handle.status());
  return handle->running();
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
