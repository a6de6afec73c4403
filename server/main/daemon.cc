#include "server/main/daemon.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/device_models.h"
#include "server/config/address.h"
#include "server/config/http_url.h"
#include "server/events/clock.h"
#include "server/events/event_log.h"
#include "server/files/files.h"
#include "server/gpu/gpu_ledger.h"
#include "server/gpu/gpu_monitor.h"
#include "server/http/http_server.h"
#include "server/jobs/controller.h"
#include "server/jobs/job_state.h"
#include "server/launch/export_process.h"
#include "server/launch/local_process.h"
#include "server/launch/plan_process.h"
#include "server/launch/socket_address.h"
#include "server/launch/worker_contract.h"
#include "server/main/access.h"
#include "server/main/disk_watch.h"
#include "server/main/gpus.h"
#include "server/main/grpc_listener.h"
#include "server/main/log.h"
#include "server/main/spot_notice.h"
#include "server/main/upkeep.h"
#include "server/main/worker_user.h"
#include "server/metrics/metrics.h"
#include "server/page/page_assets.h"
#include "server/scheduling/devices.h"
#include "server/service/call_limits.h"
#include "server/service/dataset_store.h"
#include "server/service/limited_service.h"
#include "server/service/rpc_metrics.h"
#include "server/service/training_service.h"
#include "server/service/upload_store.h"
#include "server/service/worker_link_service.h"
#include "server/store/store.h"
#include "server/tensorboard/exporter.h"
#include "server/web/api.h"
#include "server/web/fleet_feed.h"

namespace ampd {
namespace {

constexpr int kMaxStreamsPerConnection = 1000;
// Of an uploaded file, in a message.
constexpr int kChunkBytes = 1 << 20;
// Room around a spec or a chunk in its request.
constexpr int kMessageSlackBytes = 64 << 10;
// From a connection to its first HTTP/2 settings.
constexpr int kHandshakeTimeoutMs = 10000;
// After the last call of a connection; clients connect again by themselves.
constexpr int kIdleConnectionMs = 30 * 60 * 1000;
// For calls that are being answered; an idle client's connection uses it up as well.
constexpr std::chrono::milliseconds kShutdownGrace{500};

constexpr auto kFromDescriptor = grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD;

void LogStateChanges(const JobWrite& write) {
  for (const v1::JobEvent& event : write.events) {
    if (!event.has_state_change()) continue;
    const v1::StateChange& change = event.state_change();
    std::string text = v1::Job::State_Name(change.to());
    if (!change.reason().empty()) absl::StrAppend(&text, ": ", change.reason());
    if (change.has_failure()) {
      absl::StrAppend(&text, ": ", v1::Failure::Class_Name(change.failure().class_()), ": ",
                      change.failure().message());
    }
    Log(change.has_failure() ? Severity::kWarning : Severity::kInfo, text,
        {.job_id = write.record.job.id(), .attempt = event.attempt()});
  }
}

void ConfigureKeepalive(const v1::ServerConfig& config, grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(config.keepalive_seconds() * 1000));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(config.keepalive_timeout_seconds() * 1000));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A watcher of a quiet job gets nothing but pings.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
}

// What a connection that is none of a client may take. Those that began as HTTP/2 does are kept alive, see above.
void ConfigureHostileClients(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
}

}  // namespace

class Daemon::Impl {
 public:
  explicit Impl(const v1::ServerConfig& config)
      : config_(config),
        metrics_(AMPD_VERSION, &SystemClock()),
        call_limits_(config_.call_limits(),
                     [this](CallClass refused) { metrics_.OnCallRefused(std::string(NameOf(refused))); }) {}
  ~Impl();

  absl::Status Start(const std::function<void()>& before_jobs);
  void Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done);
  void Detach(std::function<void()> done);
  DrainRequests& drain_requests() { return drain_requests_; }

  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_->address(); }

 private:
  std::vector<std::string> DataRoots() const { return {config_.data_roots().begin(), config_.data_roots().end()}; }
  std::string JobRoot() const { return absl::StrCat(config_.state_dir(), "/jobs"); }
  std::string CheckpointRoot() const { return absl::StrCat(config_.state_dir(), "/checkpoints"); }
  std::string ArtifactRoot() const { return absl::StrCat(config_.state_dir(), "/artifacts"); }
  std::string TensorBoardRoot() const { return absl::StrCat(config_.state_dir(), "/tensorboard"); }
  std::string StartRoot() const { return absl::StrCat(config_.state_dir(), "/starts"); }
  absl::Status OpenFolders();
  PlanLimits LimitsOfPlans() const;
  absl::Status OpenStore();
  absl::Status OpenUploads();
  void StartTensorBoard();
  void MakeUpkeep();
  // Whether a process is about that may write what is the job's.
  bool HasWorker(const JobRecord& job);
  void WatchDisk();
  absl::Status FindDevices();
  absl::Status StartController();
  absl::Status ServeWorkers();
  absl::Status ServeApi();
  absl::Status ServeHttp();
  void WatchForNotice();
  std::map<std::string, int64_t> CallsUnderWay() const;

  const v1::ServerConfig config_;
  WorkerUser workers_;
  // Moved from once watched.
  Gpus gpus_;
  // GPUs first.
  std::vector<v1::Device> devices_;
  // In the order of what uses what: the last is destroyed first.
  DrainRequests drain_requests_;
  Metrics metrics_;
  CallLimits call_limits_;
  FleetFeed fleet_feed_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<TensorBoardExporter> tensorboard_;
  // Told by the log to its end, and stopped before what it uses.
  std::unique_ptr<Upkeep> upkeep_;
  std::unique_ptr<EventLog> log_;
  SpaceReport space_report_;
  std::unique_ptr<UploadStore> uploads_;
  // Ends the planners and exporters that calls wait for: these end, too, only once those have.
  StopEvent stopping_;
  std::unique_ptr<DatasetStore> datasets_;
  std::unique_ptr<LocalProcessLauncher> launcher_;
  std::optional<SpaceJudge> space_judge_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<DiskWatch> disk_watch_;
  std::unique_ptr<GpuMonitor> gpu_monitor_;
  std::unique_ptr<WorkerLinkService> worker_service_;
  std::unique_ptr<TrainingServiceImpl> api_service_;
  std::unique_ptr<SocketAddress> worker_socket_;
  std::unique_ptr<grpc::Server> worker_server_;
  std::unique_ptr<grpc::Server> api_server_;
  std::unique_ptr<GrpcListener> worker_listener_;
  std::unique_ptr<GrpcListener> api_listener_;
  std::unique_ptr<JsonApi> json_api_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<SpotNotice> spot_notice_;
  std::string grpc_address_;
};

Daemon::Impl::~Impl() {
  spot_notice_.reset();
  stopping_.Set();
  // Begun first: the calls that are waited for below may be writing to a client that reads slowly, and now give it up.
  // Its end waits for them in turn.
  std::thread http_end([this] { http_.reset(); });
  if (json_api_) json_api_->Stop();
  api_listener_.reset();
  worker_listener_.reset();
  const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
  if (api_server_) api_server_->Shutdown(deadline);
  if (worker_server_) worker_server_->Shutdown(deadline);
  api_server_.reset();
  worker_server_.reset();
  api_service_.reset();
  if (launcher_) launcher_->SetExitHandler(nullptr);
  http_end.join();
  json_api_.reset();
  gpu_monitor_.reset();
  disk_watch_.reset();
  controller_.reset();
  if (upkeep_) upkeep_->Stop();
  if (tensorboard_) tensorboard_->Stop();
}

absl::Status Daemon::Impl::Start(const std::function<void()>& before_jobs) {
  LogMissingSandbox();
  AMPD_RETURN_IF_ERROR(OpenFolders());
  AMPD_RETURN_IF_ERROR(OpenStore());
  AMPD_ASSIGN_OR_RETURN(access_, Access::Open(config_, store_.get()));
  AMPD_RETURN_IF_ERROR(OpenUploads());
  AMPD_RETURN_IF_ERROR(FindDevices());
  MakeUpkeep();
  before_jobs();
  AMPD_RETURN_IF_ERROR(StartController());
  AMPD_RETURN_IF_ERROR(ServeWorkers());
  AMPD_RETURN_IF_ERROR(ServeApi());
  upkeep_->Begin();
  WatchDisk();
  WatchForNotice();
  return ServeHttp();
}

absl::Status Daemon::Impl::OpenFolders() {
  AMPD_RETURN_IF_ERROR(MakeFolder(config_.state_dir()));
  AMPD_ASSIGN_OR_RETURN(workers_, FindWorkerUser(config_.worker_user()));
  // The mirror, which may fail or hang, is the launcher's to open.
  AMPD_RETURN_IF_ERROR(
      OpenFoldersTo(workers_, config_.state_dir(), {JobRoot(), CheckpointRoot(), ArtifactRoot(), StartRoot()}));
  return workers_.files.LetReadAllIn(StartRoot());
}

PlanLimits Daemon::Impl::LimitsOfPlans() const {
  PlanLimits limits = DefaultPlanLimits();
  limits.account = workers_.account;
  limits.stops = {&stopping_};
  return limits;
}

absl::Status Daemon::Impl::OpenStore() {
  Store::Options options;
  options.state_dir = config_.state_dir();
  options.on_commit = [this](double seconds, size_t) { metrics_.OnCommit(seconds); };
  options.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(std::move(options));
  if (absl::IsDataLoss(store.status())) {
    return absl::DataLossError(absl::StrCat(store.status().message(), "; how to go on with the last good copy is in ",
                                            "docs/operations.md, \"A damaged database\""));
  }
  AMPD_ASSIGN_OR_RETURN(store_, std::move(store));
  log_ = std::make_unique<EventLog>(store_.get());
  log_->SetListener([this](const JobWrite& write) {
    metrics_.OnWrite(write);
    fleet_feed_.OnWrite(write);
    LogStateChanges(write);
    if (tensorboard_ != nullptr) tensorboard_->OnWrite(write);
    const bool is_over = IsTerminal(write.record.job.state()) && write.record.worker.pid == 0;
    if (is_over && upkeep_ != nullptr) upkeep_->JobIsOver(write.record.job.id());
  });
  if (config_.tensorboard()) StartTensorBoard();
  AMPD_ASSIGN_OR_RETURN(const auto counters, store_->Await([](const Database& db) { return db.Counters(); }));
  AMPD_ASSIGN_OR_RETURN(const auto job_counts, store_->Await([](const Database& db) { return db.JobCounts(); }));
  WaitingJobs waiting;
  AMPD_ASSIGN_OR_RETURN(waiting.queued_since, store_->Await([](const Database& db) { return db.QueuedSince(); }));
  AMPD_ASSIGN_OR_RETURN(waiting.paused, store_->Await([](const Database& db) { return db.PauseReasons(); }));
  const absl::StatusOr<StepsOfJobs> steps = store_->Await([](const Database& db) { return db.LastSteps(); });
  // Of events that cannot be read: counters may go back, and nothing else is lost.
  if (!steps.ok()) {
    Log(Severity::kWarning, absl::StrCat("counters of jobs' steps begin anew: ", steps.status().message()));
  }
  // Where that fails a restart may give its place to another user.
  metrics_.SetUserListener([this](const std::string& user) {
    store_->Change(
        [user](Database& db) {
          return db.AddToCounters({{UserMark(user), 1}});
        },
        [](const absl::Status&) {});
  });
  metrics_.Restore(counters, job_counts, waiting, steps.ok() ? *steps : StepsOfJobs());
  metrics_.SetSampler([this] {
    return SampledFigures{log_->watchers(), log_->store_reads(), FreeBytes(config_.state_dir()), CallsUnderWay(),
                          store_->DamagedPages()};
  });
  return absl::OkStatus();
}

std::map<std::string, int64_t> Daemon::Impl::CallsUnderWay() const {
  std::map<std::string, int64_t> calls;
  for (int i = 0; i < kCallClasses; ++i) {
    const auto call_class = static_cast<CallClass>(i);
    calls[std::string(NameOf(call_class))] = call_limits_.UnderWay(call_class);
  }
  return calls;
}

void Daemon::Impl::MakeUpkeep() {
  Upkeep::Options options;
  options.retention = config_.retention();
  options.checkpoint_root = CheckpointRoot();
  options.mirror_root = config_.mirror_dir();
  options.file_roots = {JobRoot(), ArtifactRoot()};
  options.tensorboard_root = TensorBoardRoot();
  options.uploads = uploads_.get();
  options.has_worker = [this](const JobRecord& job) { return HasWorker(job); };
  options.log = [](const std::string& text, const LogSubject& about) { Log(Severity::kInfo, text, about); };
  upkeep_ = std::make_unique<Upkeep>(std::move(options), store_.get(), &SystemClock());
  // No job goes on before.
  const absl::Status looked = upkeep_->LookAtClock();
  if (!looked.ok()) Log(Severity::kWarning, absl::StrCat("upkeep: ", looked.message()));
}

// One of another attempt than the store knows, too, as with a database that was restored.
bool Daemon::Impl::HasWorker(const JobRecord& job) {
  if (job.worker.pid != 0 && launcher_->IsAlive(job.worker)) return true;
  const std::vector<FoundWorker> workers = launcher_->FindWorkers();
  return std::any_of(workers.begin(), workers.end(),
                     [&](const FoundWorker& worker) { return worker.job_id == job.job.id(); });
}

void Daemon::Impl::WatchDisk() {
  if (config_.min_free_bytes() == 0) return;
  DiskWatch::Options options;
  options.directory = config_.state_dir();
  options.report = [this](const std::string& shortage) {
    space_report_.Set(shortage);
    controller_->SetDiskShortage(shortage);
  };
  options.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  disk_watch_ = std::make_unique<DiskWatch>(std::move(options), &*space_judge_);
}

absl::Status Daemon::Impl::OpenUploads() {
  const auto all = std::make_shared<ByteBudget>(config_.max_uploads_bytes());
  // What is free below min_free_bytes is for what running jobs still write.
  const auto shortage = [this] { return space_report_.Get(); };
  AMPD_ASSIGN_OR_RETURN(
      uploads_, UploadStore::Open(absl::StrCat(config_.state_dir(), "/uploads"),
                                  {config_.max_upload_bytes(), all, config_.max_model_bytes_per_user(), shortage},
                                  workers_.files));
  DatasetStore::Options datasets;
  datasets.folder = absl::StrCat(config_.state_dir(), "/datasets");
  datasets.limits.file_bytes = config_.max_upload_bytes();
  datasets.limits.all = all;
  datasets.workers = workers_.files;
  datasets.limits.shortage = shortage;
  datasets.bytes_per_user = config_.max_dataset_bytes_per_user();
  datasets.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  AMPD_ASSIGN_OR_RETURN(datasets_, DatasetStore::Open(std::move(datasets)));
  return absl::OkStatus();
}

void Daemon::Impl::StartTensorBoard() {
  TensorBoardExporter::Options options;
  options.directory = TensorBoardRoot();
  options.artifact_root = ArtifactRoot();
  options.find_job = [this](const std::string& id) -> absl::StatusOr<v1::Job> {
    AMPD_ASSIGN_OR_RETURN(JobRecord record, store_->Await([&](const Database& db) { return db.FindJob(id); }));
    return std::move(record.job);
  };
  options.log = [](const std::string& text, const LogSubject& about) { Log(Severity::kWarning, text, about); };
  tensorboard_ = std::make_unique<TensorBoardExporter>(std::move(options), &SystemClock());
  tensorboard_->Start(log_.get());
}

absl::Status Daemon::Impl::FindDevices() {
  gpus_ = FindGpus(config_.nvml_library(), config_.worker(), LimitsOfPlans());
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
  OtherUser user;
  user.account = workers_.account;
  user.job_roots = {CheckpointRoot(), ArtifactRoot()};
  user.mirror_root = config_.mirror_dir();
  user.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  AMPD_ASSIGN_OR_RETURN(launcher_, LocalProcessLauncher::Create(config_.worker(), config_.state_dir(), user));
  ControllerOptions options;
  options.devices = devices_;
  AMPD_ASSIGN_OR_RETURN(options.device_models, DeviceModelsWith(config_.device_models()));
  options.same_pid_namespace = InFirstPidNamespace();
  options.log = [](const std::string& text, const LogSubject& about) { Log(Severity::kWarning, text, about); };
  space_judge_.emplace(config_.min_free_bytes());
  options.disk_shortage = space_judge_->Look(FreeBytes(config_.state_dir()));
  space_report_.Set(options.disk_shortage);
  options.checkpoint_root = CheckpointRoot();
  options.mirror_root = config_.mirror_dir();
  options.artifact_root = ArtifactRoot();
  options.upload_dir = uploads_->folder();
  options.start_root = StartRoot();
  options.data_roots = AllDataRoots(DataRoots(), datasets_.get());
  options.reattach_timeout = absl::Seconds(config_.reattach_timeout_seconds());
  options.preempt_grace = absl::Seconds(config_.preemption_grace_seconds());
  options.heartbeat_timeout = absl::Seconds(config_.heartbeat_timeout_seconds());
  options.scheduling.max_running_devices_per_user = config_.max_running_devices_per_user();
  options.scheduling.max_sharing = config_.max_jobs_per_shared_device();
  options.scheduling.min_run = absl::Seconds(config_.preemption_min_run_seconds());
  options.usage_half_life = absl::Seconds(config_.fair_share_half_life_seconds());
  options.max_queued_jobs_per_user = config_.max_queued_jobs_per_user();
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
  const std::string path = absl::StrCat(config_.state_dir(), "/", kWorkerSocketName);
  GrpcListener::Options listening;
  listening.name = "the workers' socket";
  listening.bounds = BoundsOfWorkers();
  listening.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  listening.on_refused = [this](const char* reason) { metrics_.OnConnectionRefused("workers", reason); };
  listening.on_pause = [this] { metrics_.OnAcceptPause("workers"); };
  auto listener = GrpcListener::OnSocket(worker_socket_->path(), std::move(listening));
  if (!listener.ok()) return Annotate(listener.status(), absl::StrCat("cannot listen on the socket ", path));
  worker_listener_ = *std::move(listener);
  grpc::ServerBuilder builder;
  auto acceptor =
      builder.experimental().AddExternalConnectionAcceptor(kFromDescriptor, grpc::InsecureServerCredentials());
  builder.RegisterService(worker_service_.get());
  builder.SetMaxReceiveMessageSize(kMaxLinkMessageBytes);
  worker_server_ = builder.BuildAndStart();
  if (worker_server_ == nullptr) return absl::UnavailableError(absl::StrCat("cannot serve at the socket ", path));
  AMPD_RETURN_IF_ERROR(workers_.files.LetConnect(path));
  return worker_listener_->Start(std::move(acceptor));
}

absl::Status Daemon::Impl::ServeApi() {
  TrainingServiceImpl::Options options;
  options.version = AMPD_VERSION;
  options.start_time = SystemClock().Now();
  options.checkpoint_root = CheckpointRoot();
  options.mirror_root = config_.mirror_dir();
  options.artifact_root = ArtifactRoot();
  options.uploads = uploads_.get();
  options.drain_server = [this](std::optional<absl::Duration> timeout, const std::string& reason) {
    drain_requests_.Ask({timeout, reason});
  };
  options.gate = access_->gate();
  options.tokens = access_->tokens();
  options.submit.data_roots = DataRoots();
  options.submit.checkpoint_root = CheckpointRoot();
  options.submit.mirror_root = config_.mirror_dir();
  options.submit.start_root = StartRoot();
  options.submit.uploads = uploads_.get();
  options.submit.datasets = datasets_.get();
  options.submit.devices = devices_;
  options.submit.user_limits = {config_.max_running_devices_per_user(), config_.auth().max_priority()};
  options.submit.workers = workers_.files;
  AMPD_ASSIGN_OR_RETURN(options.submit.device_models, DeviceModelsWith(config_.device_models()));
  options.submit.max_spec_bytes = config_.max_spec_bytes();
  options.submit.max_sweep_bytes = config_.max_sweep_bytes();
  options.submit.plans.files = {config_.worker()};
  options.submit.default_precision_mode = config_.default_precision_mode();
  options.export_scratch_dir = absl::StrCat(config_.state_dir(), "/exports");
  options.export_runner = [this](const v1::ExportRequest& request, const std::string& path, int64_t checkpoint_bytes,
                                 const StopEvent& left) -> absl::Status {
    if (const std::string shortage = space_report_.Get(); !shortage.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat("no model is exported: ", shortage));
    }
    ExchangeLimits limits = ExportLimits(checkpoint_bytes);
    limits.account = workers_.account;
    limits.stops = {&stopping_, &left};
    return RunExportProcess(config_.worker(), request, path, limits);
  };
  api_service_ = MakeLimitedTrainingService(
      &call_limits_, std::move(options),
      [worker = config_.worker(), limits = LimitsOfPlans()](const v1::PlanRequest& request) {
        return RunPlanProcess(worker, request, limits);
      },
      controller_.get(), log_.get());

  AMPD_ASSIGN_OR_RETURN(Address address, ParseAddress(config_.listen()));
  // Both hold for every server built from here on, hence not for the workers' socket.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureKeepalive(config_, builder);
  ConfigureHostileClients(builder);
  grpc::ResourceQuota quota("api");
  quota.Resize(static_cast<size_t>(config_.call_limits().connection_bytes()));
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(std::max(static_cast<int>(config_.max_spec_bytes()), kChunkBytes) +
                                   kMessageSlackBytes);
  GrpcListener::Options listening;
  listening.name = "gRPC";
  listening.bounds = BoundsOfPort();
  listening.user_timeout = std::chrono::seconds(config_.keepalive_timeout_seconds());
  listening.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  listening.on_refused = [this](const char* reason) { metrics_.OnConnectionRefused("grpc", reason); };
  listening.on_pause = [this] { metrics_.OnAcceptPause("grpc"); };
  auto listener = GrpcListener::OnPort(address, std::move(listening));
  if (!listener.ok()) {
    return Annotate(listener.status(), absl::StrCat("cannot listen on ", config_.listen(), " for gRPC"));
  }
  api_listener_ = *std::move(listener);
  address.port = api_listener_->port();
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(kFromDescriptor, access_->Credentials());
  builder.RegisterService(api_service_.get());
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeRpcMetrics([this](const std::string& method, const std::string& code, double seconds) {
    metrics_.OnRpc(method, code, seconds);
  }));
  interceptors.push_back(access_->gate()->MakeInterceptors());
  interceptors.push_back(call_limits_.MakeInterceptors());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  api_server_ = builder.BuildAndStart();
  if (api_server_ == nullptr) return absl::UnavailableError("gRPC's server does not start");
  AMPD_RETURN_IF_ERROR(api_listener_->Start(std::move(acceptor)));
  api_server_->GetHealthCheckService()->SetServingStatus(v1::TrainingService::service_full_name(), true);
  grpc_address_ = address.ToString();
  return absl::OkStatus();
}

void Daemon::Impl::WatchForNotice() {
  SpotNotice::Options options;
  options.file = config_.spot_notice_file();
  // Checked with the configuration.
  if (!config_.spot_notice_url().empty()) options.url = *ParseHttpUrl(config_.spot_notice_url());
  if (options.file.empty() && !options.url) return;
  options.log = [](const std::string& text) { Log(Severity::kWarning, text); };
  spot_notice_ = std::make_unique<SpotNotice>(std::move(options), [this](const std::string& what) {
    drain_requests_.Ask({absl::Seconds(config_.spot_notice_seconds()), absl::StrCat("notice at ", what)});
  });
}

absl::Status Daemon::Impl::ServeHttp() {
  AMPD_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.http()));
  JsonApi::Options api;
  const bool certificates = !config_.tls().client_ca().empty();
  api.place.is_loopback = address.IsLoopback();
  api.place.insecure = config_.insecure();
  api.place.tls = config_.tls().http();
  api.place.tokens = config_.auth().tokens();
  api.place.certificates = certificates;
  grpc::ChannelArguments arguments;
  // A page of jobs may be large; it is made within the limits of this process either way.
  arguments.SetMaxReceiveMessageSize(-1);
  api.gate = access_->gate();
  api.audit = access_->audit();
  api.log = log_.get();
  api.fleet = &fleet_feed_;
  json_api_ = std::make_unique<JsonApi>(std::move(api), api_server_->InProcessChannel(arguments));
  HttpServer::Options options;
  options.listen = config_.http();
  options.tls = access_->HttpTls();
  options.client_certificates = certificates && config_.tls().http();
  json_api_->AddRoutes(&options.router);
  AddAssets(PageAssets(), &options.router);
  options.listener = [this](const std::string& route, int status) { metrics_.OnHttp(route, status); };
  options.on_refused = [this](const char* reason) { metrics_.OnConnectionRefused("http", reason); };
  options.on_pause = [this] { metrics_.OnAcceptPause("http"); };
  options.metrics = [this] { return metrics_.Serialize(); };
  options.ready = [this] {
    return controller_->draining() ? absl::UnavailableError("the server is shutting down") : absl::OkStatus();
  };
  options.ready_note = [this] {
    const std::string shortage = space_report_.Get();
    return shortage.empty() ? "" : absl::StrCat("no job starts: ", shortage);
  };
  AMPD_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(options)));
  return absl::OkStatus();
}

void Daemon::Impl::Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done) {
  api_server_->GetHealthCheckService()->SetServingStatus(false);
  controller_->Drain(timeout, reason, std::move(done));
}

void Daemon::Impl::Detach(std::function<void()> done) {
  api_server_->GetHealthCheckService()->SetServingStatus(false);
  controller_->Detach(std::move(done));
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const v1::ServerConfig& config,
                                                      const std::function<void()>& before_jobs) {
  auto impl = std::make_unique<Impl>(config);
  AMPD_RETURN_IF_ERROR(impl->Start(before_jobs));
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

const std::string& Daemon::grpc_address() const { return impl_->grpc_address(); }
const std::string& Daemon::http_address() const { return impl_->http_address(); }

void Daemon::Drain(absl::Duration timeout, const std::string& reason, std::function<void(absl::Status)> done) {
  impl_->Drain(timeout, reason, std::move(done));
}

void Daemon::Detach(std::function<void()> done) { impl_->Detach(std::move(done)); }

DrainRequests& Daemon::drain_requests() { return impl_->drain_requests(); }

}  // namespace ampd
