// TrainingService: each handler converts, posts to whoever owns the matter, and converts the answer back.
#ifndef AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_
#define AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_

#include <string>

#include "absl/time/time.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "server/events/event_log.h"
#include "server/jobs/controller.h"
#include "server/service/submit.h"
#include "server/service/work_pool.h"

namespace ampd {

class TrainingServiceImpl final : public v1::TrainingService::CallbackService {
 public:
  struct Options {
    std::string version;
    absl::Time start_time;
    // As ControllerOptions::checkpoint_root.
    std::string checkpoint_root;
    // As ControllerOptions::artifact_root.
    std::string artifact_root;
    Submitter::Options submit;
  };

  // `controller` and `log` outlive the server of this service.
  TrainingServiceImpl(Options options, Submitter::Planner planner, Controller* controller, EventLog* log);

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
                                      v1::Job* response) override;
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

 private:
  const Options options_;
  Controller* const controller_;
  EventLog* const log_;
  Submitter submitter_;
  // For reads of the log and of files.
  WorkPool readers_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_TRAINING_SERVICE_H_
