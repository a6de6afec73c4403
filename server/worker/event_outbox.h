// The events a worker has not seen acknowledged: numbered, in memory up to a bound, then on disk up to another, then
// the trainer waits.
#ifndef AMPD_SERVER_WORKER_EVENT_OUTBOX_H_
#define AMPD_SERVER_WORKER_EVENT_OUTBOX_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/mutex.h"
#include "server/worker/spool_file.h"

namespace ampd {

struct OutboxLimits {
  int64_t memory_bytes = 8 << 20;
  int64_t spool_bytes = int64_t{1} << 30;
  // The longest event, bytes. Also below the 4 MiB that a gRPC client takes by default, so that every watcher gets it.
  int64_t event_bytes = 3 << 20;
};

// Thread safe: the trainer appends, the link reads and acknowledges.
class EventOutbox {
 public:
  // `on_append` is called after each Append, on its thread, without locks held.
  EventOutbox(OutboxLimits limits, std::string spool_directory, std::function<void()> on_append);

  // Numbers the event (1, 2, ...) and keeps it until acknowledged; in place of one that is longer than event_bytes a
  // warning that says so. Waits while memory and disk are full. After Close() returns what was given there.
  absl::Status Append(const v1::JobEvent& event);

  // The event after the last one returned, or nullopt when there is none (yet, or in memory: the rest comes from disk
  // as acknowledgements make room). DATA_LOSS when the spool does not read back.
  absl::StatusOr<std::optional<v1::WorkerEvent>> Next();

  // Everything up to `number` is durable; forget it. A number never sent is ignored.
  void Acknowledge(uint64_t number);

  // A new connection: Next() starts over after the acknowledged number.
  void Rewind();

  // Lets every present and later Append() return `reason`; OK drops the events silently.
  void Close(absl::Status reason);

  // The number of the last event appended; 0 when there is none.
  uint64_t last_number() const;
  uint64_t acknowledged_number() const;
  bool spooling() const;

 private:
  bool TryStore(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OutboxLimits limits_;
  const std::function<void()> on_append_;
  mutable Mutex mutex_;
  CondVar room_;
  // Serialized WorkerEvents numbered acknowledged_ + 1, + 2, ...; those on disk follow.
  std::deque<std::string> memory_ ABSL_GUARDED_BY(mutex_);
  int64_t memory_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  SpoolFile spool_ ABSL_GUARDED_BY(mutex_);
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ampd

#endif  // AMPD_SERVER_WORKER_EVENT_OUTBOX_H_
