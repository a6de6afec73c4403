#include "server/launch/worker_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"
#include "server/launch/process.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStderrKept = 1024;

struct Channel {
  UniqueFd ours;
  UniqueFd theirs;
};

// Sockets, not pipes: writing to a child that died must not raise SIGPIPE.
absl::StatusOr<Channel> OpenChannel() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot open a channel to a worker: ", strerror(errno)));
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return Channel{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

absl::Status CheckStops(const ExchangeLimits& limits, const ExchangeWords& words) {
  const bool is_set =
      std::any_of(limits.stops.begin(), limits.stops.end(), [](const StopEvent* stop) { return stop->is_set(); });
  return is_set ? absl::UnavailableError(absl::StrCat("the ", words.who, " was stopped")) : absl::OkStatus();
}

// One exchange with a running process.
class Exchange {
 public:
  Exchange(ProcessHandle process, UniqueFd input, UniqueFd output, UniqueFd errors, std::string request,
           const ExchangeLimits& limits, ExchangeWords words)
      : process_(std::move(process)),
        input_(std::move(input)),
        output_(std::move(output)),
        errors_(std::move(errors)),
        request_(std::move(request)),
        limits_(limits),
        words_(std::move(words)),
        deadline_(Clock::now() + absl::ToChronoMilliseconds(limits.timeout)) {}

  absl::StatusOr<std::string> Run() {
    absl::Status status = Pump();
    // What the process left behind in its session goes with it; until it is reaped, its pid is nobody else's.
    kill(-process_.identity().pid, SIGKILL);
    const ProcessExit exit = process_.Reap();
    if (status.ok()) status = Judge(exit);
    if (!status.ok()) return Annotate(WithStderr(status), words_.doing);
    return std::move(answer_);
  }

 private:
  // Until the process ended.
  absl::Status Pump() {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) {
        // No DEADLINE_EXCEEDED: that would be the caller's, who would ask for the same once more.
        return absl::FailedPreconditionError(
            absl::StrCat("the ", words_.who, " did not answer within ", absl::FormatDuration(limits_.timeout)));
      }
      std::vector<pollfd> fds = {pollfd{input_.get(), POLLOUT, 0}, pollfd{output_.get(), POLLIN, 0},
                                 pollfd{errors_.get(), POLLIN, 0}, pollfd{process_.pidfd(), POLLIN, 0}};
      for (const StopEvent* stop : limits_.stops) fds.push_back({stop->fd(), POLLIN, 0});
      if (poll(fds.data(), fds.size(), static_cast<int>(left) + 1) < 0) continue;
      AMPD_RETURN_IF_ERROR(CheckStops(limits_, words_));
      if (fds[0].revents != 0) SendRequest();
      AMPD_RETURN_IF_ERROR(ReadAnswer());
      ReadErrors();
      if (fds[3].revents != 0) return ReadAnswer();
    }
  }

  void SendRequest() {
    const ssize_t n = send(input_.get(), request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
    if (n > 0) sent_ += static_cast<size_t>(n);
    const bool failed = n < 0 && errno != EAGAIN && errno != EINTR;
    if (failed || sent_ == request_.size()) input_.Reset();
  }

  absl::Status ReadAnswer() {
    std::array<char, 16384> buffer;
    while (output_.valid()) {
      const ssize_t n = recv(output_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n == 0) output_.Reset();
      if (n <= 0) break;
      answer_.append(buffer.data(), static_cast<size_t>(n));
      if (answer_.size() > limits_.max_output_bytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the ", words_.who, "'s answer is larger than ", limits_.max_output_bytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  void ReadErrors() {
    std::array<char, 1024> buffer;
    while (errors_.valid()) {
      const ssize_t n = recv(errors_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n == 0) errors_.Reset();
      if (n <= 0) return;
      stderr_.append(buffer.data(), static_cast<size_t>(n));
      if (stderr_.size() > kStderrKept) stderr_.erase(0, stderr_.size() - kStderrKept);
    }
  }

  absl::Status Judge(const ProcessExit& exit) const {
    if (exit.exit_code == kWorkerReported) return absl::OkStatus();
    if (exit.exit_code == kWorkerOutOfMemory) {
      return absl::ResourceExhaustedError(absl::StrCat("the ", words_.who, " ran out of memory"));
    }
    const std::string text = absl::StrCat("the ", words_.who, " ", DescribeExit(exit));
    const bool out_of_resources = exit.signal == SIGKILL || exit.signal == SIGXCPU;
    return out_of_resources ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
  }

  absl::Status WithStderr(const absl::Status& status) {
    ReadErrors();
    const absl::string_view tail = absl::StripAsciiWhitespace(stderr_);
    if (tail.empty()) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; it said: ", tail));
  }

  ProcessHandle process_;
  UniqueFd input_;
  UniqueFd output_;
  UniqueFd errors_;
  const std::string request_;
  const ExchangeLimits limits_;
  const ExchangeWords words_;
  const Clock::time_point deadline_;
  size_t sent_ = 0;
  std::string answer_;
  std::string stderr_;
};

}  // namespace

absl::StatusOr<std::string> AskWorker(std::vector<std::string> argv, std::string request, const ExchangeLimits& limits,
                                      const ExchangeWords& words) {
  AMPD_RETURN_IF_ERROR(Annotate(CheckStops(limits, words), words.doing));
  AMPD_ASSIGN_OR_RETURN(Channel input, OpenChannel());
  AMPD_ASSIGN_OR_RETURN(Channel output, OpenChannel());
  AMPD_ASSIGN_OR_RETURN(Channel errors, OpenChannel());
  SpawnOptions options{.argv = std::move(argv), .environment = ScrubbedEnvironment()};
  options.environment.push_back("CUDA_VISIBLE_DEVICES=");
  options.stdin_fd = input.theirs.get();
  options.stdout_fd = output.theirs.get();
  options.stderr_fd = errors.theirs.get();
  options.limits.cpu_seconds = limits.cpu_seconds;
  options.limits.address_space_bytes = limits.address_space_bytes;
  options.limits.open_files = limits.open_files;
  options.limits.file_bytes = limits.file_bytes;
  RunAsAccount(limits.account, &options);
  absl::StatusOr<ProcessHandle> process = Spawn(options);
  if (!process.ok()) {
    return absl::UnavailableError(absl::StrCat(words.doing, ": ", process.status().message()));
  }
  input.theirs.Reset();
  output.theirs.Reset();
  errors.theirs.Reset();
  return Exchange(*std::move(process), std::move(input.ours), std::move(output.ours), std::move(errors.ours),
                  std::move(request), limits, words)
      .Run();
}

}  // namespace ampd
