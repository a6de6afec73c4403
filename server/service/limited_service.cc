#include "server/service/limited_service.h"

#include <algorithm>
#include <utility>

#include "server/service/answer.h"
#include "server/service/call_gate.h"
#include "server/service/grpc_status.h"

namespace ampd {
namespace {

// What is parsed may take forty times its bytes on the wire; who waits for his turn has a copy of it.
int64_t MemoryOf(const google::protobuf::Message& request) { return 2 * static_cast<int64_t>(request.SpaceUsedLong()); }

// Of a page; jobs are some 8 KiB, those of large specs more.
constexpr int64_t kListedJobBytes = 16 << 10;
constexpr int kDefaultPage = 100;
constexpr int kLargestPage = 1000;

// Pages are made faster than they are sent.
int64_t MemoryOf(const v1::ListJobsRequest& request) {
  const int jobs = request.page_size() == 0 ? kDefaultPage : std::clamp(request.page_size(), 0, kLargestPage);
  return MemoryOf(static_cast<const google::protobuf::Message&>(request)) + jobs * kListedJobBytes;
}

// A call of the service, if its caller may make it and there is room for it.
#define AMPD_LIMITED_UNARY(limit, method, Request, Response)                                         \
  grpc::ServerUnaryReactor* method(grpc::CallbackServerContext* context, const v1::Request* request, \
                                   v1::Response* response) override {                                \
    const absl::Status entered = Enter(context, #method, CallClass::limit, request);                 \
    if (entered.ok()) return TrainingServiceImpl::method(context, request, response);                \
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();                                   \
    reactor->Finish(ToGrpcStatus(entered));                                                          \
    return reactor;                                                                                  \
  }
#define AMPD_LIMITED_STREAM(limit, method, Request, Response)                                                      \
  grpc::ServerWriteReactor<v1::Response>* method(grpc::CallbackServerContext* context, const v1::Request* request) \
      override {                                                                                                   \
    const absl::Status entered = Enter(context, #method, CallClass::limit, request);                               \
    if (entered.ok()) return TrainingServiceImpl::method(context, request);                                        \
    return Refused<grpc::ServerWriteReactor<v1::Response>>::With(entered);                                         \
  }
#define AMPD_LIMITED_UPLOAD(limit, method, Request, Response)                                                \
  grpc::ServerReadReactor<v1::Request>* method(grpc::CallbackServerContext* context, v1::Response* response) \
      override {                                                                                             \
    const absl::Status entered = Enter(context, #method, CallClass::limit, 0);                               \
    if (entered.ok()) return TrainingServiceImpl::method(context, response);                                 \
    return Refused<grpc::ServerReadReactor<v1::Request>>::With(entered);                                     \
  }

class LimitedTrainingService final : public TrainingServiceImpl {
 public:
  LimitedTrainingService(CallLimits* limits, const Options& options, Submitter::Planner planner, Controller* controller,
                         EventLog* log)
      : TrainingServiceImpl(options, std::move(planner), controller, log), gate_(options.gate), limits_(limits) {}

  AMPD_LIMITED_UNARY(kReads, GetJob, GetJobRequest, Job)
  AMPD_LIMITED_UNARY(kReads, ListJobs, ListJobsRequest, ListJobsResponse)
  AMPD_LIMITED_UNARY(kReads, ListDevices, ListDevicesRequest, ListDevicesResponse)
  AMPD_LIMITED_UNARY(kReads, GetServerInfo, GetServerInfoRequest, ServerInfo)
  AMPD_LIMITED_UNARY(kReads, ListSweeps, ListSweepsRequest, ListSweepsResponse)
  AMPD_LIMITED_UNARY(kReads, ListCheckpoints, ListCheckpointsRequest, ListCheckpointsResponse)
  // Its answer may have 10,000 jobs, and its turn may be long in coming.
  AMPD_LIMITED_UNARY(kTransfers, GetSweep, GetSweepRequest, JobSweep)
  // Its answer may have the sizes and checksums of 250,000 files.
  AMPD_LIMITED_UNARY(kTransfers, ListDatasets, ListDatasetsRequest, ListDatasetsResponse)
  AMPD_LIMITED_UNARY(kReads, ListTokens, ListTokensRequest, ListTokensResponse)
  AMPD_LIMITED_UNARY(kWrites, CreateJob, CreateJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, CancelJob, CancelJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, CreateSweep, CreateSweepRequest, JobSweep)
  AMPD_LIMITED_UNARY(kWrites, CancelSweep, CancelSweepRequest, JobSweep)
  AMPD_LIMITED_UNARY(kWrites, PauseJob, PauseJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, ResumeJob, ResumeJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, RetryJob, RetryJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, UpdateJob, UpdateJobRequest, Job)
  AMPD_LIMITED_UNARY(kWrites, CheckpointJob, CheckpointJobRequest, Checkpoint)
  AMPD_LIMITED_UNARY(kWrites, ProfileJob, ProfileJobRequest, StepProfile)
  AMPD_LIMITED_UNARY(kWrites, DrainDevice, DrainDeviceRequest, Device)
  AMPD_LIMITED_UNARY(kWrites, UndrainDevice, UndrainDeviceRequest, Device)
  AMPD_LIMITED_UNARY(kWrites, DrainServer, DrainServerRequest, DrainServerResponse)
  AMPD_LIMITED_UNARY(kWrites, DeleteDataset, DeleteDatasetRequest, DeleteDatasetResponse)
  AMPD_LIMITED_UNARY(kWrites, CreateToken, CreateTokenRequest, CreateTokenResponse)
  AMPD_LIMITED_UNARY(kWrites, RevokeToken, RevokeTokenRequest, Token)
  AMPD_LIMITED_UNARY(kPlanning, PlanJob, PlanJobRequest, PlanReport)
  AMPD_LIMITED_STREAM(kPlanning, ExportModel, ExportModelRequest, FileChunk)
  AMPD_LIMITED_STREAM(kWatchers, WatchJob, WatchJobRequest, JobEvent)
  AMPD_LIMITED_STREAM(kTransfers, DownloadCheckpoint, DownloadCheckpointRequest, FileChunk)
  AMPD_LIMITED_STREAM(kTransfers, DownloadArtifact, DownloadArtifactRequest, FileChunk)
  AMPD_LIMITED_UPLOAD(kTransfers, UploadModel, UploadModelRequest, UploadModelResponse)
  AMPD_LIMITED_UPLOAD(kTransfers, UploadDataset, UploadDatasetRequest, Dataset)

 private:
  absl::Status Enter(grpc::CallbackServerContext* context, absl::string_view method, CallClass call_class,
                     int64_t request_bytes) {
    const absl::StatusOr<Caller> caller = gate_ == nullptr ? Anybody() : gate_->Admit(*context, method);
    if (caller.ok()) return limits_->Admit(context, call_class, request_bytes, caller->user);
    limits_->Refuse(context);
    return caller.status();
  }
  template <typename Request>
  absl::Status Enter(grpc::CallbackServerContext* context, absl::string_view method, CallClass call_class,
                     const Request* request) {
    const absl::Status entered = Enter(context, method, call_class, MemoryOf(*request));
    // It lives until the refusal has left, and counts nowhere.
    if (!entered.ok()) Empty(const_cast<Request*>(request));
    return entered;
  }

  const CallGate* const gate_;
  CallLimits* const limits_;
};

#undef AMPD_LIMITED_UNARY
#undef AMPD_LIMITED_STREAM
#undef AMPD_LIMITED_UPLOAD

}  // namespace

std::unique_ptr<TrainingServiceImpl> MakeLimitedTrainingService(CallLimits* limits,
                                                                TrainingServiceImpl::Options options,
                                                                Submitter::Planner planner, Controller* controller,
                                                                EventLog* log) {
  return std::make_unique<LimitedTrainingService>(limits, options, std::move(planner), controller, log);
}

}  // namespace ampd
