#include "server/main/daemon.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/device_models.h"
#include "server/config/address.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/gpu/gpu_ledger.h"
#include "server/gpu/gpu_monitor.h"
#include "server/http/http_server.h"
#include "server/jobs/controller.h"
#include "server/launch/local_process.h"
#include "server/launch/plan_process.h"
#include "server/launch/socket_address.h"
#include "server/launch/worker_contract.h"
#include "server/main/gpus.h"
#include "server/main/log.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/devices.h"
#include "server/service/training_service.h"
#include "server/service/worker_link_service.h"
#include "server/store/store.h"
#include "server/tensorboard/exporter.h"

namespace ampd {
namespace {

constexpr int kMaxStreamsPerConnection = 1000;
// Room around a spec in its request.
constexpr int kMessageSlackBytes = 64 << 10;
// For calls that are being answered; an idle client's connection uses it up as well.
constexpr std::chrono::milliseconds kShutdownGrace{500};

absl::Status MakeStateDir(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) return absl::OkStatus();
  return absl::Status(absl::ErrnoToStatusCode(error.value()),
                      absl::StrCat("cannot make the state directory ", directory, ": ", error.message()));
}

void LogStateChanges(const JobWrite& write) {
  for (const v1::JobEvent& event : write.events) {
    if (!event.has_state_change()) continue;
    const v1::StateChange& change = event.state_change();
    std::string text = absl::StrCat("job ", write.record.job.id(), " ", v1::Job::State_Name(change.to()));
    if (!change.reason().empty()) absl::StrAppend(&text, ": ", change.reason());
    if (change.has_failure()) {
      absl::StrAppend(&text, ": ", v1::Failure::Class_Name(change.failure().class_()), ": ",
                      change.failure().message());
    }
    Log(change.has_failure() ? Severity::kWarning : Severity::kInfo, text);
  }
}

void ConfigureKeepalive(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
}

}  // namespace

class Daemon::Impl {
 public:
  explicit Impl(const v1::ServerConfig& config) : config_(config), metrics_(AMPD_VERSION, &SystemClock()) {}
  ~Impl();

  absl::Status Start();
  void Drain(absl::Duration timeout, std::function<void(absl::Status)> done);

  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_->address(); }

 private:
  std::vector<std::string> DataRoots() const { return {config_.data_roots().begin(), config_.data_roots().end()}; }
  std::string CheckpointRoot() const { return absl::StrCat(config_.state_dir(), "/checkpoints"); }
  std::string ArtifactRoot() const { return absl::StrCat(config_.state_dir(), "/artifacts"); }
  absl::Status OpenStore();
  void StartTensorBoard();
  absl::Status FindDevices();
  absl::Status StartController();
  absl::Status ServeWorkers();
  absl::Status ServeApi();
  absl::Status ServeHttp();

  const v1::ServerConfig config_;
  // Moved from once watched.
  Gpus gpus_;
  // GPUs first.
  std::vector<v1::Device> devices_;
  // In the order of what uses what: the last is destroyed first.
  Metrics metrics_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TensorBoardExporter> tensorboard_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<LocalProcessLauncher> launcher_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<GpuMonitor> gpu_monitor_;
  std::unique_ptr<WorkerLinkService> worker_service_;
  std::unique_ptr<TrainingServiceImpl> api_service_;
  std::unique_ptr<SocketAddress> worker_socket_;
  std::unique_ptr<grpc::Server> worker_server_;
  std::unique_ptr<grpc::Server> api_server_;
  std::unique_ptr<HttpServer> http_;
  std::string grpc_address_;
};

Daemon::Impl::~Impl() {
  // civetweb takes up to two seconds to notice.
  std::thread http_end([this] { http_.reset(); });
  const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
  if (api_server_) api_server_->Shutdown(deadline);
  if (worker_server_) worker_server_->Shutdown(deadline);
  api_server_.reset();
  worker_server_.reset();
  api_service_.reset();
  if (launcher_) launcher_->SetExitHandler(nullptr);
  http_end.join();
  gpu_monitor_.reset();
  controller_.reset();
  if (tensorboard_) tensorboard_->Stop();
}

absl::Status Daemon::Impl::Start() {
  AMPD_RETURN_IF_ERROR(MakeStateDir(config_.state_dir()));
  AMPD_RETURN_IF_ERROR(OpenStore());
  AMPD_RETURN_IF_ERROR(FindDevices());
  AMPD_RETURN_IF_ERROR(StartController());
  AMPD_RETURN_IF_ERROR(ServeWorkers());
  AMPD_RETURN_IF_ERROR(ServeApi());
  return ServeHttp();
}

absl::Status Daemon::Impl::OpenStore() {
  Store::Options options;
  options.state_dir = config_.state_dir();
  options.on_commit = [this](double seconds, size_t) { metrics_.OnCommit(seconds); };
  AMPD_ASSIGN_OR_RETURN(store_, Store::Open(std::move(options)));
  log_ = std::make_unique<EventLog>(store_.get());
  log_->SetListener([this](const JobWrite& write) {
    metrics_.OnWrite(write);
    LogStateChanges(write);
    if (tensorboard_ != nullptr) tensorboard_->OnWrite(write);
  });
  if (config_.tensorboard()) StartTensorBoard();
  AMPD_ASSIGN_OR_RETURN(const auto counters, store_->Await([](const Database& db) { return db.Counters(); }));
  AMPD_ASSIGN_OR_RETURN(const auto job_counts, store_->Await([](const Database& db) { return db.JobCounts(); }));
  metrics_.Restore(counters, job_counts);
  return absl::OkStatus();
}

void Daemon::Impl::StartTensorBoard() {
  TensorBoardExporter::Options options;
  options.directory = absl::StrCat(config_.state_dir(), "/tensorboard");
  options.artifact_root = ArtifactRoot();
  options.find_job = [this](const std::string& id) -> absl::StatusOr<v1::Job> {
    AMPD_ASSIGN_OR_RETURN(JobRecord record, store_->Await([&](const Database& db) { return db.FindJob(id); }));
    return std::move(record.job);
  };
  options.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  tensorboard_ = std::make_unique<TensorBoardExporter>(std::move(options), &SystemClock());
  tensorboard_->Start(log_.get());
}

absl::Status Daemon::Impl::FindDevices() {
  gpus_ = FindGpus(config_.nvml_library(), config_.worker());
  devices_ = GpuLedger(gpus_.devices).Devices();
  const int cpu_devices = config_.has_cpu_devices() ? config_.cpu_devices() : (AnyUsable(devices_) ? 0 : 1);
  if (cpu_devices > 0) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<v1::Device> cpus, CpuDevices(cpu_devices));
    devices_.insert(devices_.end(), cpus.begin(), cpus.end());
  }
  if (devices_.empty()) return absl::InvalidArgumentError("cpu_devices: 0, and there is no GPU: nothing to train on");
  return absl::OkStatus();
}

absl::Status Daemon::Impl::StartController() {
  AMPD_ASSIGN_OR_RETURN(launcher_, LocalProcessLauncher::Create(config_.worker(), config_.state_dir()));
  ControllerOptions options;
  options.devices = devices_;
  AMPD_ASSIGN_OR_RETURN(options.device_models, DeviceModelsWith(config_.device_models()));
  options.same_pid_namespace = InFirstPidNamespace();
  options.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  options.checkpoint_root = CheckpointRoot();
  options.artifact_root = ArtifactRoot();
  options.data_roots = DataRoots();
  options.reattach_timeout = absl::Seconds(config_.reattach_timeout_seconds());
  options.heartbeat_timeout = absl::Seconds(config_.heartbeat_timeout_seconds());
  AMPD_ASSIGN_OR_RETURN(controller_, Controller::Start(std::move(options), store_.get(), log_.get(), launcher_.get(),
                                                       &metrics_, &SystemClock()));
  launcher_->SetExitHandler(
      [this](const WorkerProcess& process, const WorkerExit& exit) { controller_->WorkerExited(process, exit); });
  if (gpus_.nvml == nullptr) return absl::OkStatus();
  GpuMonitorOptions monitor;
  monitor.publish = [this](std::vector<v1::Device> devices) { controller_->UpdateDevices(std::move(devices)); };
  monitor.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  gpu_monitor_ =
      std::make_unique<GpuMonitor>(std::move(gpus_.nvml), std::move(gpus_.devices), std::move(monitor), &SystemClock());
  return absl::OkStatus();
}

absl::Status Daemon::Impl::ServeWorkers() {
  AMPD_ASSIGN_OR_RETURN(SocketAddress socket, SocketAddress::Open(config_.state_dir(), kWorkerSocketName));
  worker_socket_ = std::make_unique<SocketAddress>(std::move(socket));
  worker_service_ = std::make_unique<WorkerLinkService>(controller_.get());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(worker_socket_->uri(), grpc::InsecureServerCredentials());
  builder.RegisterService(worker_service_.get());
  worker_server_ = builder.BuildAndStart();
  if (worker_server_ != nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on the socket ", config_.state_dir(), "/", kWorkerSocketName));
}

absl::Status Daemon::Impl::ServeApi() {
  TrainingServiceImpl::Options options;
  options.version = AMPD_VERSION;
  options.start_time = SystemClock().Now();
  options.checkpoint_root = CheckpointRoot();
  options.artifact_root = ArtifactRoot();
  options.submit.data_roots = DataRoots();
  options.submit.devices = devices_;
  AMPD_ASSIGN_OR_RETURN(options.submit.device_models, DeviceModelsWith(config_.device_models()));
  options.submit.max_spec_bytes = config_.max_spec_bytes();
  options.submit.default_precision_mode = config_.default_precision_mode();
  api_service_ = std::make_unique<TrainingServiceImpl>(
      std::move(options),
      [worker = config_.worker()](const v1::PlanRequest& request) {
        return RunPlanProcess(worker, request, DefaultPlanLimits());
      },
      controller_.get(), log_.get());

  AMPD_ASSIGN_OR_RETURN(Address address, ParseAddress(config_.listen()));
  // Both hold for every server built from here on, hence not for the workers' socket.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureKeepalive(builder);
  // Else a second daemon could take half of this one's calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(config_.max_spec_bytes()) + kMessageSlackBytes);
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &address.port);
  builder.RegisterService(api_service_.get());
  api_server_ = builder.BuildAndStart();
  if (api_server_ == nullptr || address.port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", config_.listen(), " for gRPC: is it taken?"));
  }
  api_server_->GetHealthCheckService()->SetServingStatus(v1::TrainingService::service_full_name(), true);
  grpc_address_ = address.ToString();
  return absl::OkStatus();
}

absl::Status Daemon::Impl::ServeHttp() {
  HttpServer::Options options;
  options.listen = config_.http();
  options.metrics = [this] { return metrics_.Serialize(); };
  options.ready = [this] {
    return controller_->draining() ? absl::UnavailableError("the server is shutting down") : absl::OkStatus();
  };
  AMPD_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(options)));
  return absl::OkStatus();
}

void Daemon::Impl::Drain(absl::Duration timeout, std::function<void(absl::Status)> done) {
  api_server_->GetHealthCheckService()->SetServingStatus(false);
  controller_->Drain(timeout, std::move(done));
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const v1::ServerConfig& config) {
  auto impl = std::make_unique<Impl>(config);
  AMPD_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

const std::string& Daemon::grpc_address() const { return impl_->grpc_address(); }
const std::string& Daemon::http_address() const { return impl_->http_address(); }

void Daemon::Drain(absl::Duration timeout, std::function<void(absl::Status)> done) {
  impl_->Drain(timeout, std::move(done));
}

}  // namespace ampd
