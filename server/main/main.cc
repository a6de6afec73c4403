// ampd: the daemon. Exit codes: 0 after a drain (also when workers had to be killed), a detach, or a signal while it
// starts, 1 when it cannot start, 2 for a bad command line or configuration, 3 when a second signal cut the drain
// short.
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
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/core/mutex.h"
#include "server/config/config.h"
#include "server/events/clock.h"
#include "server/files/unique_fd.h"
#include "server/main/daemon.h"
#include "server/main/ending.h"
#include "server/main/log.h"
#include "server/main/memory.h"
#include "server/main/service_manager.h"

namespace ampd {
namespace {

enum ExitCode : int { kDrained = 0, kCannotStart = 1, kUsage = 2, kCutShort = 3 };

// For the end of the process once the drain took all of its time.
constexpr absl::Duration kShortestEnd = absl::Seconds(2);

constexpr absl::Duration kStartPeriod = absl::Seconds(15);
constexpr absl::Duration kLongestStart = absl::Hours(1);

// Before any thread starts, so that every thread inherits the mask and only the main one sees the signals.
int BlockStopSignals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  // Would end it without a drain, and for the service manager as if it was meant to.
  sigaddset(&stop, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A file that reached a limit is an error of the write, as a full disk is.
  signal(SIGXFSZ, SIG_IGN);
  return signalfd(-1, &stop, SFD_CLOEXEC);
}

// The copy that the rewriting of a database begins with may be too large for /tmp. Before any thread starts.
void KeepTemporaryFilesIn(const std::string& folder) { setenv("SQLITE_TMPDIR", folder.c_str(), /*overwrite=*/0); }

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

// Asked first before anything can have closed it.
bool StartedInTerminal() {
  static const bool started = isatty(STDERR_FILENO) == 1;
  return started;
}

// SIGHUP, which stops nothing; but for a daemon in a terminal it is the end of that.
bool AsksToReload(int signal) {
  if (signal != SIGHUP || StartedInTerminal()) return false;
  Log(Severity::kWarning, "SIGHUP: nothing is reloaded; a changed configuration takes a restart");
  return true;
}

void LogIfNot(const absl::Status& told) {
  if (!told.ok()) Log(Severity::kWarning, told.message());
}

// While the daemon starts, which takes as long as comparing a database with its checksums, or rewriting it: tells the
// service manager that the start goes on (not for ever, so that a state directory that hangs is noticed), and obeys
// signals until jobs may run.
class LongStart {
 public:
  LongStart(const ServiceManager* manager, int signal_fd)
      : manager_(manager), signal_fd_(signal_fd), started_(eventfd(0, EFD_CLOEXEC)) {
    if (started_.valid()) teller_ = std::thread([this] { Tell(); });
  }
  ~LongStart() {
    if (!started_.valid()) return;
    eventfd_write(started_.get(), 1);
    teller_.join();
  }

  // From now on signals wait for the daemon, which ends with a drain.
  void ObeyNoMore() {
    const MutexLock lock(&mutex_);
    obeys_ = false;
  }

 private:
  void Tell() {
    const absl::Time last = absl::Now() + kLongestStart;
    std::array<pollfd, 2> fds = {pollfd{started_.get(), POLLIN, 0}, pollfd{signal_fd_, POLLIN, 0}};
    for (;;) {
      const int count = poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(kStartPeriod)));
      if (count > 0 && fds[0].revents != 0) return;
      if (count > 0) {
        const MutexLock lock(&mutex_);
        if (!obeys_) {
          fds[1].fd = -1;
          continue;
        }
        const int signal = TakeSignal(signal_fd_);
        if (AsksToReload(signal)) continue;
        Log(Severity::kInfo, absl::StrCat("signal ", signal, " while it starts: exiting at once"));
        _exit(kDrained);
      }
      if (absl::Now() < last) LogIfNot(manager_->Starting("starting: the log says with what", 4 * kStartPeriod));
    }
  }

  const ServiceManager* const manager_;
  const int signal_fd_;
  const UniqueFd started_;
  Mutex mutex_;
  bool obeys_ ABSL_GUARDED_BY(mutex_) = true;
  std::thread teller_;
};

absl::StatusOr<std::unique_ptr<Daemon>> StartDaemon(const v1::ServerConfig& config, const ServiceManager& manager,
                                                    int signal_fd) {
  LongStart start(&manager, signal_fd);
  return Daemon::Start(config, [&start] { start.ObeyNoMore(); });
}

// What begins the end. `done_fd`, an eventfd, is told when the daemon may go.
Ending MakeEnding(Daemon* daemon, const v1::ServerConfig& config, const ServiceManager* manager, int done_fd) {
  // The process ends a little after the drain.
  const auto tell = [manager](absl::string_view status, absl::Duration timeout) {
    LogIfNot(manager->Stopping(status, timeout + absl::Seconds(10)));
  };
  Ending::Options options;
  options.detach_on_signal = config.on_stop() == v1::ServerConfig::DETACH;
  options.timeout = absl::Seconds(config.drain_timeout_seconds());
  options.detach = [=](absl::Duration timeout) {
    Log(Severity::kInfo, "detaching: workers train on until a daemon returns");
    tell("detaching", timeout);
    daemon->Detach([done_fd] { eventfd_write(done_fd, 1); });
  };
  options.drain = [=](absl::Duration timeout, absl::Duration workers, const std::string& reason) {
    Log(Severity::kInfo,
        absl::StrCat("draining, at most ", absl::FormatDuration(timeout), reason.empty() ? "" : ": ", reason));
    tell("draining: jobs checkpoint", timeout);
    daemon->Drain(workers, reason, [done_fd](const absl::Status& status) {
      if (!status.ok()) Log(Severity::kWarning, status.message());
      eventfd_write(done_fd, 1);
    });
  };
  options.hurry = [=](absl::Duration timeout, absl::Duration workers) {
    Log(Severity::kInfo, absl::StrCat("the drain is to end within ", absl::FormatDuration(timeout), " from now"));
    daemon->Drain(workers, "", [](const absl::Status&) {});
  };
  return Ending(std::move(options), &SystemClock());
}

void ObeySignal(int signal, Ending* ending) {
  // The shell says that the terminal is gone, and then the kernel does.
  if (AsksToReload(signal) || (signal == SIGHUP && ending->begun())) return;
  Log(Severity::kInfo, absl::StrCat("signal ", signal));
  if (ending->OnSignal() == Ending::Answer::kGoOn) return;
  Log(Severity::kWarning, "second signal: exiting at once; workers train on until a daemon returns");
  _exit(kCutShort);
}

void ObeyRequest(const DrainRequest& request, Ending* ending) {
  const std::string about = request.reason.empty() ? "" : absl::StrCat(": ", request.reason);
  if (ending->detaching()) return Log(Severity::kWarning, absl::StrCat("detaching already, no drain begins", about));
  if (ending->begun()) Log(Severity::kInfo, absl::StrCat("asked to drain once more", about));
  ending->OnRequest(request);
}

// Rounded up, so that there is no time left once it is over; the longest wait is shorter than the longest time.
int WaitMs(const Ending& ending) {
  if (!ending.begun()) return kMemoryPeriodMs;
  return static_cast<int>(absl::ToInt64Milliseconds(std::min(ending.Left(), absl::Hours(24)))) + 1;
}

// Until the daemon may go, or its time is over. Looks after the memory until the end begins.
void AwaitEnd(Daemon* daemon, int signal_fd, int done_fd, Ending* ending) {
  std::array<pollfd, 3> fds = {pollfd{done_fd, POLLIN, 0}, pollfd{signal_fd, POLLIN, 0},
                               pollfd{daemon->drain_requests().fd(), POLLIN, 0}};
  while (ending->Left() > absl::ZeroDuration()) {
    if (poll(fds.data(), fds.size(), WaitMs(*ending)) <= 0) {
      if (!ending->begun()) GiveBackMemory();
      continue;
    }
    if (fds[0].revents != 0) return Log(Severity::kInfo, ending->detaching() ? "detached" : "drained");
    // Who asks for a drain gets one, whatever a signal would do.
    for (const DrainRequest& request : daemon->drain_requests().Take()) ObeyRequest(request, ending);
    if (fds[1].revents != 0) ObeySignal(TakeSignal(signal_fd), ending);
  }
  // A state directory without room, say.
  Log(Severity::kWarning, "the time is over: exiting; the next daemon finds what is left");
}

// Everything is durable by now, but what ends with the daemon may hang: a driver, a file system that is gone.
void EndWithin(absl::Duration time) {
  std::thread([time] {
    absl::SleepFor(time);
    Log(Severity::kWarning, absl::StrCat("not ended within ", absl::FormatDuration(time), ": exiting at once"));
    _exit(kDrained);
  }).detach();
}

// `done_fd`, an eventfd, is for the end of the drain.
int Serve(Daemon& daemon, int signal_fd, int done_fd, const v1::ServerConfig& config, const ServiceManager& manager) {
  printf("ampd ready grpc=%s http=%s\n", daemon.grpc_address().c_str(), daemon.http_address().c_str());
  fflush(stdout);
  LogIfNot(manager.Ready(absl::StrCat("serving gRPC on ", daemon.grpc_address(), ", HTTP on ", daemon.http_address())));
  Ending ending = MakeEnding(&daemon, config, &manager, done_fd);
  AwaitEnd(&daemon, signal_fd, done_fd, &ending);
  EndWithin(std::max(ending.Left(), kShortestEnd));
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
  StartedInTerminal();
  const int signal_fd = BlockStopSignals();
  RaiseFileLimit();
  umask(077);
  SetLogFormat(loaded->config.log_format());
  CaptureGrpcLog();
  // Now, as there may be no descriptor left when it is needed.
  const int done_fd = eventfd(0, EFD_CLOEXEC);
  if (signal_fd < 0 || done_fd < 0) {
    Log(Severity::kError, "cannot start: there is no descriptor for signals, or for the end of a drain");
    return kCannotStart;
  }
  for (const std::string& warning : loaded->warnings) Log(Severity::kWarning, warning);
  KeepTemporaryFilesIn(loaded->config.state_dir());
  const ServiceManager manager(ProcessEnvironment("NOTIFY_SOCKET"));
  const auto daemon = StartDaemon(loaded->config, manager, signal_fd);
  if (!daemon.ok()) {
    Log(Severity::kError, absl::StrCat("cannot start: ", daemon.status().message()));
    return kCannotStart;
  }
  Log(Severity::kInfo, absl::StrCat("ampd ", AMPD_VERSION, " serves ", loaded->config.state_dir()));
  return Serve(**daemon, signal_fd, done_fd, loaded->config, manager);
}

}  // namespace
}  // namespace ampd

int main(int argc, char** argv) { return ampd::Run(std::vector<std::string>(argv + 1, argv + argc)); }
