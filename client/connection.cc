#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ampd/v1/training_service.grpc.pb.h"
#include "client/retry.h"
#include "google/rpc/status.pb.h"

namespace ampd::client {
namespace {

// How long a stream is asked for while the server has no room for it.
constexpr absl::Duration kStreamPatience = absl::Minutes(1);

absl::Status ToAbsl(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

bool Sleep(absl::Duration duration) {
  absl::SleepFor(duration);
  return true;
}

template <typename Request>
using Download = std::unique_ptr<grpc::ClientReader<v1::FileChunk>> (v1::TrainingService::Stub::*)(grpc::ClientContext*,
                                                                                                   const Request&);

template <typename Request>
absl::Status ReadChunks(v1::TrainingService::Stub* stub, Download<Request> download, const Request& request,
                        const std::function<absl::Status(const v1::FileChunk&)>& on_chunk) {
  return UntilAdmitted(absl::Now() + kStreamPatience, Sleep, [&] {
    grpc::ClientContext context;
    const auto reader = (stub->*download)(&context, request);
    v1::FileChunk chunk;
    absl::Status status;
    while (status.ok() && reader->Read(&chunk)) status = on_chunk(chunk);
    if (!status.ok()) context.TryCancel();
    const grpc::Status finished = reader->Finish();
    return status.ok() ? ToAbsl(finished) : status;
  });
}

}  // namespace

struct Connection::Channel {
  std::unique_ptr<v1::TrainingService::Stub> stub;
  std::shared_ptr<std::atomic<bool>> answered;
  std::optional<absl::Duration> timeout;  // In place of every call's.

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                  Response*),
                                const Request& request, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + this->timeout.value_or(timeout);
    Response response;
    const absl::Status status = UntilAdmitted(deadline, Sleep, [&] {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      return ToAbsl(((*stub).*method)(&context, request, &response));
    });
    if (!status.ok()) return status;
    *answered = true;
    return response;
  }

  // A call about one job. Who names a sweep is told what it is.
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallOfJob(grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*,
                                                                                       const Request&, Response*),
                                     const Request& request, absl::Duration timeout) {
    absl::StatusOr<Response> response = Call(method, request, timeout);
    if (!response.ok()) return OfJob(request.job_id(), response.status());
    return response;
  }

  absl::Status OfJob(const std::string& id, const absl::Status& status) {
    if (!absl::IsNotFound(status)) return status;
    // What is missing may be the job's checkpoint or file.
    v1::GetJobRequest of_job;
    of_job.set_job_id(id);
    const auto job = Call(&v1::TrainingService::Stub::GetJob, of_job, absl::Seconds(30));
    if (job.ok() || !absl::IsNotFound(job.status())) return status;
    v1::GetSweepRequest request;
    request.set_sweep_id(id);
    const absl::StatusOr<v1::JobSweep> sweep = Call(&v1::TrainingService::Stub::GetSweep, request, absl::Seconds(30));
    if (!sweep.ok()) return status;
    return absl::NotFoundError(absl::StrCat(id, " is a sweep: ampctl sweep ", id, ", ampctl cancel --sweep ", id));
  }
};

Connection::Connection(const Server& server, const std::shared_ptr<grpc::Channel>& channel)
    : address_(server.address), channel_(std::make_unique<Channel>()) {
  channel_->timeout = server.timeout;
  channel_->answered = server.answered;
  channel_->stub = v1::TrainingService::NewStub(channel);
}

Connection::~Connection() = default;

bool Connection::answered() const { return *channel_->answered; }

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const Server& server) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenChannel(server);
  if (!channel.ok()) return channel.status();
  return std::unique_ptr<Connection>(new Connection(server, *channel));
}

absl::StatusOr<v1::Job> Connection::CreateJob(const v1::CreateJobRequest& request, absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::CreateJob, request, timeout);
}

absl::StatusOr<v1::JobSweep> Connection::CreateSweep(const v1::CreateSweepRequest& request, absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::CreateSweep, request, timeout);
}

absl::StatusOr<v1::JobSweep> Connection::GetSweep(const std::string& sweep_id, absl::Duration timeout) {
  v1::GetSweepRequest request;
  request.set_sweep_id(sweep_id);
  return channel_->Call(&v1::TrainingService::Stub::GetSweep, request, timeout);
}

absl::StatusOr<v1::ListSweepsResponse> Connection::ListSweeps(const v1::ListSweepsRequest& request,
                                                              absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::ListSweeps, request, timeout);
}

absl::StatusOr<v1::JobSweep> Connection::CancelSweep(const std::string& sweep_id, bool now, absl::Duration timeout) {
  v1::CancelSweepRequest request;
  request.set_sweep_id(sweep_id);
  request.set_now(now);
  return channel_->Call(&v1::TrainingService::Stub::CancelSweep, request, timeout);
}

absl::StatusOr<v1::PlanReport> Connection::PlanJob(const v1::PlanJobRequest& request, absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::PlanJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::GetJob(const std::string& job_id, absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::GetJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::CancelJob(const std::string& job_id, bool now, absl::Duration timeout) {
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  request.set_now(now);
  return channel_->CallOfJob(&v1::TrainingService::Stub::CancelJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::PauseJob(const std::string& job_id, absl::Duration timeout) {
  v1::PauseJobRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::PauseJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::ResumeJob(const std::string& job_id, absl::Duration timeout) {
  v1::ResumeJobRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::ResumeJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::RetryJob(const std::string& job_id, absl::Duration timeout) {
  v1::RetryJobRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::RetryJob, request, timeout);
}

absl::StatusOr<v1::Job> Connection::UpdateJob(const v1::UpdateJobRequest& request, absl::Duration timeout) {
  return channel_->CallOfJob(&v1::TrainingService::Stub::UpdateJob, request, timeout);
}

absl::StatusOr<v1::StepProfile> Connection::ProfileJob(const v1::ProfileJobRequest& request, absl::Duration timeout) {
  return channel_->CallOfJob(&v1::TrainingService::Stub::ProfileJob, request, timeout);
}

absl::StatusOr<v1::Checkpoint> Connection::CheckpointJob(const std::string& job_id, absl::Duration timeout) {
  v1::CheckpointJobRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::CheckpointJob, request, timeout);
}

absl::StatusOr<v1::Device> Connection::DrainDevice(const v1::DrainDeviceRequest& request, absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::DrainDevice, request, timeout);
}

absl::StatusOr<v1::Device> Connection::UndrainDevice(const std::string& device_id, absl::Duration timeout) {
  v1::UndrainDeviceRequest request;
  request.set_device_id(device_id);
  return channel_->Call(&v1::TrainingService::Stub::UndrainDevice, request, timeout);
}

absl::StatusOr<v1::DrainServerResponse> Connection::DrainServer(const v1::DrainServerRequest& request,
                                                                absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::DrainServer, request, timeout);
}

absl::StatusOr<v1::ListCheckpointsResponse> Connection::ListCheckpoints(const std::string& job_id,
                                                                        absl::Duration timeout) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(job_id);
  return channel_->CallOfJob(&v1::TrainingService::Stub::ListCheckpoints, request, timeout);
}

absl::StatusOr<v1::ListJobsResponse> Connection::ListJobs(const v1::ListJobsRequest& request, absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::ListJobs, request, timeout);
}

absl::StatusOr<v1::ListDevicesResponse> Connection::ListDevices(absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::ListDevices, v1::ListDevicesRequest(), timeout);
}

absl::StatusOr<v1::ServerInfo> Connection::GetServerInfo(absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::GetServerInfo, v1::GetServerInfoRequest(), timeout);
}

absl::StatusOr<v1::CreateTokenResponse> Connection::CreateToken(const v1::CreateTokenRequest& request,
                                                                absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::CreateToken, request, timeout);
}

absl::StatusOr<v1::Token> Connection::RevokeToken(const std::string& token_id, absl::Duration timeout) {
  v1::RevokeTokenRequest request;
  request.set_token_id(token_id);
  return channel_->Call(&v1::TrainingService::Stub::RevokeToken, request, timeout);
}

absl::StatusOr<v1::ListTokensResponse> Connection::ListTokens(absl::Duration timeout) {
  return channel_->Call(&v1::TrainingService::Stub::ListTokens, v1::ListTokensRequest(), timeout);
}

absl::Status Connection::WatchJob(const v1::WatchJobRequest& request, absl::Time deadline, Interrupt* interrupt,
                                  const std::function<void(const v1::JobEvent&)>& on_event) {
  const auto watch = [&] {
    grpc::ClientContext context;
    if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
    Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
    const auto reader = channel_->stub->WatchJob(&context, request);
    v1::JobEvent event;
    while (reader->Read(&event)) {
      *channel_->answered = true;
      on_event(event);
    }
    const absl::Status status = ToAbsl(reader->Finish());
    // An empty stream that ends well was an answer too.
    if (status.ok()) *channel_->answered = true;
    return status;
  };
  const auto sleep = [interrupt](absl::Duration delay) {
    return interrupt == nullptr ? Sleep(delay) : interrupt->SleepFor(delay);
  };
  return channel_->OfJob(request.job_id(),
                         UntilAdmitted(std::min(deadline, absl::Now() + kStreamPatience), sleep, watch));
}

absl::Status Connection::ReadPast(const v1::WatchJobRequest& request, absl::Duration timeout,
                                  const std::function<void(const v1::JobEvent&)>& on_event) {
  const absl::Time deadline = absl::Now() + timeout;
  uint64_t seen = 0;
  return UntilAdmitted(deadline, Sleep, [&] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const auto reader = channel_->stub->WatchJob(&context, request);
    v1::JobEvent event;
    while (seen < request.until_sequence() && reader->Read(&event)) {
      // A call that was turned away half-way is made again.
      if (event.sequence() <= seen) continue;
      seen = event.sequence();
      on_event(event);
    }
    const bool whole = seen >= request.until_sequence();
    if (whole) context.TryCancel();
    const grpc::Status end = reader->Finish();
    if (whole) return absl::OkStatus();
    return end.ok() ? absl::DataLossError("the event stream ended early") : ToAbsl(end);
  });
}

absl::StatusOr<std::vector<v1::JobEvent>> Connection::ReadEvents(const std::string& job_id, uint64_t last_sequence,
                                                                 absl::Duration timeout, uint64_t after_sequence) {
  std::vector<v1::JobEvent> events;
  if (last_sequence <= after_sequence) return events;
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  request.set_after_sequence(after_sequence);
  request.set_until_sequence(last_sequence);
  const absl::Status status =
      ReadPast(request, timeout, [&events](const v1::JobEvent& event) { events.push_back(event); });
  if (!status.ok()) return status;
  return events;
}

absl::Status Connection::DownloadCheckpoint(const v1::DownloadCheckpointRequest& request,
                                            const std::function<absl::Status(const v1::FileChunk&)>& on_chunk) {
  return channel_->OfJob(
      request.job_id(),
      ReadChunks(channel_->stub.get(), &v1::TrainingService::Stub::DownloadCheckpoint, request, on_chunk));
}

absl::Status Connection::DownloadArtifact(const v1::DownloadArtifactRequest& request,
                                          const std::function<absl::Status(const v1::FileChunk&)>& on_chunk) {
  return channel_->OfJob(request.job_id(), ReadChunks(channel_->stub.get(),
                                                      &v1::TrainingService::Stub::DownloadArtifact, request, on_chunk));
}

absl::StatusOr<v1::UploadModelResponse> Connection::UploadModel(
    const std::string& sha256, const std::function<absl::StatusOr<std::string>()>& next, Interrupt* interrupt) {
  grpc::ClientContext context;
  Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
  v1::UploadModelResponse response;
  const auto writer = channel_->stub->UploadModel(&context, &response);
  v1::UploadModelRequest request;
  request.set_sha256(sha256);
  absl::Status status;
  // A write fails once the server has answered.
  for (bool more = true; more && writer->Write(request);) {
    absl::StatusOr<std::string> piece = next();
    status = piece.status();
    more = status.ok() && !piece->empty();
    if (!more) break;
    request.clear_sha256();
    request.set_data(*std::move(piece));
  }
  if (!status.ok()) context.TryCancel();
  writer->WritesDone();
  const grpc::Status finished = writer->Finish();
  if (!status.ok()) return status;
  if (!finished.ok()) return ToAbsl(finished);
  return response;
}

absl::StatusOr<v1::Dataset> Connection::UploadDataset(
    const std::function<absl::StatusOr<bool>(v1::UploadDatasetRequest*)>& next, Interrupt* interrupt) {
  grpc::ClientContext context;
  Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
  v1::Dataset dataset;
  const auto writer = channel_->stub->UploadDataset(&context, &dataset);
  v1::UploadDatasetRequest request;
  absl::Status status;
  // A write fails once the server has answered.
  for (bool more = true; more;) {
    const absl::StatusOr<bool> filled = next(&request);
    status = filled.status();
    more = filled.ok() && *filled && writer->Write(request);
  }
  if (!status.ok()) context.TryCancel();
  writer->WritesDone();
  const grpc::Status finished = writer->Finish();
  if (!status.ok()) return status;
  if (!finished.ok()) return ToAbsl(finished);
  return dataset;
}

absl::StatusOr<v1::ListDatasetsResponse> Connection::ListDatasets(const std::string& name, absl::Duration timeout) {
  v1::ListDatasetsRequest request;
  request.set_name(name);
  return channel_->Call(&v1::TrainingService::Stub::ListDatasets, request, timeout);
}

absl::Status Connection::DeleteDataset(const std::string& name, absl::Duration timeout) {
  v1::DeleteDatasetRequest request;
  request.set_name(name);
  return channel_->Call(&v1::TrainingService::Stub::DeleteDataset, request, timeout).status();
}

absl::Status Connection::ExportModel(const v1::ExportModelRequest& request,
                                     const std::function<absl::Status(const v1::FileChunk&)>& on_chunk) {
  return channel_->OfJob(request.job_id(),
                         ReadChunks(channel_->stub.get(), &v1::TrainingService::Stub::ExportModel, request, on_chunk));
}

}  // namespace ampd::client
