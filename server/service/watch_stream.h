// One WatchJob call.
#ifndef AMPD_SERVER_SERVICE_WATCH_STREAM_H_
#define AMPD_SERVER_SERVICE_WATCH_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ampd/v1/event.pb.h"
#include "engine/core/mutex.h"
#include "server/events/event_log.h"
#include "server/service/work_pool.h"

namespace ampd {

// Replays a job's events and follows, at the client's pace: at most one page of events is held, and only one message is
// on its way. Frees itself once the call is over.
class WatchStream : public grpc::ServerWriteReactor<v1::JobEvent>, public std::enable_shared_from_this<WatchStream> {
 public:
  // `log` and `pool` outlive the call.
  static std::shared_ptr<WatchStream> Create(EventLog* log, WorkPool* pool);

  // `job_id` is whole. Call this or Fail() once.
  void Start(const std::string& job_id, uint64_t after_sequence);
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
  // Writes the next event of the page, asks for another page, or ends the call.
  void Advance();
  void FinishOnce(const absl::Status& status);
  bool EndsTheLog(const v1::JobEvent& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  EventLog* const log_;
  WorkPool* const pool_;
  // Set by Start().
  std::string job_id_;
  // The call owns itself until OnDone.
  std::shared_ptr<WatchStream> self_;

  Mutex mutex_;
  std::unique_ptr<EventLog::Subscription> subscription_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::JobEvent> page_ ABSL_GUARDED_BY(mutex_);
  v1::JobEvent current_ ABSL_GUARDED_BY(mutex_);
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
};

}  // namespace ampd

#endif  // AMPD_SERVER_SERVICE_WATCH_STREAM_H_
