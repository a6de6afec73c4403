// The daemon's services over real channels, with a real store and controller; workers are real ones too, on threads of
// the test, with trainers that are functions.
#ifndef AMPD_TESTS_UNIT_SERVER_SERVICE_SERVICE_FIXTURE_H_
#define AMPD_TESTS_UNIT_SERVER_SERVICE_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/auth/audit_log.h"
#include "server/auth/tokens.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/jobs/controller.h"
#include "server/launch/socket_address.h"
#include "server/scheduling/devices.h"
#include "server/service/call_gate.h"
#include "server/service/training_service.h"
#include "server/service/worker_link_service.h"
#include "server/store/store.h"
#include "server/worker/worker.h"
#include "tests/unit/server/worker/fake_trainer.h"

namespace ampd {

// Workers as threads.
class ThreadLauncher final : public Launcher {
 public:
  ThreadLauncher(std::string uri, std::string work_dir, FakeTrainer::Body body)
      : uri_(std::move(uri)), work_dir_(std::move(work_dir)), body_(std::move(body)) {}
  ~ThreadLauncher() override { Join(); }

  void SetController(Controller* controller) {
    const std::lock_guard lock(mutex_);
    controller_ = controller;
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  absl::StatusOr<WorkerProcess> Launch(const LaunchRequest& request) override {
    const WorkerProcess process{static_cast<int64_t>(1000000 + threads_.size()), 1};
    WorkerOptions options;
    options.daemon_uri = uri_;
    options.work_dir = work_dir_;
    options.identity = {request.job_id, request.attempt, request.one_time_token, static_cast<int32_t>(process.pid)};
    options.first_backoff = std::chrono::milliseconds(5);
    options.last_backoff = std::chrono::milliseconds(20);
    options.first_attach_timeout = std::chrono::milliseconds(2000);
    {
      const std::lock_guard lock(mutex_);
      alive_[process.pid] = true;
    }
    threads_.emplace_back([this, options, process] { Work(options, process); });
    return process;
  }
  // A thread cannot be killed: it counts as dead, and its worker ends when the daemon refuses it.
  void Kill(const WorkerProcess& process) override { Ended(process, WorkerExit{-1, SIGKILL}); }
  bool IsAlive(const WorkerProcess& process) override {
    const std::lock_guard lock(mutex_);
    return alive_[process.pid];
  }
  absl::StatusOr<WorkerProcess> Identify(int64_t pid) override { return WorkerProcess{pid, 1}; }

 private:
  void Work(const WorkerOptions& options, const WorkerProcess& process) {
    WorkerExitCode code;
    {
      Worker worker(options,
                    [this](const ResolvedJobSpec&, const train::TrainerOptions&,
                           train::TrainerObserver* observer) -> absl::StatusOr<std::unique_ptr<train::Trainer>> {
                      return std::make_unique<FakeTrainer>(body_, observer);
                    });
      code = worker.Run();
    }
    Ended(process, WorkerExit{code, 0});
  }

  void Ended(const WorkerProcess& process, const WorkerExit& exit) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(alive_[process.pid], false)) return;
    if (controller_ != nullptr) controller_->WorkerExited(process, exit);
  }

  const std::string uri_;
  const std::string work_dir_;
  const FakeTrainer::Body body_;
  std::mutex mutex_;
  Controller* controller_ = nullptr;
  std::map<int64_t, bool> alive_;
  std::vector<std::thread> threads_;
};

class ServiceFixture : public testing::Test {
 protected:
  ServiceFixture() : state_dir_(absl::StrCat(testing::TempDir(), "/service_test_", getpid())) {
    std::filesystem::remove_all(state_dir_);
    std::filesystem::create_directories(state_dir_);
    socket_ = std::make_unique<SocketAddress>(SocketAddress::Open(state_dir_, "worker.sock").value());
  }
  ~ServiceFixture() override {
    EndWorkers();
    StopDaemon();
    launcher_.reset();
    std::filesystem::remove_all(state_dir_);
  }

  // What every worker's trainer does.
  void Train(FakeTrainer::Body body) {
    launcher_ = std::make_unique<ThreadLauncher>(socket_->uri(), state_dir_, std::move(body));
    StartDaemon();
  }

  void StartDaemon() {
    store_ = Store::Open({.state_dir = state_dir_}).value();
    log_ = std::make_unique<EventLog>(store_.get());
    uploads_ = UploadStore::Open(state_dir_ + "/uploads", {.file_bytes = 200000}).value();
    datasets_ = DatasetStore::Open({.folder = state_dir_ + "/datasets", .limits = {.file_bytes = 200000}}).value();
    ControllerOptions options;
    options.devices = devices_.empty() ? CpuDevices(1).value() : devices_;
    options.checkpoint_root = state_dir_ + "/checkpoints";
    options.artifact_root = state_dir_ + "/artifacts";
    options.upload_dir = state_dir_ + "/uploads";
    options.start_root = state_dir_ + "/starts";
    controller_ =
        Controller::Start(options, store_.get(), log_.get(), launcher_.get(), nullptr, &SystemClock()).value();
    launcher_->SetController(controller_.get());
    worker_service_ = std::make_unique<WorkerLinkService>(controller_.get());
    TrainingServiceImpl::Options service_options{
        "1.2.3", absl::UnixEpoch(), options.checkpoint_root, options.artifact_root, {}};
    service_options.uploads = uploads_.get();
    service_options.stall_limit = stall_limit_;
    service_options.submit.data_roots = {"/data"};
    service_options.submit.checkpoint_root = options.checkpoint_root;
    service_options.submit.mirror_root = state_dir_ + "/mirror";
    service_options.submit.start_root = options.start_root;
    service_options.submit.uploads = uploads_.get();
    service_options.submit.datasets = datasets_.get();
    service_options.submit.devices = options.devices;
    service_options.submit.user_limits = user_limits_;
    service_options.submit.max_spec_bytes = 10000;
    service_options.submit.default_precision_mode = v1::PrecisionSpec::BF16;
    if (asks_for_tokens_) {
      tokens_ = TokenBook::Open(store_.get(), &SystemClock()).value();
      const auto sync = [this](int fd) {
        ++audit_syncs_;
        return fdatasync(fd);
      };
      audit_ = AuditLog::Open({.path = state_dir_ + "/audit.log", .sync = sync}).value();
      gate_ = std::make_unique<CallGate>(CallGate::Options{.tokens = tokens_.get(), .audit = audit_.get()});
      tokens_->SetRevokeListener([this](const std::string& id) { gate_->EndCalls(id); });
      service_options.tokens = tokens_.get();
      service_options.gate = gate_.get();
    }
    service_ = std::make_unique<TrainingServiceImpl>(
        service_options, [this](const v1::PlanRequest& request) { return Plan(request); }, controller_.get(),
        log_.get());
    grpc::ServerBuilder workers;
    workers.AddListeningPort(socket_->uri(), grpc::InsecureServerCredentials());
    workers.RegisterService(worker_service_.get());
    worker_server_ = workers.BuildAndStart();
    grpc::ServerBuilder api;
    int port = 0;
    api.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    api.RegisterService(service_.get());
    if (gate_ != nullptr) {
      std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
      interceptors.push_back(gate_->MakeInterceptors());
      api.experimental().SetInterceptorCreators(std::move(interceptors));
    }
    server_ = api.BuildAndStart();
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    stub_ = v1::TrainingService::NewStub(channel_);
  }

  // On a thread of the service's: what a planner writes can be read once a call that asked it was answered.
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request) {
    std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)> planner;
    {
      const std::lock_guard lock(planner_mutex_);
      planner = planner_;
    }
    absl::StatusOr<v1::PlanResponse> response = planner(request);
    const std::lock_guard lock(planner_mutex_);
    planner = nullptr;
    return response;
  }
  void SetPlanner(std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)> planner) {
    const std::lock_guard lock(planner_mutex_);
    planner_ = std::move(planner);
  }

  void EndWorkers() {
    if (server_ == nullptr) return;
    std::promise<void> drained;
    controller_->Drain(absl::Seconds(20), [&drained](const absl::Status&) { drained.set_value(); });
    drained.get_future().wait();
  }

  // As if the daemon died: workers live on.
  void StopDaemon() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    worker_server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    worker_server_.reset();
    service_.reset();
    tokens_.reset();
    gate_.reset();
    audit_.reset();
    launcher_->SetController(nullptr);
    controller_.reset();
    datasets_.reset();
    uploads_.reset();
    log_.reset();
    store_.reset();
  }

  static v1::CreateJobRequest GoodRequest() {
    v1::CreateJobRequest request;
    v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("test");
    spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
    spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
    spec.mutable_data()->mutable_train()->mutable_glyphs();
    return request;
  }

  grpc::Status Create(const v1::CreateJobRequest& request, v1::Job* job) {
    grpc::ClientContext context;
    const grpc::Status status = stub_->CreateJob(&context, request, job);
    const std::lock_guard lock(planner_mutex_);
    return status;
  }
  std::string CreateGood() {
    v1::Job job;
    const grpc::Status status = Create(GoodRequest(), &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job.id();
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::Job job;
    const grpc::Status status = stub_->GetJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }

  // One WatchJob call; `until` ends it early by returning true.
  grpc::Status Watch(const std::string& id, uint64_t after, std::vector<v1::JobEvent>* events,
                     const std::function<bool(const v1::JobEvent&)>& until = nullptr) {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_job_id(id);
    request.set_after_sequence(after);
    const auto reader = stub_->WatchJob(&context, request);
    v1::JobEvent event;
    while (reader->Read(&event)) {
      events->push_back(event);
      if (until && until(event)) context.TryCancel();
    }
    return reader->Finish();
  }

  static void ExpectGapless(const std::vector<v1::JobEvent>& events, uint64_t after) {
    for (const v1::JobEvent& event : events) {
      ASSERT_EQ(event.first_sequence(), after + 1);
      after = event.sequence();
    }
  }
  static std::vector<std::string> Logs(const std::vector<v1::JobEvent>& events) {
    std::vector<std::string> texts;
    for (const v1::JobEvent& event : events) {
      if (event.has_log()) texts.push_back(event.log().text());
    }
    return texts;
  }
  static v1::Job::State LastState(const std::vector<v1::JobEvent>& events) {
    v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
    for (const v1::JobEvent& event : events) {
      if (event.has_state_change()) state = event.state_change().to();
    }
    return state;
  }

  // Without, everybody may everything.
  bool asks_for_tokens_ = false;
  absl::Duration stall_limit_ = absl::Minutes(5);
  // Empty: one CPU device.
  std::vector<v1::Device> devices_;
  UserLimits user_limits_;
  std::string state_dir_;
  std::mutex planner_mutex_;
  std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)> planner_ = [](const v1::PlanRequest&) {
    v1::PlanResponse response;
    response.mutable_plan()->set_parameters(7850);
    return response;
  };
  std::unique_ptr<SocketAddress> socket_;
  std::unique_ptr<ThreadLauncher> launcher_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<UploadStore> uploads_;
  std::unique_ptr<DatasetStore> datasets_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<WorkerLinkService> worker_service_;
  std::unique_ptr<TokenBook> tokens_;
  std::unique_ptr<AuditLog> audit_;
  // Lines of it that were forced to disk.
  std::atomic<int> audit_syncs_{0};
  std::unique_ptr<CallGate> gate_;
  std::unique_ptr<TrainingServiceImpl> service_;
  std::unique_ptr<grpc::Server> worker_server_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_SERVICE_SERVICE_FIXTURE_H_
