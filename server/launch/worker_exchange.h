// One question to an `ampd-worker` of its own, on stdin, and its answer on stdout: what crashes or exhausts that
// process costs its asker an error and the daemon nothing.
#ifndef AMPD_SERVER_LAUNCH_WORKER_EXCHANGE_H_
#define AMPD_SERVER_LAUNCH_WORKER_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/launch/stop_event.h"
#include "server/launch/worker_account.h"

namespace ampd {

struct ExchangeLimits {
  absl::Duration timeout = absl::Seconds(30);
  // As ProcessLimits'.
  uint64_t cpu_seconds = 20;
  uint64_t address_space_bytes = 0;
  uint64_t open_files = 1024;
  // Who plans writes none.
  std::optional<uint64_t> file_bytes = 0;
  // Whom the process becomes; unset: it stays this one's user.
  std::optional<WorkerAccount> account;
  // Of the answer.
  size_t max_output_bytes = 16u << 20;
  // The process is ended once one of them is set, and none is started then. They outlive the exchange.
  std::vector<const StopEvent*> stops;
};

// What errors call the process and what it does.
struct ExchangeWords {
  std::string who = "planner";
  std::string doing = "planning the model";
};

// Runs `argv` and waits for it; no device is visible to it. Thread safe; blocks up to limits.timeout.
// UNAVAILABLE when the program cannot be started or is stopped, DEADLINE_EXCEEDED when it takes too long,
// RESOURCE_EXHAUSTED when a limit or the kernel ended it, INTERNAL when it crashed. The message ends with what it wrote
// to stderr, shortened.
absl::StatusOr<std::string> AskWorker(std::vector<std::string> argv, std::string request, const ExchangeLimits& limits,
                                      const ExchangeWords& words);

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_WORKER_EXCHANGE_H_
