// TrainingService's calls that steer a job on its way.
#include <google/protobuf/unknown_field_set.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"
#include "server/service/answer.h"
#include "server/service/checkpoint_files.h"
#include "server/service/training_service.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr int64_t kMaxDrainSeconds = 366 * 24 * 3600;
constexpr size_t kMaxDrainReasonBytes = 200;

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::PauseJob(grpc::CallbackServerContext* context,
                                                        const v1::PauseJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->PauseJob(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ResumeJob(grpc::CallbackServerContext* context,
                                                         const v1::ResumeJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->ResumeJob(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RetryJob(grpc::CallbackServerContext* context,
                                                        const v1::RetryJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  submitter_.Retry(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::UpdateJob(grpc::CallbackServerContext* context,
                                                         const v1::UpdateJobRequest* request, v1::Job* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto& unknown = request->GetReflection()->GetUnknownFields(*request);
  if (!unknown.empty()) {
    reactor->Finish(ToGrpcStatus(InvalidFields({{absl::StrCat("field ", unknown.field(0).number()),
                                                 "this server can change the priority and labels of a job only"}})));
    return reactor;
  }
  controller_->UpdateJob(*request, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CheckpointJob(grpc::CallbackServerContext* context,
                                                             const v1::CheckpointJobRequest* request,
                                                             v1::Checkpoint* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->CheckpointJob(request->job_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DrainDevice(grpc::CallbackServerContext* context,
                                                           const v1::DrainDeviceRequest* request,
                                                           v1::Device* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->DrainDevice(*request, Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::UndrainDevice(grpc::CallbackServerContext* context,
                                                             const v1::UndrainDeviceRequest* request,
                                                             v1::Device* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->UndrainDevice(request->device_id(), Answer(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DrainServer(grpc::CallbackServerContext* context,
                                                           const v1::DrainServerRequest* request,
                                                           v1::DrainServerResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::optional<absl::Duration> timeout;
  if (request->has_timeout_seconds()) {
    if (request->timeout_seconds() < 1 || request->timeout_seconds() > kMaxDrainSeconds) {
      reactor->Finish(
          ToGrpcStatus(InvalidFields({{"timeout_seconds", absl::StrCat("must be from 1 to ", kMaxDrainSeconds, ", is ",
                                                                       request->timeout_seconds())}})));
      return reactor;
    }
    timeout = absl::Seconds(request->timeout_seconds());
  }
  if (request->reason().size() > kMaxDrainReasonBytes) {
    reactor->Finish(ToGrpcStatus(InvalidFields({{"reason", absl::StrCat("must be at most ", kMaxDrainReasonBytes,
                                                                        " bytes, is ", request->reason().size())}})));
    return reactor;
  }
  if (!options_.drain_server) {
    reactor->Finish(ToGrpcStatus(absl::UnimplementedError("this server cannot be drained by a call")));
    return reactor;
  }
  controller_->CountWorkers([this, reactor, response, timeout, reason = request->reason()](absl::StatusOr<int> jobs) {
    if (!jobs.ok()) return reactor->Finish(ToGrpcStatus(jobs.status()));
    response->set_jobs(*jobs);
    options_.drain_server(timeout, reason);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListCheckpoints(grpc::CallbackServerContext* context,
                                                               const v1::ListCheckpointsRequest* request,
                                                               v1::ListCheckpointsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  controller_->GetJob(request->job_id(), [this, reactor, response](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return reactor->Finish(ToGrpcStatus(job.status()));
    const std::string folder = absl::StrCat(options_.checkpoint_root, "/", job->id());
    const bool posted = readers_.Post([reactor, response, folder] {
      for (v1::Checkpoint& checkpoint : DescribeCheckpoints(folder))
        *response->add_checkpoints() = std::move(checkpoint);
      reactor->Finish(grpc::Status::OK);
    });
    if (!posted)
      reactor->Finish(ToGrpcStatus(TryAgain("too many calls read files already; try again", absl::Seconds(1))));
  });
  return reactor;
}

}  // namespace ampd
