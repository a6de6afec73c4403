#include "tests/bench/service_load/pages.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "engine/core/status.h"
#include "tests/bench/service_load/figures.h"

namespace ampd::load {
namespace {

constexpr int kTimes = 100;
constexpr int kMaxPage = 1000;

}  // namespace

absl::StatusOr<v1::ListJobsResponse> ListPage(LoadDaemon* daemon, int size, const std::string& token) {
  grpc::ClientContext context;
  v1::ListJobsRequest request;
  request.set_page_size(size);
  request.set_page_token(token);
  v1::ListJobsResponse response;
  const grpc::Status status = daemon->stub()->ListJobs(&context, request, &response);
  if (!status.ok()) return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  return response;
}

absl::StatusOr<double> PageTime(LoadDaemon* daemon, const std::string& token) {
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    const absl::Time start = absl::Now();
    AMPD_ASSIGN_OR_RETURN(const v1::ListJobsResponse page, ListPage(daemon, kPage, token));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    if (page.jobs_size() != kPage) return absl::InternalError("a page to be timed is not full");
  }
  return Median(seconds);
}

absl::StatusOr<std::string> TokenBehind(LoadDaemon* daemon, int jobs) {
  std::string token;
  while (jobs > 0) {
    AMPD_ASSIGN_OR_RETURN(const v1::ListJobsResponse page, ListPage(daemon, std::min(jobs, kMaxPage), token));
    jobs -= page.jobs_size();
    token = page.next_page_token();
    if (token.empty()) return absl::OutOfRangeError("there are fewer jobs");
  }
  return token;
}

}  // namespace ampd::load
