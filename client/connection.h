// The calls ampctl makes to a daemon. Errors are absl::Status: the server's code and message, with
// google.rpc.BadRequest details as a payload that FieldViolationsOf() reads; UNAVAILABLE when the server cannot be
// reached.
#ifndef AMPD_CLIENT_CONNECTION_H_
#define AMPD_CLIENT_CONNECTION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ampd/v1/training_service.pb.h"
#include "client/interrupt.h"
#include "client/server.h"

namespace ampd::client {

// Thread-safe. Dials lazily; an unreachable server shows in the first call.
class Connection {
 public:
  // Errors as OpenChannel.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Server& server);
  ~Connection();

  const std::string& address() const { return address_; }
  // Whether the server has answered before: then it is one of ampd's, and what fails now may be well again.
  bool answered() const;

  // Each waits at most `timeout` for its answer, or as long as the server's `timeout` says where it is set. A call for
  // which the server has no room is made again, when the server says, within that time; streams for which it has none,
  // for a minute.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request, absl::Duration timeout = absl::Seconds(60));
  // Every job of it is planned.
  absl::StatusOr<v1::JobSweep> CreateSweep(const v1::CreateSweepRequest& request,
                                           absl::Duration timeout = absl::Minutes(15));
  absl::StatusOr<v1::JobSweep> GetSweep(const std::string& sweep_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ListSweepsResponse> ListSweeps(const v1::ListSweepsRequest& request,
                                                    absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::JobSweep> CancelSweep(const std::string& sweep_id, bool now,
                                           absl::Duration timeout = absl::Seconds(60));
  absl::StatusOr<v1::PlanReport> PlanJob(const v1::PlanJobRequest& request, absl::Duration timeout = absl::Seconds(60));
  absl::StatusOr<v1::Job> GetJob(const std::string& job_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Job> CancelJob(const std::string& job_id, bool now, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Job> PauseJob(const std::string& job_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Job> ResumeJob(const std::string& job_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Job> RetryJob(const std::string& job_id, absl::Duration timeout = absl::Seconds(60));
  absl::StatusOr<v1::Job> UpdateJob(const v1::UpdateJobRequest& request, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Checkpoint> CheckpointJob(const std::string& job_id, absl::Duration timeout);
  absl::StatusOr<v1::StepProfile> ProfileJob(const v1::ProfileJobRequest& request, absl::Duration timeout);
  absl::StatusOr<v1::Device> DrainDevice(const v1::DrainDeviceRequest& request,
                                         absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Device> UndrainDevice(const std::string& device_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::DrainServerResponse> DrainServer(const v1::DrainServerRequest& request,
                                                      absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job_id,
                                                              absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request,
                                                absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ListDevicesResponse> ListDevices(absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ServerInfo> GetServerInfo(absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::CreateTokenResponse> CreateToken(const v1::CreateTokenRequest& request,
                                                      absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::Token> RevokeToken(const std::string& token_id, absl::Duration timeout = absl::Seconds(30));
  absl::StatusOr<v1::ListTokensResponse> ListTokens(absl::Duration timeout = absl::Seconds(30));

  // Calls `on_event` for each event of one stream, until it ends. CANCELLED when `interrupt` (may be null) comes;
  // DEADLINE_EXCEEDED past `deadline`.
  absl::Status WatchJob(const v1::WatchJobRequest& request, absl::Time deadline, Interrupt* interrupt,
                        const std::function<void(const v1::JobEvent&)>& on_event);

  // Calls `on_event` for the events that `request` asks for up to its until_sequence, which is set and has happened
  // already; and for others, where the server is of a time when it gave all that come after after_sequence.
  absl::Status ReadPast(const v1::WatchJobRequest& request, absl::Duration timeout,
                        const std::function<void(const v1::JobEvent&)>& on_event);

  // The events of the job after `after_sequence` up to `last_sequence`, which must have happened already: a running job
  // is not waited for.
  absl::StatusOr<std::vector<v1::JobEvent>> ReadEvents(const std::string& job_id, uint64_t last_sequence,
                                                       absl::Duration timeout = absl::Seconds(120),
                                                       uint64_t after_sequence = 0);

  // Sends a file of which `next` gives piece after piece, at most 1 MiB each, empty at its end; its first error ends
  // the call and is returned. A file that the server has is not sent. CANCELLED when `interrupt` (may be null) comes.
  absl::StatusOr<v1::UploadModelResponse> UploadModel(const std::string& sha256,
                                                      const std::function<absl::StatusOr<std::string>()>& next,
                                                      Interrupt* interrupt);

  // Sends a dataset. `next` fills one message after another and gives false when there are no more; its first error
  // ends the call and is returned. CANCELLED when `interrupt` (may be null) comes.
  absl::StatusOr<v1::Dataset> UploadDataset(const std::function<absl::StatusOr<bool>(v1::UploadDatasetRequest*)>& next,
                                            Interrupt* interrupt);
  // Empty: all.
  absl::StatusOr<v1::ListDatasetsResponse> ListDatasets(const std::string& name,
                                                        absl::Duration timeout = absl::Seconds(60));
  absl::Status DeleteDataset(const std::string& name, absl::Duration timeout = absl::Seconds(120));

  // Each calls `on_chunk` for each chunk; its first error ends the stream and is returned.
  absl::Status DownloadCheckpoint(const v1::DownloadCheckpointRequest& request,
                                  const std::function<absl::Status(const v1::FileChunk&)>& on_chunk);
  absl::Status DownloadArtifact(const v1::DownloadArtifactRequest& request,
                                const std::function<absl::Status(const v1::FileChunk&)>& on_chunk);
  absl::Status ExportModel(const v1::ExportModelRequest& request,
                           const std::function<absl::Status(const v1::FileChunk&)>& on_chunk);

 private:
  struct Channel;
  Connection(const Server& server, const std::shared_ptr<grpc::Channel>& channel);

  std::string address_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_CONNECTION_H_
