// ampd-worker: trains one attempt of one job, plans a model (--plan), or writes a trained one in another form
// (--export). Started by ampd; see
// server/launch/worker_contract.h for its command line, environment and exit codes.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <new>
#include <string>

#include "engine/train/trainer.h"
#include "proto/spec/resolve.h"
#include "server/launch/socket_address.h"
#include "server/launch/worker_contract.h"
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
  WorkerIdentity identity;
};

void OnOutOfMemory() {
  constexpr char kText[] = "ampd-worker: out of memory\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(kWorkerOutOfMemory);
}

// A worker handles files and models of strangers: it gains no privileges, dumps no core, and is what the kernel ends
// first when memory runs out.
void Confine() {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  umask(077);
  signal(SIGPIPE, SIG_IGN);
  std::ofstream("/proc/self/oom_score_adj") << 500;
  std::set_new_handler(OnOutOfMemory);
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
  app.set_version_flag("--version", AMPD_VERSION);
  app.add_flag("--plan", line.plan, "read a PlanRequest on stdin, write a PlanResponse on stdout");
  app.add_option("--export", line.export_path,
                 "read an ExportRequest on stdin, write the model to this new file and an ExportResponse on stdout");
  app.add_option("--socket-dir", line.socket_dir, "folder of the daemon's socket");
  app.add_option("--work-dir", line.work_dir, "folder for spooled events");
  app.add_option("--job", line.identity.job_id, "job id");
  app.add_option("--attempt", line.identity.attempt, "attempt, from 1");
}

// Of --plan and --export: from all of stdin to stdout.
int Answer(const std::function<absl::StatusOr<std::string>(absl::string_view)>& answer) {
  const std::string request((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const absl::StatusOr<std::string> response = answer(request);
  if (!response.ok()) {
    std::cerr << "ampd-worker: " << response.status().message() << '\n';
    return kWorkerUsage;
  }
  std::cout << *response << std::flush;
  return std::cout.good() ? kWorkerReported : kWorkerUsage;
}

int Export(const std::string& path) {
  return Answer([&](absl::string_view request) { return ExportFromBytes(request, path); });
}

int Train(CommandLine line) {
  const char* token = getenv(kWorkerTokenVariable);
  if (token == nullptr || line.socket_dir.empty() || line.work_dir.empty() || line.identity.job_id.empty() ||
      line.identity.attempt == 0) {
    std::cerr << "ampd-worker: needs --socket-dir, --work-dir, --job, --attempt and " << kWorkerTokenVariable
              << "; it is started by ampd\n";
    return kWorkerUsage;
  }
  line.identity.credential = token;
  line.identity.pid = getpid();
  unsetenv(kWorkerTokenVariable);
  const auto address = SocketAddress::Open(line.socket_dir, kWorkerSocketName);
  if (!address.ok()) {
    std::cerr << "ampd-worker: " << address.status().message() << '\n';
    return kWorkerUsage;
  }
  WorkerOptions options;
  options.daemon_uri = address->uri();
  options.work_dir = line.work_dir;
  options.identity = line.identity;
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
  ampd::Confine();
  CLI::App app("Trains one job for ampd.", "ampd-worker");
  ampd::CommandLine line;
  ampd::Describe(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ampd::kWorkerUsage);
  }
  if (line.plan) return ampd::Answer(ampd::PlanFromBytes);
  if (!line.export_path.empty()) return ampd::Export(line.export_path);
  return ampd::Train(std::move(line));
}
