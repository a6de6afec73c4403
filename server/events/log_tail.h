// A job's log from its end backwards.
#ifndef AMPD_SERVER_EVENTS_LOG_TAIL_H_
#define AMPD_SERVER_EVENTS_LOG_TAIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "server/events/event_log.h"

namespace ampd {

// Visits each event once, the newest stretch first. Not thread-safe.
class LogTail {
 public:
  static constexpr int kMaxStretch = 1000;

  // The events of `job_id` (a whole id) after `begin` up to `end`, sequence numbers; `stretch`: how many numbers the
  // first stretch has, 1 to kMaxStretch. `log` outlives this.
  LogTail(EventLog* log, std::string job_id, uint64_t begin, uint64_t end, int stretch);

  // The next stretch back: calls `visit` with its events, oldest first, a page of about 1 MiB at a time, and returns
  // how many they were, kMaxStretch at most. Merged reports stand for many numbers: where they are, stretches grow
  // longer. Errors as EventLog::Read.
  absl::StatusOr<int64_t> Back(absl::FunctionRef<void(std::vector<v1::JobEvent>)> visit);

  // What is after it was visited.
  uint64_t end() const { return end_; }
  bool done() const { return end_ <= begin_; }

 private:
  absl::StatusOr<EventPage> ReadPage(uint64_t after);

  EventLog* const log_;
  const std::string job_id_;
  const uint64_t begin_;
  const uint64_t first_stretch_;
  uint64_t end_;
  uint64_t stretch_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_EVENTS_LOG_TAIL_H_
