#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

std::string ReadLine(int fd) {
  std::string line;
  char c;
  while (read(fd, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

}  // namespace

DaemonProcess::DaemonProcess(const std::string& state_dir, std::vector<std::string> flags) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  SpawnOptions options;
  options.argv = {AMPD_BIN_DIR "/ampd", "--listen", "127.0.0.1:0",    "--http", "127.0.0.1:0",
                  "--state-dir",        state_dir,  "--nvml-library", ""};
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  options.environment = ScrubbedEnvironment();
  options.stdout_fd = fds[1];
  const UniqueFd log(open((state_dir + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  options.stderr_fd = log.get();
  auto process = Spawn(options);
  close(fds[1]);
  EXPECT_TRUE(process.ok()) << process.status();
  if (process.ok()) process_.emplace(*std::move(process));
  const std::string line = ReadLine(fds[0]);
  close(fds[0]);
  char grpc_address[100] = {};
  EXPECT_EQ(sscanf(line.c_str(), "ampd ready grpc=%99s http=", grpc_address), 1)
      << line << "; see " << state_dir << ".log";
  channel_ = grpc::CreateChannel(grpc_address, grpc::InsecureChannelCredentials());
  stub_ = v1::TrainingService::NewStub(channel_);
}

DaemonProcess::~DaemonProcess() {
  if (!process_) return;
  Signal(SIGKILL);
  Wait();
}

void DaemonProcess::Signal(int signal) { process_->Signal(signal).IgnoreError(); }

ProcessExit DaemonProcess::Wait() {
  const ProcessExit exit = process_->Reap();
  process_.reset();
  return exit;
}

std::vector<pid_t> WorkersOf(const std::string& job_id) {
  std::vector<pid_t> workers;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    if (pid == 0) continue;
    std::ifstream file(entry.path() / "cmdline");
    const std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (absl::StrContains(command, absl::StrCat(absl::string_view("--job\0", 6), job_id))) workers.push_back(pid);
  }
  return workers;
}

IntegrationTest::IntegrationTest() : state_dir_(absl::StrCat(testing::TempDir(), "/ampd_integration_", getpid())) {
  fs::remove_all(state_dir_);
  daemon_ = std::make_unique<DaemonProcess>(state_dir_);
}

IntegrationTest::~IntegrationTest() {
  daemon_.reset();
  if (fs::exists(state_dir_ + "/jobs")) {
    for (const auto& job : fs::directory_iterator(state_dir_ + "/jobs")) {
      for (const pid_t pid : WorkersOf(job.path().filename())) kill(pid, SIGKILL);
    }
  }
  if (HasFailure()) return;
  fs::remove_all(state_dir_);
  fs::remove(state_dir_ + ".log");
}

v1::CreateJobRequest IntegrationTest::Request(int64_t steps) {
  v1::CreateJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("integration");
  spec.set_seed(7);
  spec.mutable_model()->add_layers()->mutable_flatten();
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(32);
  spec.mutable_model()->mutable_layers(1)->mutable_dense()->set_activation(v1::Activation::RELU);
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
  spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
  spec.mutable_data()->mutable_train()->mutable_glyphs()->set_samples(2000);
  spec.mutable_precision()->set_mode(v1::PrecisionSpec::FP16);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_batch_size(32);
  spec.mutable_checkpoint()->set_every_steps(50);
  spec.mutable_report()->set_every_steps(1);
  spec.mutable_resources()->set_cpu_threads(1);
  return request;
}

std::string IntegrationTest::Create(const v1::CreateJobRequest& request) {
  grpc::ClientContext context;
  v1::Job job;
  const grpc::Status status = daemon_->stub().CreateJob(&context, request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return job.id();
}

v1::Job IntegrationTest::Get(const std::string& id) {
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_job_id(id);
  v1::Job job;
  const grpc::Status status = daemon_->stub().GetJob(&context, request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return job;
}

std::vector<v1::JobEvent> IntegrationTest::Watch(const std::string& id,
                                                 const std::function<bool(const v1::JobEvent&)>& until) {
  std::vector<v1::JobEvent> events;
  grpc::ClientContext context;
  // A bound on a test that hangs, not a measure.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(200));
  v1::WatchJobRequest request;
  request.set_job_id(id);
  const auto reader = daemon_->stub().WatchJob(&context, request);
  v1::JobEvent event;
  bool stopped = false;
  while (reader->Read(&event)) {
    EXPECT_EQ(event.first_sequence(), events.empty() ? 1 : events.back().sequence() + 1) << "a gap or a repeat";
    events.push_back(event);
    if (until && until(event)) {
      stopped = true;
      context.TryCancel();
    }
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(stopped || status.ok()) << status.error_message();
  return events;
}

void IntegrationTest::WatchToStep(const std::string& id, int64_t step) {
  Watch(id, [step](const v1::JobEvent& event) { return event.step().last_step() >= step; });
}

void IntegrationTest::Restart() {
  daemon_.reset();
  daemon_ = std::make_unique<DaemonProcess>(state_dir_);
}

std::vector<double> IntegrationTest::Losses(const std::vector<v1::JobEvent>& events) {
  std::map<int64_t, double> by_step;
  for (const v1::JobEvent& event : events) {
    if (!event.has_step()) continue;
    const double loss = event.step().phases(0).loss();
    const auto [known, is_new] = by_step.emplace(event.step().last_step(), loss);
    if (!is_new) {
      EXPECT_EQ(memcmp(&known->second, &loss, sizeof(loss)), 0) << "step " << known->first << " differs when repeated";
    }
  }
  std::vector<double> losses;
  for (const auto& [step, loss] : by_step) {
    EXPECT_EQ(step, static_cast<int64_t>(losses.size()) + 1);
    losses.push_back(loss);
  }
  return losses;
}

}  // namespace ampd
