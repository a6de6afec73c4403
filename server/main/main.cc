// ampd: the daemon. Exit codes: 0 after a drain (also when workers had to be killed), 1 when it cannot start, 2 for a
// bad command line or configuration, 3 when a second signal cut the drain short.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/config/config.h"
#include "server/main/daemon.h"
#include "server/main/log.h"

namespace ampd {
namespace {

enum ExitCode : int { kDrained = 0, kCannotStart = 1, kUsage = 2, kCutShort = 3 };

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

int Serve(Daemon& daemon, int signal_fd, absl::Duration drain_timeout) {
  printf("ampd ready grpc=%s http=%s\n", daemon.grpc_address().c_str(), daemon.http_address().c_str());
  fflush(stdout);
  const int signal = TakeSignal(signal_fd);
  Log(Severity::kInfo, absl::StrCat("signal ", signal, ": draining, at most ", absl::FormatDuration(drain_timeout)));

  const int drained_fd = eventfd(0, EFD_CLOEXEC);
  daemon.Drain(drain_timeout, [drained_fd](const absl::Status& status) {
    if (!status.ok()) Log(Severity::kWarning, status.message());
    eventfd_write(drained_fd, 1);
  });
  std::array<pollfd, 2> fds = {pollfd{drained_fd, POLLIN, 0}, pollfd{signal_fd, POLLIN, 0}};
  while (poll(fds.data(), fds.size(), -1) < 0) {
  }
  if (fds[0].revents == 0) {
    Log(Severity::kWarning, "second signal: exiting at once; workers train on until a daemon returns");
    _exit(kCutShort);
  }
  Log(Severity::kInfo, "drained");
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
  const int signal_fd = BlockStopSignals();
  RaiseFileLimit();
  umask(077);
  CaptureGrpcLog();
  for (const std::string& warning : loaded->warnings) Log(Severity::kWarning, warning);
  const auto daemon = Daemon::Start(loaded->config);
  if (!daemon.ok()) {
    Log(Severity::kError, absl::StrCat("cannot start: ", daemon.status().message()));
    return kCannotStart;
  }
  Log(Severity::kInfo, absl::StrCat("ampd ", AMPD_VERSION, " serves ", loaded->config.state_dir()));
  return Serve(**daemon, signal_fd, absl::Seconds(loaded->config.drain_timeout_seconds()));
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) { return ampd::Run(std::vector<std::string>(argv + 1, argv + argc)); }
