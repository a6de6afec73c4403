// Pages of ListJobs.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_PAGES_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_PAGES_H_

#include <string>

#include "absl/status/statusor.h"
#include "ampd/v1/training_service.pb.h"
#include "tests/bench/service_load/load_daemon.h"

namespace ampd::load {

// Jobs on the pages that are timed.
inline constexpr int kPage = 100;

absl::StatusOr<v1::ListJobsResponse> ListPage(LoadDaemon* daemon, int size, const std::string& token);

// Median of many times of the page at `token` (empty: the newest jobs), seconds.
absl::StatusOr<double> PageTime(LoadDaemon* daemon, const std::string& token = "");

// The token of the page after the newest `jobs`.
absl::StatusOr<std::string> TokenBehind(LoadDaemon* daemon, int jobs);

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_PAGES_H_
