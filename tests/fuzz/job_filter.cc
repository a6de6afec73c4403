// What ListJobs takes: the filter, to the first line's end; the order, to the second's; and a page token. What parses
// is printed and parsed again to the same, and the database answers it.
#include <optional>

#include "absl/strings/str_split.h"
#include "server/store/database.h"
#include "server/store/job_filter.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

std::unique_ptr<Database> MakeDatabase() {
  auto database = Database::Open(Folder() + "/state");
  Check(database.ok(), database.status().ToString());
  for (int n = 1; n <= 3; ++n) {
    JobWrite write;
    write.create = true;
    write.record.submit_sequence = n;
    v1::Job& job = write.record.job;
    job.set_id(std::string(25, '0') + std::to_string(n));
    job.set_state(static_cast<v1::Job::State>(n));
    job.set_user(n == 1 ? "ann" : "");
    job.mutable_create_time()->set_seconds(1'700'000'000 + n);
    job.mutable_spec()->set_name("job");
    (*job.mutable_spec()->mutable_labels())["team"] = "vision";
    const absl::Status status = (*database)->Apply(write);
    Check(status.ok(), status.ToString());
  }
  return *std::move(database);
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  static const Database& database = *fuzz::MakeDatabase().release();
  // Of no text at all there are no lines.
  const std::string text = size == 0 ? "" : std::string(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  JobQuery query;
  query.page_size = 1;
  absl::StatusOr<JobFilter> filter = ParseJobFilter(lines[0]);
  if (!filter.ok()) return fuzz::CheckError(filter.status()), 0;
  const std::string printed = ToString(*filter);
  // Printing may quote and space more than was written.
  if (printed.size() <= kMaxFilterBytes) {
    const absl::StatusOr<JobFilter> again = ParseJobFilter(printed);
    fuzz::Check(again.ok(), printed + ": " + again.status().ToString());
    fuzz::Check(ToString(*again) == printed, printed + " is printed as " + ToString(*again));
  }
  query.filter = *std::move(filter);
  if (lines.size() > 1) {
    const absl::StatusOr<JobOrder> order = ParseJobOrder(lines[1]);
    if (!order.ok()) return fuzz::CheckError(order.status()), 0;
    query.order = *order;
  }
  if (lines.size() > 2) query.page_token = lines[2];
  absl::StatusOr<JobPage> page = database.ListJobs(query);
  fuzz::CheckError(page.status());
  query.page_token.clear();
  for (int pages = 0; page.ok() && pages < 4; ++pages) {
    page = database.ListJobs(query);
    fuzz::Check(page.ok(), printed + ": " + page.status().ToString());
    if (page->next_page_token.empty()) return 0;
    query.page_token = page->next_page_token;
  }
  fuzz::Check(!page.ok(), printed + ": more pages than jobs");
  return 0;
}
