// A controller with a real store, and a clock, a launcher and workers that do what the test says.
#ifndef AMPD_TESTS_UNIT_SERVER_JOBS_CONTROLLER_FIXTURE_H_
#define AMPD_TESTS_UNIT_SERVER_JOBS_CONTROLLER_FIXTURE_H_

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/events/event_log.h"
#include "server/jobs/controller.h"
#include "server/jobs/job_state.h"
#include "server/metrics/metrics.h"
#include "server/store/store.h"
#include "tests/unit/server/jobs/fake_clock.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {

// How long a test waits for what must happen.
inline constexpr std::chrono::seconds kDeadline(30);

// Processes are numbers; they live until killed or told to end.
class FakeLauncher : public Launcher {
 public:
  struct Process {
    WorkerProcess id;
    LaunchRequest request;
    bool alive = true;
    bool killed = false;
  };

  absl::StatusOr<WorkerProcess> Launch(const LaunchRequest& request) override {
    std::lock_guard lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    const WorkerProcess id = {static_cast<int64_t>(1000 + processes_.size()), 777 + processes_.size()};
    processes_.push_back({id, request});
    changed_.notify_all();
    return id;
  }
  void Kill(const WorkerProcess& process) override {
    std::function<void(WorkerProcess, WorkerExit)> report;
    {
      std::lock_guard lock(mutex_);
      Process* found = Find(process);
      if (found == nullptr || !found->alive) return;
      found->killed = true;
      if (stubborn_) return;
      found->alive = false;
      changed_.notify_all();
      report = report_;
    }
    if (report) report(process, {-1, 9});
  }
  bool IsAlive(const WorkerProcess& process) override {
    std::lock_guard lock(mutex_);
    const Process* found = Find(process);
    return found != nullptr && found->alive;
  }
  absl::StatusOr<WorkerProcess> Identify(int64_t pid) override {
    std::lock_guard lock(mutex_);
    if (!hidden_.ok()) return hidden_;
    for (const Process& process : processes_) {
      if (process.id.pid == pid && process.alive) return process.id;
    }
    return absl::NotFoundError("no such process");
  }
  std::vector<FoundWorker> FindWorkers() override {
    std::lock_guard lock(mutex_);
    std::vector<FoundWorker> found;
    if (!hidden_.ok()) return found;
    for (const Process& process : processes_) {
      if (process.alive) found.push_back({process.id, process.request.job_id, process.request.attempt});
    }
    return found;
  }

  // Whom to tell of ends; none while no daemon lives.
  void Report(std::function<void(WorkerProcess, WorkerExit)> report) {
    std::lock_guard lock(mutex_);
    report_ = std::move(report);
  }
  // From now on launches fail with `status`; OK: they succeed.
  void Refuse(absl::Status status) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(status);
  }
  // From now on no process is identified or found, for this reason; OK: they are.
  void Hide(absl::Status status) {
    std::lock_guard lock(mutex_);
    hidden_ = std::move(status);
  }
  // Killed processes stay.
  void MakeStubborn(bool stubborn) {
    std::lock_guard lock(mutex_);
    stubborn_ = stubborn;
  }
  // The process ends by itself.
  void End(const WorkerProcess& process, WorkerExit exit) {
    std::function<void(WorkerProcess, WorkerExit)> report;
    {
      std::lock_guard lock(mutex_);
      Find(process)->alive = false;
      report = report_;
    }
    if (report) report(process, exit);
  }
  // The n-th process launched, from 0, once it was.
  Process Wait(size_t n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kDeadline, [&] { return processes_.size() > n; })) << "launch " << n;
    return processes_.size() > n ? processes_[n] : Process();
  }
  size_t launches() {
    std::lock_guard lock(mutex_);
    return processes_.size();
  }
  bool WasKilled(size_t n) {
    std::lock_guard lock(mutex_);
    return processes_[n].killed;
  }

 private:
  Process* Find(const WorkerProcess& process) {
    for (Process& candidate : processes_) {
      if (candidate.id == process) return &candidate;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Process> processes_;
  std::function<void(WorkerProcess, WorkerExit)> report_;
  absl::Status refusal_;
  absl::Status hidden_;
  bool stubborn_ = false;
};

class FakeConnection : public WorkerConnection {
 public:
  void Send(v1::DaemonMessage message) override {
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  void Close(absl::Status status) override {
    std::lock_guard lock(mutex_);
    if (!closed_) closed_ = std::move(status);
    changed_.notify_all();
  }
  bool Listens() const override { return listens_; }
  void SetListens(bool listens) { listens_ = listens; }

  bool WaitUntil(const std::function<bool(const std::vector<v1::DaemonMessage>&)>& holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kDeadline, [&] { return holds(messages_); });
  }
  v1::DaemonWelcome WaitForWelcome() {
    EXPECT_TRUE(WaitUntil([](const auto& messages) { return !messages.empty(); })) << "no welcome";
    std::lock_guard lock(mutex_);
    if (messages_.empty()) return v1::DaemonWelcome();
    EXPECT_TRUE(messages_[0].has_welcome()) << "the first message is " << messages_[0].ShortDebugString();
    return messages_[0].welcome();
  }
  bool WaitForAck(uint64_t number) {
    return WaitUntil([&](const auto& messages) {
      for (const auto& message : messages) {
        if (message.body_case() == v1::DaemonMessage::kAcknowledgedNumber && message.acknowledged_number() >= number) {
          return true;
        }
      }
      return false;
    });
  }
  bool WaitForGoodbye() {
    return WaitUntil([](const auto& messages) { return !messages.empty() && messages.back().has_goodbye(); });
  }
  bool WaitForStop() {
    return WaitUntil([](const auto& messages) {
      for (const auto& message : messages) {
        if (message.command().kind() == v1::DaemonCommand::CHECKPOINT_AND_STOP) return true;
      }
      return false;
    });
  }
  bool WasToldToStop() {
    std::lock_guard lock(mutex_);
    return std::any_of(messages_.begin(), messages_.end(),
                       [](const auto& m) { return m.command().kind() == v1::DaemonCommand::CHECKPOINT_AND_STOP; });
  }
  // Unset while the stream is open.
  absl::Status WaitForClose() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kDeadline, [&] { return closed_.has_value(); })) << "not closed";
    return closed_.value_or(absl::OkStatus());
  }
  bool closed() {
    std::lock_guard lock(mutex_);
    return closed_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::DaemonMessage> messages_;
  std::optional<absl::Status> closed_;
  std::atomic<bool> listens_ = true;
};

class ControllerTest : public ::testing::Test {
 protected:
  ControllerTest() { StartDaemon(); }
  ~ControllerTest() override { StopDaemon(); }

  void StartDaemon(int devices = 1, int64_t max_pages = 0) {
    std::vector<v1::Device> cpus;
    for (int i = 0; i < devices; ++i) {
      cpus.emplace_back().set_id(absl::StrCat("cpu-", i));
      cpus.back().set_kind(v1::Device::CPU);
      cpus.back().set_threads(2);
    }
    StartDaemonOn(std::move(cpus), max_pages);
  }
  void StartDaemonOn(std::vector<v1::Device> devices, int64_t max_pages = 0, bool same_pid_namespace = true) {
    Store::Options store_options;
    store_options.state_dir = dir_.path();
    store_options.max_pages = max_pages;
    store_ = *Store::Open(std::move(store_options));
    log_ = std::make_unique<EventLog>(store_.get());
    metrics_ = std::make_unique<Metrics>("0", &clock_);
    log_->SetListener([this](const JobWrite& write) {
      ++writes_;
      metrics_->OnWrite(write);
    });
    ControllerOptions options;
    options.devices = std::move(devices);
    options.same_pid_namespace = same_pid_namespace;
    options.checkpoint_root = "/checkpoints";
    options.artifact_root = "/artifacts";
    options.start_root = dir_.path() + "/starts";
    options.data_roots = {"/data"};
    options.scheduling = scheduling_;
    options.max_queued_jobs_per_user = max_queued_jobs_per_user_;
    options.device_models = device_models_;
    // Retries wait for just their back-off.
    options.draw = [] { return 0.5; };
    options.log = [this](const std::string& text, const LogSubject& about) {
      const std::lock_guard lock(logged_mutex_);
      logged_.push_back(absl::StrCat(about.job_id, " ", about.attempt, " ", text));
    };
    auto controller =
        Controller::Start(std::move(options), store_.get(), log_.get(), &launcher_, metrics_.get(), &clock_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
    launcher_.Report([this](WorkerProcess process, WorkerExit exit) { controller_->WorkerExited(process, exit); });
  }

  // As a crash does, as far as jobs and workers can tell.
  void StopDaemon() {
    launcher_.Report(nullptr);
    controller_.reset();
    log_.reset();
    store_.reset();
  }
  void RestartDaemon(int devices = 1) {
    StopDaemon();
    StartDaemon(devices);
  }

  template <typename T, typename Call>
  absl::StatusOr<T> Await(Call call) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
    auto future = promise->get_future();
    call([promise](absl::StatusOr<T> result) { promise->set_value(std::move(result)); });
    if (future.wait_for(kDeadline) != std::future_status::ready) return absl::DeadlineExceededError("no answer");
    return future.get();
  }

  // What was posted before has been done.
  void Sync() {
    std::promise<void> done;
    controller_->Post([&] { done.set_value(); });
    done.get_future().wait();
  }
  // As Sync, and writes that followed are durable and noticed.
  void Settle() {
    for (int i = 0; i < 4; ++i) {
      Sync();
      store_->Flush();
    }
    Sync();
  }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    Settle();
  }

  CreateJobParams Params(const std::string& request_id = "", const std::string& body = "body") {
    CreateJobParams params;
    params.spec.set_name("test");
    params.spec.mutable_train()->set_batch_size(32);
    params.spec.mutable_retry()->set_max_attempts(3);
    params.request_id = request_id;
    params.body = body;
    return params;
  }
  absl::StatusOr<v1::Job> Create(CreateJobParams params) {
    return Await<v1::Job>([&](auto done) { controller_->CreateJob(std::move(params), std::move(done)); });
  }
  std::string Submit() { return Submit(Params()); }
  std::string Submit(CreateJobParams params) {
    const auto job = Create(std::move(params));
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->id() : "";
  }
  // After all that happened before is written: calls read beside the writer.
  absl::StatusOr<v1::Job> Get(const std::string& id) {
    Sync();
    store_->Flush();
    return Await<v1::Job>([&](auto done) { controller_->GetJob(id, std::move(done)); });
  }
  absl::StatusOr<v1::Job> Cancel(const std::string& id, bool now = false) {
    return Await<v1::Job>([&](auto done) { controller_->CancelJob(id, now, std::move(done)); });
  }
  // Waits until the job is in `state`, as clients see it.
  v1::Job WaitFor(const std::string& id, v1::Job::State state) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    v1::Job job;
    while (std::chrono::steady_clock::now() < deadline) {
      const auto now = Get(id);
      EXPECT_TRUE(now.ok()) << now.status();
      if (!now.ok()) break;
      job = *now;
      if (job.state() == state) return job;
    }
    ADD_FAILURE() << "job is " << v1::Job::State_Name(job.state()) << ", not " << v1::Job::State_Name(state);
    return job;
  }
  std::vector<v1::JobEvent> Events(const std::string& id) {
    const auto page = log_->Read(id, 0, 100000);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->events : std::vector<v1::JobEvent>();
  }
  // "QUEUED STARTING ..." as the events tell it.
  std::vector<v1::Job::State> States(const std::string& id) {
    std::vector<v1::Job::State> states;
    for (const auto& event : Events(id)) {
      if (event.has_state_change()) states.push_back(event.state_change().to());
    }
    return states;
  }
  void ExpectGapFree(const std::string& id) {
    uint64_t last = 0;
    for (const auto& event : Events(id)) {
      EXPECT_EQ(event.first_sequence(), last + 1);
      last = event.sequence();
    }
    EXPECT_EQ(Get(id)->last_sequence(), last);
  }
  v1::JobEvent LastEvent(const std::string& id) { return Events(id).back(); }

  static v1::WorkerHello Hello(const std::string& job, uint32_t attempt, const std::string& credential,
                               int64_t pid = 0) {
    v1::WorkerHello hello;
    hello.set_min_protocol(1);
    hello.set_max_protocol(1);
    hello.set_job_id(job);
    hello.set_attempt(attempt);
    hello.set_credential(credential);
    hello.set_pid(static_cast<int32_t>(pid));
    return hello;
  }
  std::shared_ptr<FakeConnection> Attach(const v1::WorkerHello& hello) {
    auto connection = std::make_shared<FakeConnection>();
    controller_->WorkerAttached(hello, connection);
    return connection;
  }
  // Attaches the process of launch `n` with its token.
  std::shared_ptr<FakeConnection> AttachLaunched(size_t n) {
    const FakeLauncher::Process process = launcher_.Wait(n);
    auto connection =
        Attach(Hello(process.request.job_id, process.request.attempt, process.request.one_time_token, process.id.pid));
    connection->WaitForWelcome();
    return connection;
  }
  void SendStep(const std::shared_ptr<FakeConnection>& connection, uint64_t number, int64_t step) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::StepReport& report = *message.mutable_event()->mutable_event()->mutable_step();
    report.set_first_step(step);
    report.set_last_step(step);
    report.add_phases()->set_name("main");
    report.mutable_phases(0)->set_steps_applied(step);
    report.mutable_phases(0)->set_loss(1.0 / static_cast<double>(step));
    controller_->WorkerMessage(connection, message);
  }
  void SendHeartbeat(const std::shared_ptr<FakeConnection>& connection, double cpu_seconds = 0,
                     int64_t evaluated_samples = 0) {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_cpu_seconds(cpu_seconds);
    message.mutable_heartbeat()->set_evaluated_samples(evaluated_samples);
    controller_->WorkerMessage(connection, message);
    // Heard at the clock's present time.
    Sync();
  }
  void SendFinished(const std::shared_ptr<FakeConnection>& connection, v1::WorkerFinished::Outcome outcome,
                    uint64_t last_number, v1::Failure::Class failure_class = v1::Failure::CLASS_UNSPECIFIED) {
    v1::WorkerMessage message;
    message.mutable_finished()->set_outcome(outcome);
    message.mutable_finished()->set_last_event_number(last_number);
    if (outcome == v1::WorkerFinished::FAILED) {
      message.mutable_finished()->mutable_failure()->set_class_(failure_class);
      message.mutable_finished()->mutable_failure()->set_message("as the worker says");
    }
    controller_->WorkerMessage(connection, message);
  }
  std::vector<std::string> Logged() {
    const std::lock_guard lock(logged_mutex_);
    return logged_;
  }
  // The stream ends and the process of launch `n` with it.
  void EndWorker(const std::shared_ptr<FakeConnection>& connection, size_t n, WorkerExit exit = {0, 0}) {
    controller_->WorkerDisconnected(connection);
    launcher_.End(launcher_.Wait(n).id, exit);
  }

  // Of the daemons started from now on.
  SchedulingPolicy scheduling_;
  int max_queued_jobs_per_user_ = 0;
  TempDir dir_;
  // Of the next daemon.
  std::vector<v1::DeviceModel> device_models_ = BuiltInDeviceModels();
  FakeClock clock_;
  FakeLauncher launcher_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<EventLog> log_;
  // Durable changes of jobs, of all daemons.
  std::atomic<int> writes_ = 0;
  // Of all daemons: "JOB ATTEMPT text".
  std::mutex logged_mutex_;
  std::vector<std::string> logged_;
  std::unique_ptr<Controller> controller_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_JOBS_CONTROLLER_FIXTURE_H_
