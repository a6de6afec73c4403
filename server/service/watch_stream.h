// One WatchJob call.
#ifndef AMPD_SERVER_SERVICE_WATCH_STREAM_H_
#define AMPD_SERVER_SERVICE_WATCH_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/training_service.pb.h"
#include "engine/core/mutex.h"
#include "server/events/event_log.h"
#include "server/events/log_tail.h"
#include "server/service/work_pool.h"

namespace ampd {

// Replays a job's events and follows, at the client's pace: at most one page of events is held, and only one message is
// on its way. Frees itself once the call is over.
class WatchStream : public grpc::ServerWriteReactor<v1::JobEvent>, public std::enable_shared_from_this<WatchStream> {
 public:
  // `log` and `pool` outlive the call.
  static std::shared_ptr<WatchStream> Create(EventLog* log, WorkPool* pool);

  // `job_id` is whole; of `request` the rest counts. Call this or Fail() once.
  void Start(const std::string& job_id, const v1::WatchJobRequest& request);
  void Fail(const absl::Status& status);

 private:
  WatchStream(EventLog* log, WorkPool* pool) : log_(log), pool_(pool) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Reads the next page, in the pool, when one is due.
  void ReadSoon();
  void Read();
  absl::StatusOr<EventPage> ReadPage();
  // Takes what is wanted of a page.
  void Keep(EventPage page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWanted(const v1::JobEvent& event) const;
  // Looks through a part of the log, from its end on, for where the newest events that are asked for begin. True once
  // that is known.
  absl::StatusOr<bool> SeekTail();
  // Writes the next event of the page, asks for another page, or ends the call.
  void Advance();
  void FinishOnce(const absl::Status& status);
  bool EndsTheLog(const v1::JobEvent& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  EventLog* const log_;
  WorkPool* const pool_;
  // Set by Start(), before the first read.
  std::string job_id_;
  // Empty: all.
  std::vector<v1::JobEvent::PayloadCase> kinds_;
  // 0: none.
  uint64_t until_ = 0;
  // The call owns itself until OnDone.
  std::shared_ptr<WatchStream> self_;

  Mutex mutex_;
  std::unique_ptr<EventLog::Subscription> subscription_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::JobEvent> page_ ABSL_GUARDED_BY(mutex_);
  v1::JobEvent current_ ABSL_GUARDED_BY(mutex_);
  // Everything up to here was read.
  uint64_t after_ ABSL_GUARDED_BY(mutex_) = 0;
  // The newest event when the last page was read.
  uint64_t last_known_ ABSL_GUARDED_BY(mutex_) = 0;
  bool checked_start_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool unread_ ABSL_GUARDED_BY(mutex_) = true;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by the one read that is under way.
  struct Seek {
    // Wanted events still to find, in what `tail` has yet to visit.
    int64_t missing = 0;
    // Unset until the first look.
    std::optional<LogTail> tail;
  };
  // Until it is known where the stream begins.
  std::optional<Seek> seek_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_WATCH_STREAM_H_
