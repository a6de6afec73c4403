// TrainingService's calls that steer a job on its way.
#include <google/protobuf/unknown_field_set.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/resolve.h"
#include "server/service/answer.h"
#include "server/service/checkpoint_files.h"
#include "server/service/leavable_call.h"
#include "server/service/training_service.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr int64_t kMaxDrainSeconds = 366 * 24 * 3600;
constexpr size_t kMaxDrainReasonBytes = 200;
constexpr int64_t kProfiledSteps = 20;
constexpr int64_t kMostProfiledSteps = 1000;

absl::Status CheckDrain(const v1::DrainServerRequest& request) {
  if (request.has_timeout_seconds() &&
      (request.timeout_seconds() < 1 || request.timeout_seconds() > kMaxDrainSeconds)) {
    return InvalidFields({{"timeout_seconds",
                           absl::StrCat("must be from 1 to ", kMaxDrainSeconds, ", is ", request.timeout_seconds())}});
  }
  if (request.reason().size() <= kMaxDrainReasonBytes) return absl::OkStatus();
  return InvalidFields(
      {{"reason", absl::StrCat("must be at most ", kMaxDrainReasonBytes, " bytes, is ", request.reason().size())}});
}

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::PauseJob(grpc::CallbackServerContext* context,
                                                        const v1::PauseJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    OfOwnJob(caller, request->job_id(), reactor, [this, reactor, response](const std::string& id) {
      controller_->PauseJob(id, Answer(reactor, response));
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ResumeJob(grpc::CallbackServerContext* context,
                                                         const v1::ResumeJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    OfOwnJob(caller, request->job_id(), reactor, [this, reactor, response](const std::string& id) {
      controller_->ResumeJob(id, Answer(reactor, response));
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RetryJob(grpc::CallbackServerContext* context,
                                                        const v1::RetryJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    OfOwnJob(caller, request->job_id(), reactor, [this, caller, reactor, response](const std::string& id) {
      submitter_.Retry(id, caller, Answer(reactor, response));
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::UpdateJob(grpc::CallbackServerContext* context,
                                                         const v1::UpdateJobRequest* request, v1::Job* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    const auto& unknown = request->GetReflection()->GetUnknownFields(*request);
    if (!unknown.empty()) {
      return reactor->Finish(
          ToGrpcStatus(InvalidFields({{absl::StrCat("field ", unknown.field(0).number()),
                                       "this server can change the priority and labels of a job only"}})));
    }
    const absl::Status limits = CheckUserLimits(*request, caller, options_.submit.user_limits);
    if (!limits.ok()) return reactor->Finish(ToGrpcStatus(limits));
    OfOwnJob(caller, request->job_id(), reactor,
             [this, reactor, response, request = *request](const std::string& id) mutable {
               request.set_job_id(id);
               controller_->UpdateJob(std::move(request), Answer(reactor, response));
             });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::CheckpointJob(grpc::CallbackServerContext* context,
                                                             const v1::CheckpointJobRequest* request,
                                                             v1::Checkpoint* response) {
  return Admitted(new LeavableCall, context, __func__, [&](const Caller& caller, LeavableCall* call) {
    OfOwnJob(caller, request->job_id(), call,
             [this, call, response, departure = call->departure()](const std::string& id) {
               departure->Then(controller_->CheckpointJob(id, Answer(call, response)));
             });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ProfileJob(grpc::CallbackServerContext* context,
                                                          const v1::ProfileJobRequest* request,
                                                          v1::StepProfile* response) {
  return Admitted(new LeavableCall, context, __func__, [&](const Caller& caller, LeavableCall* call) {
    v1::ProfileJobRequest whole = *request;
    if (!whole.has_steps()) whole.set_steps(kProfiledSteps);
    if (whole.steps() < 1 || whole.steps() > kMostProfiledSteps) {
      return call->Finish(ToGrpcStatus(
          InvalidFields({{"steps", absl::StrCat("must be 1 to ", kMostProfiledSteps, ", is ", whole.steps())}})));
    }
    OfOwnJob(
        caller, request->job_id(), call,
        [this, call, response, departure = call->departure(), whole = std::move(whole)](const std::string& id) mutable {
          whole.set_job_id(id);
          departure->Then(controller_->ProfileJob(std::move(whole), Answer(call, response)));
        });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DrainDevice(grpc::CallbackServerContext* context,
                                                           const v1::DrainDeviceRequest* request,
                                                           v1::Device* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    controller_->DrainDevice(*request, Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::UndrainDevice(grpc::CallbackServerContext* context,
                                                             const v1::UndrainDeviceRequest* request,
                                                             v1::Device* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    controller_->UndrainDevice(request->device_id(), Answer(reactor, response));
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::DrainServer(grpc::CallbackServerContext* context,
                                                           const v1::DrainServerRequest* request,
                                                           v1::DrainServerResponse* response) {
  return Admitted(context, __func__, [&](const Caller&, grpc::ServerUnaryReactor* reactor) {
    if (const absl::Status status = CheckDrain(*request); !status.ok()) return reactor->Finish(ToGrpcStatus(status));
    if (!options_.drain_server) {
      return reactor->Finish(ToGrpcStatus(absl::UnimplementedError("this server cannot be drained by a call")));
    }
    std::optional<absl::Duration> timeout;
    if (request->has_timeout_seconds()) timeout = absl::Seconds(request->timeout_seconds());
    controller_->CountWorkers([this, reactor, response, timeout, reason = request->reason()](absl::StatusOr<int> jobs) {
      if (!jobs.ok()) return reactor->Finish(ToGrpcStatus(jobs.status()));
      response->set_jobs(*jobs);
      options_.drain_server(timeout, reason);
      reactor->Finish(grpc::Status::OK);
    });
  });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ListCheckpoints(grpc::CallbackServerContext* context,
                                                               const v1::ListCheckpointsRequest* request,
                                                               v1::ListCheckpointsResponse* response) {
  return Admitted(context, __func__, [&](const Caller& caller, grpc::ServerUnaryReactor* reactor) {
    controller_->FindJobId(
        request->job_id(),
        [this, reactor, response](const absl::StatusOr<std::string>& id) {
          if (!id.ok()) return reactor->Finish(ToGrpcStatus(id.status()));
          const std::string folder = absl::StrCat(options_.checkpoint_root, "/", *id);
          const bool posted = file_readers_.Post([reactor, response, folder] {
            for (v1::Checkpoint& checkpoint : DescribeCheckpoints(folder))
              *response->add_checkpoints() = std::move(checkpoint);
            reactor->Finish(grpc::Status::OK);
          });
          if (!posted) {
            reactor->Finish(ToGrpcStatus(TryAgain("too many calls read files already; try again", absl::Seconds(1))));
          }
        },
        caller.Scope());
  });
}

}  // namespace ampd
