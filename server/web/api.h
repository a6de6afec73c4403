// The JSON API of the HTTP port: docs/json_api.md says what it is to its clients.
#ifndef AMPD_SERVER_WEB_API_H_
#define AMPD_SERVER_WEB_API_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/events/event_log.h"
#include "server/http/router.h"
#include "server/service/call_gate.h"
#include "server/service/checkpoint_manifest.h"
#include "server/web/access.h"
#include "server/web/backend.h"
#include "server/web/byte_range.h"
#include "server/web/fleet_feed.h"
#include "server/web/job_digest.h"
#include "server/web/query.h"
#include "server/web/sessions.h"
#include "server/web/slots.h"
#include "server/web/tar.h"

namespace ampd {

// Thread-safe. A client of the service within its process; beside it reads events, of jobs that the service let the
// caller see.
class JsonApi {
 public:
  struct Options {
    WebPlace place;
    // These outlive the API.
    const CallGate* gate = nullptr;
    EventLog* log = nullptr;
    FleetFeed* fleet = nullptr;
    const Clock* clock = &SystemClock();
    // Of changes that are refused before the service hears of them; null: none is kept. Outlives the API.
    AuditLog* audit = nullptr;
  };

  // `channel`: to the server of TrainingService, which has the gate's and the limits' interceptors.
  JsonApi(Options options, const std::shared_ptr<grpc::Channel>& channel);
  JsonApi(const JsonApi&) = delete;
  JsonApi& operator=(const JsonApi&) = delete;

  // Ends streams and calls, and waits for the calls' end: before the server of the channel is shut down.
  void Stop();

  // The API outlives the router.
  void AddRoutes(Router* router);

 private:
  // One request that was let in.
  struct Call {
    HttpExchange& exchange;
    const Router::Arguments& arguments;
    Credentials credentials;
    Query query;
    // Of a change.
    std::string body;
    // The credentials are those of the request.
    bool has_credentials = false;
    // The service was asked, which writes changes down, also those that it refuses.
    bool service_asked = false;
  };
  // Answers by what it gives, or through the exchange; then what it gives is not looked at.
  using Handler = absl::StatusOr<HttpResponse> (JsonApi::*)(Call& call);
  struct Route {
    Handler handler;
    // That the query may have.
    std::vector<std::string> parameters;
    // Of a change: its body may be YAML, beside JSON.
    bool takes_yaml = false;
    // The call of the service that it makes, "CancelJob"; null: none that is written down.
    const char* method = nullptr;
  };

  void Add(Router* router, absl::string_view method, absl::string_view path, Route route);
  // Its body is JSON. `call`: as Route::method.
  void AddChange(Router* router, absl::string_view method, absl::string_view path, Handler handler,
                 const char* call = nullptr);
  void AddRead(Router* router, absl::string_view path, std::vector<std::string> parameters, Handler handler);
  void Serve(HttpExchange& exchange, const Router::Arguments& arguments, const Route& route);
  absl::StatusOr<HttpResponse> Handle(HttpExchange& exchange, const Router::Arguments& arguments, const Route& route);
  absl::StatusOr<HttpResponse> Answer(Call& call, const Route& route);
  absl::StatusOr<std::unique_ptr<Slots::Lease>> TakeSlot(const HttpRequest& request, const Credentials& credentials);
  absl::StatusOr<Credentials> CredentialsOf(const HttpRequest& request);
  // Into the audit log, as the service does with what reaches it: a change that was refused before.
  void WriteDownRefused(const Call& call, const Route& route, absl::StatusCode code) const;
  // Whose streams and downloads count together: a user's, or without tokens those of an address.
  absl::StatusOr<std::string> ClientOf(const HttpRequest& request, const Credentials& credentials) const;
  absl::StatusOr<v1::Job> JobOf(const Call& call);

  absl::StatusOr<HttpResponse> GetServer(Call& call);
  absl::StatusOr<HttpResponse> ListDevices(Call& call);
  absl::StatusOr<HttpResponse> ListJobs(Call& call);
  absl::StatusOr<v1::ListJobsResponse> PageOf(const Call& call, const v1::ListJobsRequest& request, bool summary);
  absl::StatusOr<HttpResponse> GetJob(Call& call);
  absl::StatusOr<HttpResponse> GetSpec(Call& call);
  absl::StatusOr<HttpResponse> GetPlan(Call& call);
  absl::StatusOr<HttpResponse> ListSweeps(Call& call);
  absl::StatusOr<HttpResponse> GetSweep(Call& call);
  absl::StatusOr<HttpResponse> ListCheckpoints(Call& call);

  // api_events.cc
  absl::StatusOr<HttpResponse> ListEvents(Call& call);
  absl::StatusOr<HttpResponse> ListLogs(Call& call);
  absl::StatusOr<HttpResponse> EventsPage(const Call& call, const std::vector<v1::JobEvent::PayloadCase>& kinds);
  absl::StatusOr<HttpResponse> NewestEvents(const std::string& job_id,
                                            const std::vector<v1::JobEvent::PayloadCase>& kinds, int64_t count);
  // Shows `take` the newest events of these kinds, steps not among them, newest first, until it says false. One is in
  // memory at a time.
  absl::Status VisitNewest(const std::string& job_id, const std::vector<v1::JobEvent::PayloadCase>& kinds, size_t count,
                           absl::FunctionRef<bool(const v1::JobEvent&)> take);
  absl::StatusOr<HttpResponse> GetSeries(Call& call);
  absl::StatusOr<HttpResponse> ListHistograms(Call& call);
  absl::StatusOr<HttpResponse> ListArtifacts(Call& call);

  // api_downloads.cc
  // Whether who made the call has gone away, for as long as the call lasts.
  static std::function<bool()> LeftBy(const Call& call);
  absl::StatusOr<std::unique_ptr<Slots::Lease>> TakeDownload(const Call& call);
  // A checkpoint by its own name, whatever stands for it in the path ("best"), with its files, MANIFEST included.
  struct Listing {
    std::string name;
    std::vector<ListedFile> files;
  };
  absl::StatusOr<Listing> FilesOf(const Call& call);
  absl::StatusOr<HttpResponse> GetCheckpoint(Call& call);
  absl::StatusOr<HttpResponse> GetCheckpointFile(Call& call);
  absl::StatusOr<HttpResponse> SendCheckpointFile(Call& call, const std::string& checkpoint, const ListedFile& file,
                                                  const std::optional<ByteRange>& range);
  absl::StatusOr<HttpResponse> ExportModel(Call& call);
  absl::StatusOr<HttpResponse> GetArtifact(Call& call);

  // api_archives.cc
  absl::StatusOr<HttpResponse> GetCheckpointArchive(Call& call);
  // Of one that the mirror alone has, and the list of checkpoints does not: now.
  absl::StatusOr<absl::Time> CheckpointTime(const Call& call, const std::string& checkpoint);
  class ArchiveWriter;
  // Downloads the checkpoint into `writer`. An error behind the archive's head leaves the client with fewer bytes than
  // the head says.
  absl::Status SendArchive(const Call& call, const std::string& checkpoint, ArchiveWriter* writer);

  // api_streams.cc
  absl::StatusOr<HttpResponse> StreamEvents(Call& call);
  absl::StatusOr<HttpResponse> StreamFleet(Call& call);
  // What is new, until the client, the feed or the right to see it is gone: why.
  absl::Status FollowFleet(const Call& call, FleetFeed::Subscription* subscription, class EventStream* stream);

  // api_session.cc
  absl::StatusOr<HttpResponse> GetSession(Call& call);
  absl::StatusOr<HttpResponse> OpenSession(Call& call);
  absl::StatusOr<HttpResponse> CloseSession(Call& call);
  // Of who has this secret; empty: nobody.
  HttpResponse SessionOf(absl::string_view secret) const;

  // api_changes.cc
  // Of what the path names; `resource`: the request's field for that.
  template <typename Request>
  absl::Status ReadChange(Call& call, const char* resource, Request* request);
  template <typename Request, typename Response>
  absl::StatusOr<HttpResponse> Change(Call& call, Backend::Method<Request, Response> method, absl::Duration timeout,
                                      const char* resource = "job_id");
  absl::StatusOr<HttpResponse> CancelJob(Call& call);
  absl::StatusOr<HttpResponse> PauseJob(Call& call);
  absl::StatusOr<HttpResponse> ResumeJob(Call& call);
  absl::StatusOr<HttpResponse> RetryJob(Call& call);
  absl::StatusOr<HttpResponse> CheckpointJob(Call& call);
  absl::StatusOr<HttpResponse> ProfileJob(Call& call);
  absl::StatusOr<HttpResponse> UpdateJob(Call& call);
  absl::StatusOr<HttpResponse> DrainDevice(Call& call);
  absl::StatusOr<HttpResponse> UndrainDevice(Call& call);

  // api_submit.cc
  absl::StatusOr<HttpResponse> Submit(Call& call);
  // The answer's body.
  absl::StatusOr<std::string> CreateJob(const Call& call, const v1::JobSpec& spec, bool validate_only);
  absl::StatusOr<std::string> CreateSweep(const Call& call, const v1::JobSpec& spec, bool validate_only);

  const Options options_;
  Backend backend_;
  Sessions sessions_;
  DigestCache digests_;
  Slots requests_;
  Slots streams_;
  // Of checkpoints' files, whose readers may take long; each is one of requests_ as well.
  Slots downloads_;
};

// A JSON answer.
HttpResponse JsonResponse(std::string body);

// The head of a file that is to be saved under `name`, in which nothing needs quoting.
HttpResponse AttachmentHead(const char* type, const std::string& name);
// Of a checkpoint whose copy takes its place.
void SayFromMirror(HttpResponse* head);

// Whether the client asks for server-sent events.
bool WantsStream(const HttpRequest& request);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_API_H_
