// ampd: the daemon. Exit codes: 0 after a drain (also when workers had to be killed) or a detach, 1 when it cannot
// start, 2 for a bad command line or configuration, 3 when a second signal cut the drain short.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/config/config.h"
#include "server/main/daemon.h"
#include "server/main/log.h"
#include "server/main/memory.h"
#include "server/main/service_manager.h"

namespace ampd {
namespace {

enum ExitCode : int { kDrained = 0, kCannotStart = 1, kUsage = 2, kCutShort = 3 };

// Of the end of a drain's time workers that do not stop are killed, and the servers take their leave.
absl::Duration Reserve(absl::Duration timeout) { return std::min(timeout / 4, absl::Seconds(5)); }

// Before any thread starts, so that every thread inherits the mask and only the main one sees the signals.
int BlockStopSignals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &stop, SFD_CLOEXEC);
}

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string ProgramDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

int TakeSignal(int signal_fd) {
  signalfd_siginfo info{};
  return read(signal_fd, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

// Waits for a signal, or for somebody to ask for a drain, and looks after the memory meanwhile.
std::optional<DrainRequest> AwaitStop(const Daemon& daemon, int signal_fd) {
  std::array<pollfd, 2> fds = {pollfd{signal_fd, POLLIN, 0}, pollfd{daemon.drain_requests().fd(), POLLIN, 0}};
  while (poll(fds.data(), fds.size(), kMemoryPeriodMs) <= 0) GiveBackMemory();
  if (fds[0].revents == 0) return daemon.drain_requests().Get();
  Log(Severity::kInfo, absl::StrCat("signal ", TakeSignal(signal_fd)));
  return std::nullopt;
}

void LogIfNot(const absl::Status& told) {
  if (!told.ok()) Log(Severity::kWarning, told.message());
}

// Both tell `done_fd` when the daemon may go.
void Drain(Daemon& daemon, absl::Duration timeout, const std::string& reason, int done_fd) {
  Log(Severity::kInfo,
      absl::StrCat("draining, at most ", absl::FormatDuration(timeout), reason.empty() ? "" : ": ", reason));
  daemon.Drain(timeout - Reserve(timeout), reason, [done_fd](const absl::Status& status) {
    if (!status.ok()) Log(Severity::kWarning, status.message());
    eventfd_write(done_fd, 1);
  });
}

void Detach(Daemon& daemon, int done_fd) {
  Log(Severity::kInfo, "detaching: workers train on until a daemon returns");
  daemon.Detach([done_fd] { eventfd_write(done_fd, 1); });
}

int Serve(Daemon& daemon, int signal_fd, const v1::ServerConfig& config, const ServiceManager& manager) {
  printf("ampd ready grpc=%s http=%s\n", daemon.grpc_address().c_str(), daemon.http_address().c_str());
  fflush(stdout);
  LogIfNot(manager.Ready(absl::StrCat("serving gRPC on ", daemon.grpc_address(), ", HTTP on ", daemon.http_address())));
  const std::optional<DrainRequest> request = AwaitStop(daemon, signal_fd);
  absl::Duration timeout = absl::Seconds(config.drain_timeout_seconds());
  if (request && request->timeout) timeout = *request->timeout;

  const int done_fd = eventfd(0, EFD_CLOEXEC);
  // Who asks for a drain gets one.
  const bool detach = !request && config.on_stop() == v1::ServerConfig::DETACH;
  // The process ends a little after the drain.
  LogIfNot(manager.Stopping(detach ? "detaching" : "draining: jobs checkpoint", timeout + absl::Seconds(10)));
  if (detach) {
    Detach(daemon, done_fd);
  } else {
    Drain(daemon, timeout, request ? request->reason : "", done_fd);
  }
  std::array<pollfd, 2> fds = {pollfd{done_fd, POLLIN, 0}, pollfd{signal_fd, POLLIN, 0}};
  const absl::Time deadline = absl::Now() + timeout - Reserve(timeout) / 2;
  int ready = -1;
  while (ready < 0) {
    const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(24));
    ready = poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(left)));
    // The longest wait is shorter than the longest time.
    if (ready == 0 && absl::Now() < deadline) ready = -1;
  }
  // A state directory without room, say.
  if (ready == 0) Log(Severity::kWarning, "the time is over: exiting; the next daemon finds what is left");
  if (ready > 0 && fds[0].revents == 0) {
    Log(Severity::kWarning, "second signal: exiting at once; workers train on until a daemon returns");
    _exit(kCutShort);
  }
  if (ready > 0) Log(Severity::kInfo, detach ? "detached" : "drained");
  return kDrained;
}

int Run(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Configuration> loaded = LoadConfiguration(arguments, ProcessEnvironment, ProgramDirectory());
  if (!loaded.ok()) {
    fprintf(stderr, "ampd: %s\n", std::string(loaded.status().message()).c_str());
    return kUsage;
  }
  if (loaded->print) {
    fputs(loaded->print->c_str(), stdout);
    return 0;
  }
  LimitArenas();
  const int signal_fd = BlockStopSignals();
  RaiseFileLimit();
  umask(077);
  SetLogFormat(loaded->config.log_format());
  CaptureGrpcLog();
  for (const std::string& warning : loaded->warnings) Log(Severity::kWarning, warning);
  const auto daemon = Daemon::Start(loaded->config);
  if (!daemon.ok()) {
    Log(Severity::kError, absl::StrCat("cannot start: ", daemon.status().message()));
    return kCannotStart;
  }
  Log(Severity::kInfo, absl::StrCat("ampd ", AMPD_VERSION, " serves ", loaded->config.state_dir()));
  return Serve(**daemon, signal_fd, loaded->config, ServiceManager(ProcessEnvironment("NOTIFY_SOCKET")));
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) { return ampd::Run(std::vector<std::string>(argv + 1, argv + argc)); }
