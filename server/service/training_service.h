// TrainingService: each handler converts, posts to whoever owns the matter, and converts the answer back.
#ifndef AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_
#define AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "server/auth/tokens.h"
#include "server/events/event_log.h"
#include "server/jobs/controller.h"
#include "server/service/call_gate.h"
#include "server/service/checkpoint_copies.h"
#include "server/service/grpc_status.h"
#include "server/service/model_export.h"
#include "server/service/stall_watch.h"
#include "server/service/submit.h"
#include "server/service/verified_files.h"
#include "server/service/work_pool.h"

namespace ampd {

class TrainingServiceImpl : public v1::TrainingService::CallbackService {
 public:
  struct Options {
    std::string version;
    absl::Time start_time;
    // As ControllerOptions::checkpoint_root.
    std::string checkpoint_root;
    // As ControllerOptions::artifact_root.
    std::string artifact_root;
    Submitter::Options submit;
    // Outlives the service; required.
    UploadStore* uploads = nullptr;
    // Of ModelExporter.
    std::string export_scratch_dir;
    ModelExporter::Runner export_runner;
    // As ControllerOptions::mirror_root.
    std::string mirror_root;
    // Begins what SIGTERM does, with all of `timeout` until the process has ended (default: what it has after SIGTERM).
    // Empty: DrainServer is not served.
    std::function<void(std::optional<absl::Duration> timeout, const std::string& reason)> drain_server;
    // Asked before anything else by every call; null: everybody may do everything. Outlives the service, as `tokens`
    // does.
    const CallGate* gate = nullptr;
    // How long a client may leave an upload without a message, or a download without taking one.
    absl::Duration stall_limit = absl::Minutes(5);
    // Null: CreateToken, RevokeToken and ListTokens are refused.
    TokenBook* tokens = nullptr;
  };

  // `controller` and `log` outlive the server of this service.
  TrainingServiceImpl(Options options, Submitter::Planner planner, Controller* controller, EventLog* log);

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* CreateSweep(grpc::CallbackServerContext* context, const v1::CreateSweepRequest* request,
                                        v1::JobSweep* response) override;
  grpc::ServerUnaryReactor* GetSweep(grpc::CallbackServerContext* context, const v1::GetSweepRequest* request,
                                     v1::JobSweep* response) override;
  grpc::ServerUnaryReactor* ListSweeps(grpc::CallbackServerContext* context, const v1::ListSweepsRequest* request,
                                       v1::ListSweepsResponse* response) override;
  grpc::ServerUnaryReactor* CancelSweep(grpc::CallbackServerContext* context, const v1::CancelSweepRequest* request,
                                        v1::JobSweep* response) override;
  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* context, const v1::PlanJobRequest* request,
                                    v1::PlanReport* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerWriteReactor<v1::JobEvent>* WatchJob(grpc::CallbackServerContext* context,
                                                   const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context, const v1::ListDevicesRequest* request,
                                        v1::ListDevicesResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerWriteReactor<v1::FileChunk>* DownloadCheckpoint(grpc::CallbackServerContext* context,
                                                              const v1::DownloadCheckpointRequest* request) override;
  grpc::ServerWriteReactor<v1::FileChunk>* DownloadArtifact(grpc::CallbackServerContext* context,
                                                            const v1::DownloadArtifactRequest* request) override;
  grpc::ServerReadReactor<v1::UploadModelRequest>* UploadModel(grpc::CallbackServerContext* context,
                                                               v1::UploadModelResponse* response) override;
  // dataset_calls.cc
  grpc::ServerReadReactor<v1::UploadDatasetRequest>* UploadDataset(grpc::CallbackServerContext* context,
                                                                   v1::Dataset* response) override;
  grpc::ServerUnaryReactor* ListDatasets(grpc::CallbackServerContext* context, const v1::ListDatasetsRequest* request,
                                         v1::ListDatasetsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteDataset(grpc::CallbackServerContext* context, const v1::DeleteDatasetRequest* request,
                                          v1::DeleteDatasetResponse* response) override;

  grpc::ServerWriteReactor<v1::FileChunk>* ExportModel(grpc::CallbackServerContext* context,
                                                       const v1::ExportModelRequest* request) override;

  // lifecycle_calls.cc
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context, const v1::PauseJobRequest* request,
                                     v1::Job* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context, const v1::ResumeJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* RetryJob(grpc::CallbackServerContext* context, const v1::RetryJobRequest* request,
                                     v1::Job* response) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context, const v1::UpdateJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext* context, const v1::CheckpointJobRequest* request,
                                          v1::Checkpoint* response) override;
  grpc::ServerUnaryReactor* ProfileJob(grpc::CallbackServerContext* context, const v1::ProfileJobRequest* request,
                                       v1::StepProfile* response) override;
  grpc::ServerUnaryReactor* DrainDevice(grpc::CallbackServerContext* context, const v1::DrainDeviceRequest* request,
                                        v1::Device* response) override;
  grpc::ServerUnaryReactor* UndrainDevice(grpc::CallbackServerContext* context, const v1::UndrainDeviceRequest* request,
                                          v1::Device* response) override;
  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context, const v1::DrainServerRequest* request,
                                        v1::DrainServerResponse* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override;

  // token_calls.cc
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context, const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context, const v1::RevokeTokenRequest* request,
                                        v1::Token* response) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context, const v1::ListTokensRequest* request,
                                       v1::ListTokensResponse* response) override;

 private:
  // About a MiB.
  static constexpr size_t kVerifiedFiles = 4096;

  // Who calls; `method` is the handler's name.
  absl::StatusOr<Caller> Admit(const grpc::CallbackServerContext& context, absl::string_view method) const;
  // `newest`: of JobSummary.checkpoint.
  CheckpointFolders FoldersOf(const std::string& job_id, const std::string& newest) const {
    return FoldersOfJob(options_.checkpoint_root, options_.mirror_root, job_id, newest);
  }
  // Answers a unary call by `handle(caller, reactor)`, or refuses the caller.
  template <typename Handle>
  grpc::ServerUnaryReactor* Admitted(grpc::CallbackServerContext* context, absl::string_view method, Handle handle) {
    return Admitted(context->DefaultReactor(), context, method, std::move(handle));
  }
  template <typename Reactor, typename Handle>
  Reactor* Admitted(Reactor* reactor, grpc::CallbackServerContext* context, absl::string_view method, Handle handle) {
    const absl::StatusOr<Caller> caller = Admit(*context, method);
    if (caller.ok()) {
      handle(*caller, reactor);
    } else {
      reactor->Finish(ToGrpcStatus(caller.status()));
    }
    return reactor;
  }
  // Calls `change` with the whole id of a job or sweep that the caller may change, or refuses; for administrators, with
  // `id` as it is.
  void OfOwnJob(const Caller& caller, const std::string& id, grpc::ServerUnaryReactor* reactor,
                std::function<void(const std::string& id)> change);
  void OfOwnSweep(const Caller& caller, const std::string& id, grpc::ServerUnaryReactor* reactor,
                  std::function<void(const std::string& id)> change);

  // dataset_calls.cc
  void DeleteOwnDataset(const std::string& name, const Owner& owner, grpc::ServerUnaryReactor* reactor);

  // What is to be sent of a job, opened in `open_in`.
  using FromJob = std::function<absl::StatusOr<OpenCheckpoint>(const v1::Job& job, Departure& caller)>;
  grpc::ServerWriteReactor<v1::FileChunk>* Download(grpc::CallbackServerContext* context, absl::string_view method,
                                                    const std::string& job_id, FromJob from_job, WorkPool* open_in);

  const Options options_;
  Controller* const controller_;
  EventLog* const log_;
  Submitter submitter_;
  const ModelExporter exporter_;
  // Itself thread safe.
  VerifiedFiles verified_{kVerifiedFiles};
  // Before the pools, whose last tasks may use it.
  StallWatch stalls_;
  // For reads of the log, which keep watchers waiting: for nothing that takes longer.
  WorkPool readers_;
  // For lists of files, and their bytes.
  WorkPool file_readers_;
  // Compare checkpoints with their checksums, for minutes where they are large.
  WorkPool checkpoint_checks_;
  // For writes of files that clients send; those of datasets may be many.
  WorkPool writers_;
  WorkPool dataset_writers_;
  // Check them.
  WorkPool dataset_commits_;
  // Wait for the exporter.
  WorkPool exports_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_
