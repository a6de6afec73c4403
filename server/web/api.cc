#include "server/web/api.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "server/auth/peer.h"
#include "server/http/large_stack.h"
#include "server/http/request_reader.h"
#include "server/service/try_again.h"
#include "server/web/views.h"

namespace ampd {
namespace {

constexpr char kRoot[] = "/api/v1";
// Of the port's threads, streams not among them; the others are for /metrics and health.
constexpr int kRequests = 48;
constexpr int kRequestsOfAClient = 32;
constexpr int kStreams = 48;
constexpr int kStreamsOfAnAddress = 32;
constexpr int kStreamsOfAUser = 16;
constexpr int kDownloads = 24;
// Of a page of jobs with more than one. The service bounds it as a message, of which JSON may be ten times as much.
constexpr size_t kMaxListBytes = 4 << 20;

using Service = Backend::Stub;

// What is answered is data, whoever opens it as a page.
void AddApiHeaders(HttpResponse* response) {
  response->headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  for (const auto& [name, value] : response->headers) {
    if (name == "Content-Security-Policy") return;
  }
  response->headers.emplace_back("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
}

// Whether the query asks for jobs without what is heavy.
absl::StatusOr<bool> WantsSummary(const Query& query) {
  const std::string view = absl::AsciiStrToUpper(query.Text("view"));
  if (view == "SUMMARY") return true;
  if (view.empty() || view == "FULL") return false;
  return InvalidFields({{"view", "must be FULL or SUMMARY"}});
}

absl::StatusOr<v1::ListJobsRequest> ListRequestOf(const Query& query) {
  v1::ListJobsRequest request;
  AMPD_ASSIGN_OR_RETURN(const int64_t page_size, query.Integer("page_size", 0, 1000, 0));
  request.set_page_size(static_cast<int32_t>(page_size));
  request.set_page_token(query.Text("page_token"));
  request.set_filter(query.Text("filter"));
  request.set_order_by(query.Text("order_by"));
  for (const std::string& name : query.List("states")) {
    v1::Job::State state;
    if (!v1::Job::State_Parse(absl::AsciiStrToUpper(name), &state) || state == v1::Job::STATE_UNSPECIFIED) {
      return InvalidFields({{"states", absl::StrCat("\"", Cut(name, 100), "\" is no state of a job")}});
    }
    request.add_states(state);
  }
  return request;
}

// Whether the body is of a type that is read, which are those that a page of another site cannot send without asking
// first; that is not answered.
bool IsTaken(const HttpRequest& request, bool takes_yaml) {
  const std::string header = request.Header("Content-Type").value_or("");
  const absl::string_view type = absl::StripAsciiWhitespace(absl::string_view(header).substr(0, header.find(';')));
  return absl::EqualsIgnoreCase(type, "application/json") ||
         (takes_yaml && absl::EqualsIgnoreCase(type, "application/yaml"));
}

HttpResponse WrongType(bool takes_yaml) {
  return ErrorResponse(absl::InvalidArgumentError(absl::StrCat("Content-Type must be application/json",
                                                               takes_yaml ? " or application/yaml" : "")),
                       415);
}

HttpResponse Message(const google::protobuf::Message& message) {
  return JsonResponse(ToJson(message, JsonStyle::kPretty));
}

}  // namespace

bool WantsStream(const HttpRequest& request) {
  return absl::StrContains(request.Header("Accept").value_or(""), "text/event-stream");
}

HttpResponse JsonResponse(std::string body) { return {200, "application/json", {}, std::move(body)}; }

JsonApi::JsonApi(Options options, const std::shared_ptr<grpc::Channel>& channel)
    : options_(std::move(options)),
      backend_(channel),
      sessions_(options_.clock),
      digests_(options_.log),
      requests_(kRequests),
      streams_(kStreams),
      downloads_(kDownloads) {}

void JsonApi::Stop() {
  options_.fleet->Stop();
  backend_.Stop();
}

void JsonApi::AddRoutes(Router* router) {
  AddRead(router, "/server", {}, &JsonApi::GetServer);
  AddRead(router, "/devices", {}, &JsonApi::ListDevices);
  AddRead(router, "/jobs", {"page_size", "page_token", "states", "filter", "order_by", "view"}, &JsonApi::ListJobs);
  AddRead(router, "/jobs/{}", {"view"}, &JsonApi::GetJob);
  AddRead(router, "/jobs/{}/spec", {"format"}, &JsonApi::GetSpec);
  AddRead(router, "/jobs/{}/plan", {}, &JsonApi::GetPlan);
  AddRead(router, "/jobs/{}/checkpoints", {}, &JsonApi::ListCheckpoints);
  AddRead(router, "/jobs/{}/checkpoints/{}", {"format"}, &JsonApi::GetCheckpoint);
  AddRead(router, "/jobs/{}/checkpoints/{}/export", {"form", "dtype", "ema", "network"}, &JsonApi::ExportModel);
  AddRead(router, "/jobs/{}/checkpoints/{}/{}", {}, &JsonApi::GetCheckpointFile);
  AddRead(router, "/jobs/{}/series", {"points", "from_step", "to_step"}, &JsonApi::GetSeries);
  AddRead(router, "/jobs/{}/events", {"after", "limit", "tail", "kinds"}, &JsonApi::ListEvents);
  AddRead(router, "/jobs/{}/logs", {"after", "limit", "tail"}, &JsonApi::ListLogs);
  AddRead(router, "/jobs/{}/histograms", {"sequence"}, &JsonApi::ListHistograms);
  AddRead(router, "/jobs/{}/artifacts", {"limit"}, &JsonApi::ListArtifacts);
  AddRead(router, "/jobs/{}/artifacts/{}", {}, &JsonApi::GetArtifact);
  AddRead(router, "/sweeps", {"page_size", "page_token", "user"}, &JsonApi::ListSweeps);
  AddRead(router, "/sweeps/{}", {}, &JsonApi::GetSweep);
  AddRead(router, "/events", {}, &JsonApi::StreamFleet);
  AddRead(router, "/session", {}, &JsonApi::GetSession);
  AddChange(router, "POST", "/session", &JsonApi::OpenSession);
  AddChange(router, "DELETE", "/session", &JsonApi::CloseSession);
  AddChange(router, "POST", "/jobs/{}/cancel", &JsonApi::CancelJob, "CancelJob");
  AddChange(router, "POST", "/jobs/{}/pause", &JsonApi::PauseJob, "PauseJob");
  AddChange(router, "POST", "/jobs/{}/resume", &JsonApi::ResumeJob, "ResumeJob");
  AddChange(router, "POST", "/jobs/{}/retry", &JsonApi::RetryJob, "RetryJob");
  AddChange(router, "POST", "/jobs/{}/checkpoint", &JsonApi::CheckpointJob, "CheckpointJob");
  AddChange(router, "POST", "/jobs/{}/profile", &JsonApi::ProfileJob, "ProfileJob");
  AddChange(router, "POST", "/jobs/{}/update", &JsonApi::UpdateJob, "UpdateJob");
  Add(router, "POST", "/submit", {&JsonApi::Submit, {"request_id", "validate_only"}, true, "CreateJob"});
  AddChange(router, "POST", "/devices/{}/drain", &JsonApi::DrainDevice, "DrainDevice");
  AddChange(router, "POST", "/devices/{}/undrain", &JsonApi::UndrainDevice, "UndrainDevice");
}

void JsonApi::Add(Router* router, absl::string_view method, absl::string_view path, Route route) {
  router->Add(method, absl::StrCat(kRoot, path),
              [this, route = std::move(route)](HttpExchange& exchange, const Router::Arguments& arguments) {
                Serve(exchange, arguments, route);
              });
}

void JsonApi::AddChange(Router* router, absl::string_view method, absl::string_view path, Handler handler,
                        const char* call) {
  Add(router, method, path, {handler, {}, false, call});
}

void JsonApi::AddRead(Router* router, absl::string_view path, std::vector<std::string> parameters, Handler handler) {
  Add(router, "GET", path, {handler, std::move(parameters)});
}

void JsonApi::Serve(HttpExchange& exchange, const Router::Arguments& arguments, const Route& route) {
  absl::StatusOr<HttpResponse> answer =
      WithRetryInfo(absl::UnavailableError("there is no thread for the request; try again"), absl::Seconds(1));
  RunOnLargeStack([&] { answer = Handle(exchange, arguments, route); });
  if (exchange.status() != 0) return;
  HttpResponse response = answer.ok() ? *std::move(answer) : ErrorResponse(answer.status());
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  AddApiHeaders(&response);
  exchange.Send(response);
}

absl::StatusOr<HttpResponse> JsonApi::Handle(HttpExchange& exchange, const Router::Arguments& arguments,
                                             const Route& route) {
  Call call{exchange, arguments, {}, {}, ""};
  absl::StatusOr<HttpResponse> answer = Answer(call, route);
  if (!answer.ok()) {
    WriteDownRefused(call, route, answer.status().code());
  } else if (answer->status >= 400) {
    WriteDownRefused(call, route, absl::StatusCode::kInvalidArgument);
  }
  return answer;
}

absl::StatusOr<HttpResponse> JsonApi::Answer(Call& call, const Route& route) {
  HttpExchange& exchange = call.exchange;
  const HttpRequest& request = exchange.request();
  AMPD_RETURN_IF_ERROR(CheckOrigin(request, options_.place));
  AMPD_ASSIGN_OR_RETURN(call.credentials, CredentialsOf(request));
  call.has_credentials = true;
  AMPD_ASSIGN_OR_RETURN(const auto slot, TakeSlot(request, call.credentials));
  AMPD_ASSIGN_OR_RETURN(call.query, Query::Parse(request.query, route.parameters));
  if (request.method == "GET" || request.method == "HEAD") return (this->*route.handler)(call);
  if (!IsTaken(request, route.takes_yaml)) return WrongType(route.takes_yaml);
  absl::StatusOr<std::string> body = exchange.ReadBody(kMaxBodyBytes);
  if (!body.ok()) return ErrorResponse(body.status(), 413);
  call.body = *std::move(body);
  return (this->*route.handler)(call);
}

absl::StatusOr<std::unique_ptr<Slots::Lease>> JsonApi::TakeSlot(const HttpRequest& request,
                                                                const Credentials& credentials) {
  std::unique_ptr<Slots::Lease> slot;
  if (!WantsStream(request)) {
    slot = requests_.Take(PeerAddress(request.peer), kRequestsOfAClient);
  } else {
    AMPD_ASSIGN_OR_RETURN(const std::string client, ClientOf(request, credentials));
    slot = streams_.Take(client, options_.gate->asks_for_tokens() ? kStreamsOfAUser : kStreamsOfAnAddress);
  }
  if (slot != nullptr) return slot;
  return WantsStream(request)
             ? WithRetryInfo(absl::UnavailableError("too many streams are under way; try again"), absl::Seconds(5))
             : WithRetryInfo(absl::UnavailableError("too many requests are under way; try again"), absl::Seconds(1));
}

absl::StatusOr<Credentials> JsonApi::CredentialsOf(const HttpRequest& request) {
  AMPD_ASSIGN_OR_RETURN(std::optional<std::string> secret, BearerOf(request));
  if (!secret) {
    const std::optional<std::string> cookie = CookieOf(request, SessionCookie(request));
    if (cookie) secret = sessions_.Find(*cookie);
  }
  return Credentials{secret.value_or(""), request.peer};
}

void JsonApi::WriteDownRefused(const Call& call, const Route& route, absl::StatusCode code) const {
  if (options_.audit == nullptr || route.method == nullptr || call.service_asked) return;
  const HttpRequest& request = call.exchange.request();
  const absl::StatusOr<Query> query = Query::Parse(request.query, route.parameters);
  if (query.ok() && query->Flag("validate_only").value_or(false)) return;
  AuditRecord record;
  // Who was not looked at may be a page of another site that uses a browser: nobody, whoever has signed in there.
  if (call.has_credentials) record.caller = options_.gate->Identify(call.credentials.secret).value_or(Caller());
  record.time = options_.clock->Now();
  record.peer = request.peer;
  record.method = route.method;
  record.resource = call.arguments.empty() ? "" : call.arguments[0];
  record.code = absl::StatusCodeToString(code);
  record.changed_nothing = true;
  options_.audit->Write(record);
}

absl::StatusOr<std::string> JsonApi::ClientOf(const HttpRequest& request, const Credentials& credentials) const {
  if (!options_.gate->asks_for_tokens()) return PeerAddress(request.peer);
  AMPD_ASSIGN_OR_RETURN(const Caller caller, options_.gate->Identify(credentials.secret));
  return absl::StrCat("user ", caller.user);
}

absl::StatusOr<v1::Job> JsonApi::JobOf(const Call& call) {
  return backend_.GetJob(call.credentials, call.arguments[0]);
}

absl::StatusOr<HttpResponse> JsonApi::GetServer(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const v1::ServerInfo info, (backend_.Call<v1::GetServerInfoRequest, v1::ServerInfo>(
                                                       call.credentials, &Service::GetServerInfo, {})));
  return Message(info);
}

absl::StatusOr<HttpResponse> JsonApi::ListDevices(Call& call) {
  AMPD_ASSIGN_OR_RETURN(
      const v1::ListDevicesResponse devices,
      (backend_.Call<v1::ListDevicesRequest, v1::ListDevicesResponse>(call.credentials, &Service::ListDevices, {})));
  return Message(devices);
}

absl::StatusOr<HttpResponse> JsonApi::ListJobs(Call& call) {
  AMPD_ASSIGN_OR_RETURN(v1::ListJobsRequest request, ListRequestOf(call.query));
  AMPD_ASSIGN_OR_RETURN(const bool summary, WantsSummary(call.query));
  AMPD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, PageOf(call, request, summary));
  const int fitting = JobsWithin(page, kMaxListBytes);
  if (fitting < page.jobs_size()) {
    // Asked for again: only the service knows what the next page begins with.
    request.set_page_size(fitting);
    page.Clear();
    AMPD_ASSIGN_OR_RETURN(page, PageOf(call, request, summary));
  }
  return Message(page);
}

absl::StatusOr<v1::ListJobsResponse> JsonApi::PageOf(const Call& call, const v1::ListJobsRequest& request,
                                                     bool summary) {
  AMPD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, (backend_.Call<v1::ListJobsRequest, v1::ListJobsResponse>(
                                                       call.credentials, &Service::ListJobs, request)));
  if (summary) {
    for (v1::Job& job : *page.mutable_jobs()) job = SummaryView(std::move(job));
  }
  return page;
}

absl::StatusOr<HttpResponse> JsonApi::GetJob(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const bool summary, WantsSummary(call.query));
  AMPD_ASSIGN_OR_RETURN(v1::Job job, JobOf(call));
  return Message(summary ? SummaryView(std::move(job)) : job);
}

absl::StatusOr<HttpResponse> JsonApi::GetSpec(Call& call) {
  const std::string format = absl::AsciiStrToLower(call.query.Text("format"));
  if (!format.empty() && format != "json" && format != "yaml") {
    return InvalidFields({{"format", "must be json or yaml"}});
  }
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  if (format != "yaml") return Message(job.spec());
  return HttpResponse{200, "text/plain; charset=utf-8", {}, ToYaml(job.spec())};
}

absl::StatusOr<HttpResponse> JsonApi::GetPlan(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  return Message(job.plan());
}

absl::StatusOr<HttpResponse> JsonApi::ListSweeps(Call& call) {
  v1::ListSweepsRequest request;
  AMPD_ASSIGN_OR_RETURN(const int64_t page_size, call.query.Integer("page_size", 0, 1000, 0));
  request.set_page_size(static_cast<int32_t>(page_size));
  request.set_page_token(call.query.Text("page_token"));
  request.set_user(call.query.Text("user"));
  AMPD_ASSIGN_OR_RETURN(
      const v1::ListSweepsResponse page,
      (backend_.Call<v1::ListSweepsRequest, v1::ListSweepsResponse>(call.credentials, &Service::ListSweeps, request)));
  return Message(page);
}

absl::StatusOr<HttpResponse> JsonApi::GetSweep(Call& call) {
  v1::GetSweepRequest request;
  request.set_sweep_id(call.arguments[0]);
  AMPD_ASSIGN_OR_RETURN(const v1::JobSweep sweep, (backend_.Call<v1::GetSweepRequest, v1::JobSweep>(
                                                      call.credentials, &Service::GetSweep, request)));
  return Message(sweep);
}

absl::StatusOr<HttpResponse> JsonApi::ListCheckpoints(Call& call) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(call.arguments[0]);
  AMPD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse list,
                        (backend_.Call<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(
                            call.credentials, &Service::ListCheckpoints, request)));
  return Message(list);
}

}  // namespace ampd
