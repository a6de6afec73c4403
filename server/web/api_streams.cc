// The API's streams: a job's events, and what changes in the fleet.
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/event_kinds.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "server/auth/permissions.h"
#include "server/web/api.h"
#include "server/web/event_stream.h"
#include "server/web/job_watch.h"
#include "server/web/views.h"

namespace ampd {
namespace {

// Between two looks at what changed in the fleet; devices are looked at every other time.
constexpr absl::Duration kFleetPause = absl::Seconds(1);
// A client that comes back goes on behind at most so many events that it did not ask for.
constexpr uint64_t kMaxPassed = 1000;

// Where the client goes on: what it says by itself, when it comes back, takes the place of what the page said.
absl::StatusOr<uint64_t> AfterOf(const HttpRequest& request, const Query& query) {
  const std::optional<std::string> last = request.Header("Last-Event-ID");
  uint64_t after = 0;
  if (last && !last->empty()) {
    if (absl::SimpleAtoi(*last, &after) && after <= INT64_MAX) return after;
    return InvalidFields({{"Last-Event-ID", "is no sequence number"}});
  }
  AMPD_ASSIGN_OR_RETURN(const int64_t asked, query.Integer("after", 0, INT64_MAX, 0));
  return static_cast<uint64_t>(asked);
}

// Of a job whose log is at its end.
bool IsOver(const v1::Job& job) {
  return job.state() == v1::Job::SUCCEEDED || job.state() == v1::Job::FAILED || job.state() == v1::Job::CANCELLED;
}

// Sends events to a client that wants some kinds of them.
class Follower {
 public:
  Follower(EventStream* stream, std::vector<v1::JobEvent::PayloadCase> kinds)
      : stream_(stream), kinds_(std::move(kinds)) {}

  // False: the client is gone.
  bool Take(const v1::JobEvent& event) {
    if (kinds_.empty() || absl::c_linear_search(kinds_, event.payload_case())) {
      passed_ = 0;
      return stream_->SendNumbered(event.sequence(), ToJson(event, JsonStyle::kCompact));
    }
    last_passed_ = event.sequence();
    return ++passed_ < kMaxPassed || TellPassed();
  }
  bool TellPassed() { return std::exchange(passed_, 0) == 0 || stream_->Pass(last_passed_); }

 private:
  EventStream* const stream_;
  const std::vector<v1::JobEvent::PayloadCase> kinds_;
  // Since the client was told a number.
  uint64_t passed_ = 0;
  uint64_t last_passed_ = 0;
};

}  // namespace

absl::StatusOr<HttpResponse> JsonApi::StreamEvents(Call& call) {
  const HttpRequest& request = call.exchange.request();
  for (const char* name : {"tail", "limit"}) {
    if (call.query.Has(name)) return InvalidFields({{name, "not with a stream"}});
  }
  AMPD_ASSIGN_OR_RETURN(const auto kinds, PayloadsOf(call.query.List("kinds")));
  AMPD_ASSIGN_OR_RETURN(const uint64_t after, AfterOf(request, call.query));
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  if (after > job.last_sequence()) {
    return absl::OutOfRangeError(
        absl::StrCat("job ", job.id(), ": event ", after, " is beyond the newest, which is ", job.last_sequence()));
  }
  // By this an EventSource does not come back once more.
  if (IsOver(job) && after == job.last_sequence()) return HttpResponse{204, "", {}, ""};
  if (request.method == "HEAD") return HttpResponse{200, "text/event-stream", {}, ""};
  JobWatch watch(&backend_, call.credentials, job.id(), after);
  EventStream stream(&call.exchange);
  Follower follower(&stream, kinds);
  while (true) {
    const JobWatch::Got got = watch.Next(kHeartbeat);
    if (got == JobWatch::Got::kEnd) break;
    const bool alive =
        got == JobWatch::Got::kEvent ? follower.Take(watch.event()) : follower.TellPassed() && stream.Beat();
    if (!alive) return absl::CancelledError("the client is gone");
  }
  follower.TellPassed();
  if (watch.status().ok()) {
    stream.Send("end", "{}");
  } else {
    stream.Send("failure", ErrorResponse(watch.status()).body);
  }
  return HttpResponse();
}

absl::StatusOr<HttpResponse> JsonApi::StreamFleet(Call& call) {
  const HttpRequest& request = call.exchange.request();
  if (!WantsStream(request)) {
    return absl::InvalidArgumentError("a stream: send Accept: text/event-stream, or read /jobs and /devices");
  }
  AMPD_ASSIGN_OR_RETURN(const Caller caller, options_.gate->Identify(call.credentials.secret));
  AMPD_RETURN_IF_ERROR(CheckRole(caller, "/ampd.v1.TrainingService/ListJobs"));
  if (request.method == "HEAD") return HttpResponse{200, "text/event-stream", {}, ""};
  const auto subscription = options_.fleet->Subscribe(caller.Scope());
  EventStream stream(&call.exchange);
  const absl::Status status = FollowFleet(call, subscription.get(), &stream);
  stream.Send("failure", ErrorResponse(status).body);
  return status;
}

absl::Status JsonApi::FollowFleet(const Call& call, FleetFeed::Subscription* subscription, EventStream* stream) {
  const absl::Status gone = absl::CancelledError("the client is gone");
  if (!stream->Send("reset", "{}")) return gone;
  std::string devices_told;
  for (int64_t round = 0;; ++round) {
    // A token may be revoked meanwhile.
    AMPD_RETURN_IF_ERROR(options_.gate->Identify(call.credentials.secret).status());
    if (round % 2 == 0) {
      AMPD_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices,
                            (backend_.Call<v1::ListDevicesRequest, v1::ListDevicesResponse>(
                                call.credentials, &Backend::Stub::ListDevices, {})));
      std::string text = ToJson(devices, JsonStyle::kCompact);
      if (text != devices_told && !stream->Send("devices", text)) return gone;
      devices_told = std::move(text);
    }
    const FleetFeed::Changes changes = subscription->TakeAfter(kFleetPause);
    if (changes.stopped) return absl::UnavailableError("the server is shutting down");
    if (changes.missed && !stream->Send("reset", "{}")) return gone;
    for (const std::string& id : changes.jobs) {
      absl::StatusOr<v1::Job> job = backend_.GetJob(call.credentials, id);
      if (!job.ok()) return job.status();
      if (!stream->Send("job", ToJson(SummaryView(*std::move(job)), JsonStyle::kCompact))) return gone;
    }
    if (!stream->Beat()) return gone;
  }
}

}  // namespace ampd
