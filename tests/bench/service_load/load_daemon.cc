#include "tests/bench/service_load/load_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "engine/core/status.h"

namespace ampd::load {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartDeadline = absl::Minutes(1);

// "ampd ready grpc=HOST:PORT http=HOST:PORT".
absl::StatusOr<std::string> AddressFrom(int fd) {
  const absl::Time deadline = absl::Now() + kStartDeadline;
  std::string line;
  while (!absl::StrContains(line, '\n')) {
    pollfd poll_fd{fd, POLLIN, 0};
    const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) return absl::DeadlineExceededError("the daemon was not ready within a minute");
    if (poll(&poll_fd, 1, static_cast<int>(left)) <= 0) continue;
    char buffer[256];
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n <= 0) return absl::UnavailableError("the daemon ended before it was ready");
    line.append(buffer, static_cast<size_t>(n));
  }
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    if (absl::StartsWith(word, "grpc=")) return std::string(word.substr(5));
  }
  return absl::InternalError(absl::StrCat("not the ready line: ", line));
}

std::vector<pid_t> WorkersOf(const std::string& state_dir) {
  std::vector<pid_t> pids;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const int pid = atoi(it->path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(it->path() / "cmdline", std::ios::binary);
    const std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (absl::StrContains(command, "--socket-dir") && absl::StrContains(command, state_dir)) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

std::string ProgramFolder() { return fs::read_symlink("/proc/self/exe").parent_path().string(); }

absl::StatusOr<std::unique_ptr<LoadDaemon>> LoadDaemon::Start(const DaemonOptions& options) {
  std::unique_ptr<LoadDaemon> daemon(new LoadDaemon());
  daemon->state_dir_ = options.state_dir;
  int out[2];
  if (pipe(out) != 0) return absl::InternalError("no pipe");
  const UniqueFd ours(out[0]);
  UniqueFd theirs(out[1]);
  SpawnOptions spawn{.argv = {ProgramFolder() + "/ampd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                              "--state-dir", options.state_dir, "--cpu-devices", "1", "--nvml-library", "",
                              "--no-tensorboard", "--worker", options.worker},
                     .environment = ScrubbedEnvironment()};
  const std::string log_path = options.state_dir + ".log";
  const UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  spawn.stdout_fd = theirs.get();
  spawn.stderr_fd = log.get();
  const absl::Time start = absl::Now();
  AMPD_ASSIGN_OR_RETURN(ProcessHandle process, Spawn(spawn));
  daemon->process_ = std::move(process);
  theirs.Reset();
  AMPD_ASSIGN_OR_RETURN(daemon->address_, AddressFrom(ours.get()));
  daemon->start_time_ = absl::Now() - start;
  daemon->stub_ = v1::TrainingService::NewStub(daemon->NewChannel());
  return daemon;
}

std::shared_ptr<grpc::Channel> LoadDaemon::NewChannel(int window) const {
  // Else channels of equal arguments share a connection.
  static std::atomic<int> number = 0;
  grpc::ChannelArguments arguments;
  arguments.SetInt("ampd.load.connection", ++number);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  if (window > 0) {
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, window);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  }
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
}

void LoadDaemon::Kill() {
  if (!process_) return;
  kill(process_->identity().pid, SIGKILL);
  process_->Reap();
  process_.reset();
}

LoadDaemon::~LoadDaemon() {
  Kill();
  for (const pid_t pid : WorkersOf(state_dir_)) kill(pid, SIGKILL);
}

int64_t LoadDaemon::StatusBytes(const std::string& field) const {
  std::ifstream file(absl::StrCat("/proc/", process_->identity().pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, field)) return std::atoll(line.c_str() + field.size()) * 1024;
  }
  return 0;
}

absl::Duration LoadDaemon::CpuTime() const {
  std::ifstream file(absl::StrCat("/proc/", process_->identity().pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return absl::Seconds(static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

v1::JobSpec JobNamed(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  auto* layers = spec.mutable_model()->mutable_layers();
  v1::Conv2dLayer& conv = *layers->Add()->mutable_conv2d();
  conv.set_filters(16);
  conv.add_kernel(3);
  conv.add_kernel(3);
  layers->Add()->mutable_relu();
  layers->Add()->mutable_flatten();
  layers->Add()->mutable_dense()->set_units(10);
  spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
  spec.mutable_data()->mutable_train()->mutable_glyphs()->set_samples(4096);
  spec.mutable_train()->set_steps(1000);
  spec.mutable_train()->set_batch_size(64);
  spec.mutable_checkpoint()->set_every_seconds(0);
  return spec;
}

}  // namespace ampd::load
