// Jobs by what they are looked for by.
#include <memory>
#include <utility>

#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/job_select.h"
#include "server/store/statement.h"

namespace ampd {
namespace {

// The rows of one SELECT, one at a time.
class Cursor {
 public:
  Cursor(const Database& database, const JobSelect& select) : statement_(database, select.sql, Statement::Once()) {
    for (const SqlValue& value : select.values) {
      if (const int64_t* number = std::get_if<int64_t>(&value); number != nullptr) {
        statement_.Int(*number);
      } else {
        statement_.Text(std::get<std::string>(value));
      }
    }
  }

  absl::Status Advance() {
    AMPD_ASSIGN_OR_RETURN(has_row_, statement_.Step());
    if (!has_row_) return absl::OkStatus();
    place_.sequence = statement_.IntAt(0);
    place_.key = statement_.IsTextAt(1) ? SqlValue(statement_.BytesAt(1)) : SqlValue(statement_.IntAt(1));
    return absl::OkStatus();
  }
  bool has_row() const { return has_row_; }
  const JobPlace& place() const { return place_; }
  bool matches() const { return statement_.IntAt(2) != 0; }

 private:
  Statement statement_;
  bool has_row_ = false;
  JobPlace place_;
};

// The candidates of all in one order.
class Candidates {
 public:
  explicit Candidates(bool descending) : descending_(descending) {}

  absl::Status Add(const Database& database, const JobSelect& select) {
    cursors_.push_back(std::make_unique<Cursor>(database, select));
    return cursors_.back()->Advance();
  }
  // Null at the end.
  Cursor* First() const {
    Cursor* first = nullptr;
    for (const std::unique_ptr<Cursor>& cursor : cursors_) {
      if (!cursor->has_row()) continue;
      if (first == nullptr || ComesBefore(cursor->place(), first->place(), descending_)) first = cursor.get();
    }
    return first;
  }

 private:
  const bool descending_;
  std::vector<std::unique_ptr<Cursor>> cursors_;
};

}  // namespace

absl::StatusOr<JobPage> Database::ListJobs(const JobQuery& query) const {
  std::optional<JobPlace> after;
  if (!query.page_token.empty()) {
    AMPD_ASSIGN_OR_RETURN(after, PlaceOf(query, query.page_token));
  }
  Candidates candidates(query.order.descending);
  for (const JobSelect& select : SelectJobs(query, after)) AMPD_RETURN_IF_ERROR(candidates.Add(*this, select));
  JobPage page;
  JobPlace last;
  int64_t looked_at = 0;
  size_t bytes = 0;
  for (Cursor* first = candidates.First(); first != nullptr; first = candidates.First()) {
    const bool full = static_cast<int>(page.jobs.size()) == query.page_size || bytes >= kMaxListBytes;
    if ((full && first->matches()) || looked_at == kMaxListed) {
      page.next_page_token = PageToken(query, last);
      break;
    }
    ++looked_at;
    last = first->place();
    if (first->matches()) {
      AMPD_ASSIGN_OR_RETURN(JobRecord record, RecordOf(last.sequence));
      bytes += record.job.ByteSizeLong();
      page.jobs.push_back(std::move(record.job));
    }
    AMPD_RETURN_IF_ERROR(first->Advance());
  }
  return page;
}

// Also of a job that is there and whose labels are no longer in the index: its priority may have changed.
absl::Status Database::InsertIntoIndex(int64_t sequence, const v1::Job& job) {
  const int64_t created = job.create_time().seconds() * 1'000'000'000 + job.create_time().nanos();
  AMPD_RETURN_IF_ERROR(Statement(*this, "INSERT OR REPLACE INTO job_index VALUES(?1, ?2, ?3, ?4, ?5)")
                           .Int(sequence)
                           .Text(job.spec().name())
                           .Text(job.user())
                           .Int(job.spec().resources().priority())
                           .Int(created)
                           .Run());
  for (const auto& [key, value] : job.spec().labels()) {
    AMPD_RETURN_IF_ERROR(Statement(*this, "INSERT OR REPLACE INTO job_labels VALUES(?1, ?2, ?3)")
                             .Text(key)
                             .Text(value)
                             .Int(sequence)
                             .Run());
  }
  return absl::OkStatus();
}

absl::Status Database::RemoveLabels(int64_t sequence) {
  Statement query(*this, "SELECT spec FROM job_specs WHERE sequence=?1");
  AMPD_ASSIGN_OR_RETURN(const bool found, query.Int(sequence).Step());
  v1::JobSpec spec;
  if (!found || !spec.ParseFromString(std::string(query.BytesAt(0)))) {
    return absl::DataLossError(absl::StrCat("the spec of the job with submit sequence ", sequence, " is damaged"));
  }
  for (const auto& [key, value] : spec.labels()) {
    AMPD_RETURN_IF_ERROR(Statement(*this, "DELETE FROM job_labels WHERE key=?1 AND value=?2 AND job=?3")
                             .Text(key)
                             .Text(value)
                             .Int(sequence)
                             .Run());
  }
  return absl::OkStatus();
}

absl::Status Database::FillJobIndex() {
  std::vector<int64_t> sequences;
  {
    Statement query(*this, "SELECT sequence FROM jobs");
    while (true) {
      AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
      if (!row) break;
      sequences.push_back(query.IntAt(0));
    }
  }
  for (const int64_t sequence : sequences) {
    AMPD_ASSIGN_OR_RETURN(const JobRecord record, RecordOf(sequence));
    AMPD_RETURN_IF_ERROR(InsertIntoIndex(sequence, record.job));
  }
  return absl::OkStatus();
}

}  // namespace ampd
