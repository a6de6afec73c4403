#include "server/service/training_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/time_util.h"
#include "server/service/answer.h"
#include "server/service/checkpoint_range.h"
#include "server/service/download_stream.h"
#include "server/service/grpc_status.h"
#include "server/service/upload_stream.h"
#include "server/service/watch_stream.h"

namespace ampd {
namespace {

constexpr int kReaders = 4;
constexpr int kWriters = 2;
// One read of each call at most waits, so this bounds the calls that stream at once.
constexpr size_t kMaxReads = 10000;
// Models exported at once, and calls that wait for their turn.
constexpr int kExporters = 2;
constexpr size_t kMaxExports = 64;

}  // namespace

TrainingServiceImpl::TrainingServiceImpl(Options options, Submitter::Planner planner, Controller* controller,
                                         EventLog* log)
    : options_(std::move(options)),
      controller_(controller),
      log_(log),
      submitter_(options_.submit, std::move(planner), controller),
      exporter_({options_.checkpoint_root, options_.export_scratch_dir, AllDataRoots(options_.submit),
                 options_.uploads == nullptr ? "" : options_.uploads->folder()},
                options_.export_runner),
      readers_(kReaders, kMaxReads),
      writers_(kWriters, kMaxReads),
      dataset_writers_(kWriters, kMaxReads),
      exports_(kExporters, kMaxExports) {}

grpc::ServerUnaryReactor* TrainingServiceImpl::CreateJob(grpc::CallbackServerContext* context,
                                                         const v1::CreateJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  submitter_.Create(*request, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CreateSweep(grpc::CallbackServerContext* context,
                                                           const v1::CreateSweepRequest* request,
                                                           v1::JobSweep* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  submitter_.CreateSweep(
      *request, [context] { return context->IsCancelled(); }, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetSweep(grpc::CallbackServerContext* context,
                                                        const v1::GetSweepRequest* request, v1::JobSweep* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->GetSweep(request->sweep_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CancelSweep(grpc::CallbackServerContext* context,
                                                           const v1::CancelSweepRequest* request,
                                                           v1::JobSweep* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->CancelSweep(request->sweep_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::PlanJob(grpc::CallbackServerContext* context,
                                                       const v1::PlanJobRequest* request, v1::PlanReport* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  submitter_.PlanReport(*request, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                      const v1::GetJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->GetJob(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                        const v1::ListJobsRequest* request,
                                                        v1::ListJobsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->ListJobs(*request, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                         const v1::CancelJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->CancelJob(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerWriteReactor<v1::JobEvent>* TrainingServiceImpl::WatchJob(grpc::CallbackServerContext*,
                                                                      const v1::WatchJobRequest* request) {
  const std::shared_ptr<WatchStream> stream = WatchStream::Create(log_, &readers_);
  // The controller knows what a prefix of an id stands for.
  controller_->GetJob(request->job_id(), [stream, after = request->after_sequence()](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return stream->Fail(job.status());
    stream->Start(job->id(), after);
  });
  return stream.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListDevices(grpc::CallbackServerContext* context,
                                                           const v1::ListDevicesRequest*,
                                                           v1::ListDevicesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->ListDevices([reactor, response](absl::StatusOr<std::vector<v1::Device>> devices) {
    if (devices.ok()) response->mutable_devices()->Assign(devices->begin(), devices->end());
    reactor->Finish(ToGrpcStatus(devices.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                             const v1::GetServerInfoRequest*,
                                                             v1::ServerInfo* response) {
  response->set_version(options_.version);
  response->add_apis("ampd.v1");
  *response->mutable_start_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(options_.start_time));
  response->set_draining(controller_->draining());
  response->set_default_precision_mode(options_.submit.default_precision_mode);
  response->mutable_device_models()->Assign(options_.submit.device_models.begin(), options_.submit.device_models.end());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::DownloadCheckpoint(
    grpc::CallbackServerContext*, const v1::DownloadCheckpointRequest* request) {
  const std::shared_ptr<DownloadStream> stream = DownloadStream::Create(&readers_);
  controller_->GetJob(request->job_id(), [this, stream, request = *request](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return stream->Fail(job.status());
    const std::string folder = absl::StrCat(options_.checkpoint_root, "/", job->id());
    stream->Start([folder, request] { return OpenAskedFiles(folder, request); });
  });
  return stream.get();
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::DownloadArtifact(
    grpc::CallbackServerContext*, const v1::DownloadArtifactRequest* request) {
  const std::shared_ptr<DownloadStream> stream = DownloadStream::Create(&readers_);
  controller_->GetJob(request->job_id(), [this, stream, name = request->name()](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return stream->Fail(job.status());
    const std::string folder = absl::StrCat(options_.artifact_root, "/", job->id());
    stream->Start([folder, name] { return OpenArtifact(folder, name); });
  });
  return stream.get();
}

grpc::ServerReadReactor<v1::UploadModelRequest>* TrainingServiceImpl::UploadModel(grpc::CallbackServerContext*,
                                                                                  v1::UploadModelResponse* response) {
  return UploadStream::Start(options_.uploads, &writers_, response).get();
}

grpc::ServerWriteReactor<v1::FileChunk>* TrainingServiceImpl::ExportModel(grpc::CallbackServerContext*,
                                                                          const v1::ExportModelRequest* request) {
  const std::shared_ptr<DownloadStream> stream = DownloadStream::Create(&readers_);
  controller_->GetJob(request->job_id(), [this, stream, request = *request](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return stream->Fail(job.status());
    stream->Start([this, job = *std::move(job), request] { return exporter_.Export(job, request); }, &exports_);
  });
  return stream.get();
}

}  // namespace ampd
