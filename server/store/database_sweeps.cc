// Lists of sweeps.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"
#include "server/store/sweep_select.h"

namespace ampd {
namespace {

static_assert(v1::Job::State_MIN == 0 && v1::Job::State_MAX == 11, "kSelectStates names all but the first");

constexpr size_t kIdBytes = 26;
// Above every id.
constexpr char kTop[] = "~";

// Tells one list's tokens from another's.
std::string ListOf(const SweepQuery& query) { return query.user ? absl::StrCat("of ", *query.user) : "all"; }

std::string TokenOf(const SweepQuery& query, const v1::SweepSummary& last) {
  return absl::WebSafeBase64Escape(absl::StrCat(last.id(), ListOf(query)));
}

// The id that those of the page are below.
absl::StatusOr<std::string> PlaceOf(const SweepQuery& query) {
  if (query.page_token.empty()) return kTop;
  std::string bytes;
  const bool is_token = query.page_token.size() <= 2000 && absl::WebSafeBase64Unescape(query.page_token, &bytes) &&
                        bytes.size() > kIdBytes && bytes.substr(kIdBytes) == ListOf(query);
  if (is_token) return bytes.substr(0, kIdBytes);
  return absl::InvalidArgumentError("is not one that ListSweeps gave for this user");
}

v1::SweepSummary SummaryAt(const Statement& row) {
  constexpr int64_t kNanos = 1'000'000'000;
  v1::SweepSummary sweep;
  sweep.set_id(row.BytesAt(0));
  sweep.set_count(static_cast<int32_t>(row.IntAt(2)));
  sweep.set_user(row.BytesAt(3));
  sweep.set_name(row.BytesAt(4));
  sweep.mutable_create_time()->set_seconds(row.IntAt(5) / kNanos);
  sweep.mutable_create_time()->set_nanos(static_cast<int32_t>(row.IntAt(5) % kNanos));
  return sweep;
}

}  // namespace

absl::Status CheckPageToken(const SweepQuery& query) { return PlaceOf(query).status(); }

absl::Status Database::CountStates(int64_t first, int64_t jobs, v1::SweepSummary* sweep) const {
  Statement query(*this, kSelectStates);
  query.Int(first).Int(jobs);
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return absl::OkStatus();
    v1::SweepSummary::StateCount* count = sweep->add_states();
    count->set_state(static_cast<v1::Job::State>(query.IntAt(0)));
    count->set_jobs(static_cast<int32_t>(query.IntAt(1)));
  }
}

absl::StatusOr<SweepPage> Database::ListSweeps(const SweepQuery& query) const {
  AMPD_ASSIGN_OR_RETURN(const std::string below, PlaceOf(query));
  Statement rows(*this, query.user ? kSelectUsersSweeps : kSelectSweeps);
  rows.Text(below);
  if (query.user) rows.Text(*query.user);
  SweepPage page;
  int64_t looked_at = 0;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return page;
    if (static_cast<int>(page.sweeps.size()) == query.page_size || looked_at >= kMaxListed) break;
    page.sweeps.push_back(SummaryAt(rows));
    looked_at += rows.IntAt(2);
    AMPD_RETURN_IF_ERROR(CountStates(rows.IntAt(1), rows.IntAt(2), &page.sweeps.back()));
  }
  page.next_page_token = TokenOf(query, page.sweeps.back());
  return page;
}

}  // namespace ampd
