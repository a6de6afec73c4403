// What the API tells of a job's events.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "proto/spec/event_kinds.h"
#include "proto/spec/resolve.h"
#include "proto/spec/text.h"
#include "server/events/log_tail.h"
#include "server/web/api.h"
#include "server/web/series_json.h"

namespace ampd {
namespace {

using Payload = v1::JobEvent::PayloadCase;

constexpr int64_t kMaxEvents = 1000;
// What one request looks through.
constexpr int64_t kMaxLooked = 20000;
constexpr int kPageEvents = 1000;
constexpr size_t kPageBytes = 1 << 20;
constexpr size_t kMaxBodyBytes = 4 << 20;
constexpr size_t kMaxHistograms = 1000;

bool IsWanted(const v1::JobEvent& event, const std::vector<Payload>& kinds) {
  return kinds.empty() || absl::c_linear_search(kinds, event.payload_case());
}

// `count` at most, and no more than make an answer.
void KeepNewest(size_t count, std::vector<v1::JobEvent>* events) {
  size_t bytes = 0;
  auto first = events->end();
  while (first != events->begin() && events->end() - first < static_cast<std::ptrdiff_t>(count) &&
         bytes <= kMaxBodyBytes) {
    bytes += (--first)->ByteSizeLong();
  }
  events->erase(events->begin(), first);
}

std::string PageJson(const std::vector<std::string>& events, uint64_t next_after, uint64_t last_sequence) {
  std::string json = "{\"events\": [";
  const char* separator = "";
  for (const std::string& event : events) {
    absl::StrAppend(&json, separator, event);
    separator = ",\n";
  }
  return absl::StrCat(json, "], \"next_after\": ", next_after, ", \"last_sequence\": ", last_sequence, "}\n");
}

}  // namespace

absl::StatusOr<HttpResponse> JsonApi::ListEvents(Call& call) {
  if (WantsStream(call.exchange.request())) return StreamEvents(call);
  AMPD_ASSIGN_OR_RETURN(const std::vector<Payload> kinds, PayloadsOf(call.query.List("kinds")));
  return EventsPage(call, kinds);
}

absl::StatusOr<HttpResponse> JsonApi::ListLogs(Call& call) {
  // What `ampctl logs` shows.
  static constexpr Payload kLogged[] = {
      v1::JobEvent::kStateChange, v1::JobEvent::kCheckpoint,      v1::JobEvent::kRewound,
      v1::JobEvent::kLog,         v1::JobEvent::kPrecisionChange, v1::JobEvent::kArtifact,
      v1::JobEvent::kModeChosen,  v1::JobEvent::kCorruptSample,   v1::JobEvent::kEnvironment};
  return EventsPage(call, {std::begin(kLogged), std::end(kLogged)});
}

absl::StatusOr<HttpResponse> JsonApi::EventsPage(const Call& call, const std::vector<Payload>& kinds) {
  AMPD_ASSIGN_OR_RETURN(const int64_t tail, call.query.Integer("tail", 1, kMaxEvents, 0));
  AMPD_ASSIGN_OR_RETURN(const int64_t after, call.query.Integer("after", 0, INT64_MAX, 0));
  AMPD_ASSIGN_OR_RETURN(const int64_t limit, call.query.Integer("limit", 1, kMaxEvents, 100));
  if (tail > 0 && (call.query.Has("after") || call.query.Has("limit"))) {
    return InvalidFields({{"tail", "not together with after or limit"}});
  }
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  if (tail > 0) return NewestEvents(job.id(), kinds, tail);
  std::vector<std::string> events;
  auto next_after = static_cast<uint64_t>(after);
  size_t bytes = 0;
  for (int64_t looked = 0; looked < kMaxLooked;) {
    AMPD_ASSIGN_OR_RETURN(const EventPage page, options_.log->Read(job.id(), next_after, kPageEvents, kPageBytes));
    for (const v1::JobEvent& event : page.events) {
      if (IsWanted(event, kinds)) {
        events.push_back(ToJson(event, JsonStyle::kCompact));
        bytes += events.back().size();
      }
      next_after = event.sequence();
      const bool full = static_cast<int64_t>(events.size()) == limit || bytes > kMaxBodyBytes;
      if (full) return JsonResponse(PageJson(events, next_after, page.last_sequence));
    }
    looked += static_cast<int64_t>(page.events.size());
    if (page.events.empty() || looked >= kMaxLooked || next_after >= page.last_sequence) {
      return JsonResponse(PageJson(events, next_after, page.last_sequence));
    }
  }
  return absl::InternalError("no page of events");
}

absl::StatusOr<HttpResponse> JsonApi::NewestEvents(const std::string& job_id, const std::vector<Payload>& kinds,
                                                   int64_t count) {
  uint64_t last_sequence = 0;
  AMPD_RETURN_IF_ERROR(digests_.Look(job_id, [&](const JobDigest& digest) { last_sequence = digest.sequence(); }));
  std::vector<std::string> texts;
  if (kinds.empty() || absl::c_linear_search(kinds, v1::JobEvent::kStep)) {
    // Nearly all events are steps.
    const int stretch = kinds.empty() ? static_cast<int>(count) : LogTail::kMaxStretch;
    LogTail tail(options_.log, job_id, 0, last_sequence, stretch);
    const auto most = static_cast<size_t>(count);
    std::vector<v1::JobEvent> events;
    bool full = false;
    for (int64_t looked = 0; !full && !tail.done() && looked < kMaxLooked;) {
      std::vector<v1::JobEvent> newest;
      const auto take = [&](std::vector<v1::JobEvent> page) {
        for (v1::JobEvent& event : page) {
          if (IsWanted(event, kinds)) newest.push_back(std::move(event));
        }
        KeepNewest(most, &newest);
      };
      AMPD_ASSIGN_OR_RETURN(const int64_t visited, tail.Back(take));
      looked += visited;
      newest.insert(newest.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
      const size_t found = newest.size();
      KeepNewest(most, &newest);
      full = newest.size() < found || newest.size() == most;
      events = std::move(newest);
    }
    for (const v1::JobEvent& event : events) texts.push_back(ToJson(event, JsonStyle::kCompact));
  } else {
    size_t bytes = 0;
    const auto take = [&](const v1::JobEvent& event) {
      texts.push_back(ToJson(event, JsonStyle::kCompact));
      bytes += texts.back().size();
      return bytes <= kMaxBodyBytes;
    };
    AMPD_RETURN_IF_ERROR(VisitNewest(job_id, kinds, static_cast<size_t>(count), take));
    absl::c_reverse(texts);
  }
  return JsonResponse(PageJson(texts, last_sequence, last_sequence));
}

absl::Status JsonApi::VisitNewest(const std::string& job_id, const std::vector<Payload>& kinds, size_t count,
                                  absl::FunctionRef<bool(const v1::JobEvent&)> take) {
  std::vector<uint64_t> sequences;
  AMPD_RETURN_IF_ERROR(
      digests_.Look(job_id, [&](const JobDigest& digest) { sequences = digest.Newest(kinds, count); }));
  for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {
    AMPD_ASSIGN_OR_RETURN(const EventPage page, options_.log->Read(job_id, *sequence - 1, 1));
    for (const v1::JobEvent& event : page.events) {
      if (!take(event)) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpResponse> JsonApi::GetSeries(Call& call) {
  SeriesRange range;
  AMPD_ASSIGN_OR_RETURN(range.points, call.query.Integer("points", 1, 4000, 1000));
  AMPD_ASSIGN_OR_RETURN(range.from, call.query.Integer("from_step", 1, INT64_MAX / 2, 1));
  AMPD_ASSIGN_OR_RETURN(range.to, call.query.Integer("to_step", 1, INT64_MAX / 2, 0));
  if (range.to > 0 && range.to < range.from) return InvalidFields({{"to_step", "is before from_step"}});
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  std::string json;
  AMPD_RETURN_IF_ERROR(
      digests_.Look(job.id(), [&](const JobDigest& digest) { json = SeriesJson(job.id(), digest, range); }));
  return JsonResponse(std::move(json));
}

absl::StatusOr<HttpResponse> JsonApi::ListHistograms(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const int64_t asked, call.query.Integer("sequence", 1, INT64_MAX, 0));
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  std::vector<std::string> available;
  std::optional<v1::JobEvent> shown;
  const auto take = [&](const v1::JobEvent& event) {
    const v1::GradientDiagnostics& diagnostics = event.gradient_diagnostics();
    available.push_back(absl::StrCat("{\"sequence\": ", event.sequence(), ", \"step\": ", diagnostics.step(),
                                     ", \"phase\": ", QuoteJson(diagnostics.phase()), "}"));
    if (asked == 0 ? !shown : event.sequence() == static_cast<uint64_t>(asked)) shown = event;
    return true;
  };
  AMPD_RETURN_IF_ERROR(VisitNewest(job.id(), {v1::JobEvent::kGradientDiagnostics}, kMaxHistograms, take));
  absl::c_reverse(available);
  std::string json = absl::StrCat("{\"available\": [", absl::StrJoin(available, ", "), "]");
  if (asked != 0 && !shown) {
    return absl::NotFoundError(absl::StrCat("job ", job.id(), " has no histograms at event ", asked));
  }
  if (shown) {
    absl::StrAppend(&json, ", \"sequence\": ", shown->sequence(),
                    ",\n\"diagnostics\": ", ToJson(shown->gradient_diagnostics(), JsonStyle::kCompact));
  }
  return JsonResponse(absl::StrCat(json, "}\n"));
}

absl::StatusOr<HttpResponse> JsonApi::ListArtifacts(Call& call) {
  AMPD_ASSIGN_OR_RETURN(const int64_t limit, call.query.Integer("limit", 1, kMaxEvents, 100));
  AMPD_ASSIGN_OR_RETURN(const v1::Job job, JobOf(call));
  std::string json = "{\"artifacts\": [";
  std::set<std::string> names;
  const auto take = [&](const v1::JobEvent& event) {
    if (!names.insert(event.artifact().name()).second) return true;
    const std::string artifact = ToJson(event.artifact(), JsonStyle::kCompact);
    absl::StrAppend(&json, names.size() > 1 ? ",\n" : "", "{\"sequence\": ", event.sequence(),
                    ", \"time\": ", ToJson(event.time(), JsonStyle::kCompact), ", ", absl::StripPrefix(artifact, "{"));
    return static_cast<int64_t>(names.size()) < limit;
  };
  // A name may come several times.
  AMPD_RETURN_IF_ERROR(VisitNewest(job.id(), {v1::JobEvent::kArtifact}, static_cast<size_t>(2 * limit), take));
  return JsonResponse(absl::StrCat(json, "]}\n"));
}

}  // namespace ampd
