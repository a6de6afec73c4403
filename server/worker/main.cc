// ampd-worker: trains one attempt of one job, plans a model (--plan), or writes a trained one in another form
// (--export). Started by ampd; see
// server/launch/worker_contract.h for its command line, environment and exit codes.
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <new>
#include <string>

#include "engine/core/status.h"
#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"
#include "server/launch/process.h"
#include "server/launch/socket_address.h"
#include "server/launch/worker_contract.h"
#include "server/worker/confinement.h"
#include "server/worker/engine_version.h"
#include "server/worker/export_mode.h"
#include "server/worker/plan_mode.h"
#include "server/worker/worker.h"

namespace ampd {
namespace {

struct CommandLine {
  bool plan = false;
  std::string export_path;
  std::string socket_dir;
  std::string work_dir;
  std::string run_as;
  std::string limits;
  WorkerIdentity identity;
};

void OnOutOfMemory() {
  constexpr char kText[] = "ampd-worker: out of memory\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(kWorkerOutOfMemory);
}

int Refuse(const absl::Status& status) {
  std::cerr << "ampd-worker: " << status.message() << '\n';
  return kWorkerUsage;
}

// A worker handles files and models of strangers.
absl::Status GiveUp(const CommandLine& line) {
  AMPD_RETURN_IF_ERROR(LimitThisProcess(line.limits));
  if (!line.run_as.empty()) AMPD_RETURN_IF_ERROR(RunAs(line.run_as));
  if (line.plan) return EnterSandbox("");
  if (line.export_path.empty()) return absl::OkStatus();
  return EnterSandbox(std::filesystem::path(line.export_path).parent_path().string());
}

int BlockStopSignals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
}

void Describe(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", EngineVersion());
  app.add_flag("--plan", line.plan, "read a PlanRequest on stdin, write a PlanResponse on stdout");
  app.add_option("--export", line.export_path,
                 "read an ExportRequest on stdin, write the model to this new file and an ExportResponse on stdout");
  app.add_option("--socket-dir", line.socket_dir, "folder of the daemon's socket");
  app.add_option("--work-dir", line.work_dir, "folder for spooled events");
  app.add_option("--job", line.identity.job_id, "job id");
  app.add_option("--run-as", line.run_as, "uid:gid:group,group: the user to become");
  app.add_option("--limits", line.limits,
                 "cpu=SECONDS,as=BYTES,data=BYTES,nofile=N,nproc=N,fsize=BYTES: what it may use");
  app.add_option("--attempt", line.identity.attempt, "attempt, from 1");
}

// Of --plan and --export: from all of stdin to stdout.
int Answer(const std::function<absl::StatusOr<std::string>(absl::string_view)>& answer) {
  const std::string request((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const absl::StatusOr<std::string> response = answer(request);
  if (!response.ok()) return Refuse(response.status());
  std::cout << *response << std::flush;
  return std::cout.good() ? kWorkerReported : kWorkerUsage;
}

int Export(const std::string& path) {
  return Answer([&](absl::string_view request) { return ExportFromBytes(request, path); });
}

int Train(CommandLine line) {
  char* token = getenv(kWorkerTokenVariable);
  if (token == nullptr || line.socket_dir.empty() || line.work_dir.empty() || line.identity.job_id.empty() ||
      line.identity.attempt == 0) {
    std::cerr << "ampd-worker: needs --socket-dir, --work-dir, --job, --attempt and " << kWorkerTokenVariable
              << "; it is started by ampd\n";
    return kWorkerUsage;
  }
  line.identity.credential = token;
  line.identity.pid = getpid();
  // Else /proc/PID/environ would go on telling it.
  explicit_bzero(token, strlen(token));
  unsetenv(kWorkerTokenVariable);
  const auto address = SocketAddress::Open(line.socket_dir, kWorkerSocketName);
  if (!address.ok()) return Refuse(address.status());
  WorkerOptions options;
  options.daemon_uri = address->uri();
  options.work_dir = line.work_dir;
  options.identity = line.identity;
  options.engine_version = EngineVersion();
  options.stop_fd = BlockStopSignals();
  options.log_fd = STDERR_FILENO;
  Worker worker(std::move(options), train::Trainer::Create);
  const int code = worker.Run();
  fflush(nullptr);
  // The training thread may be in the middle of a step that nobody wants any more.
  _exit(code);
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) {
  if (const absl::Status status = ampd::Confine(); !status.ok()) return ampd::Refuse(status);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  std::set_new_handler(ampd::OnOutOfMemory);
  CLI::App app("Trains one job for ampd.", "ampd-worker");
  ampd::CommandLine line;
  ampd::Describe(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ampd::kWorkerUsage);
  }
  if (const absl::Status status = ampd::GiveUp(line); !status.ok()) return ampd::Refuse(status);
  if (line.plan) return ampd::Answer(ampd::PlanFromBytes);
  if (!line.export_path.empty()) return ampd::Export(line.export_path);
  return ampd::Train(std::move(line));
}
