// The log of what happened to each job. Writers append; watchers read at their own pace and are woken when there is
// more.
#ifndef AMPD_SERVER_EVENTS_EVENT_LOG_H_
#define AMPD_SERVER_EVENTS_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/records.h"
#include "server/store/store.h"

namespace ampd {

// Thread-safe. Memory: one cache of the newest events, shared by all watchers; nothing is kept per watcher.
class EventLog {
 public:
  struct Options {
    // Bound on the cached events' serialised size, bytes.
    size_t cache_bytes = 16 << 20;
  };

  // `store` must outlive the log.
  explicit EventLog(Store* store) : EventLog(store, Options()) {}
  EventLog(Store* store, Options options);
  // Waits for the appends under way. A subscription that is left gets no more wake-ups.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Persists `write`, then makes its events readable, then calls `done`, then wakes the job's watchers. On an error
  // nothing is readable, and `done` gets the error. `done` runs on the store's thread; it must neither block nor call
  // the log.
  void Append(JobWrite write, Store::Done done);
  // As Append, of several as one: all become durable or none.
  void AppendAll(std::vector<JobWrite> writes, Store::Done done);

  // The events of `job_id` (a whole id) after `after_sequence`, oldest first, at most `limit` (>= 1), and no more than
  // fit into `max_bytes` serialised, but one at least; empty when there is none yet. NOT_FOUND for an unknown job;
  // OUT_OF_RANGE when `after_sequence` is beyond the newest event; the store's errors. Reads near the end come from
  // memory, older ones wait for the store's thread.
  absl::StatusOr<EventPage> Read(const std::string& job_id, uint64_t after_sequence, int limit,
                                 size_t max_bytes = SIZE_MAX);

  // Ends the wake-ups when destroyed: none runs after that. Not to be destroyed within its own wake-up.
  class Subscription {
   public:
    virtual ~Subscription() = default;
  };
  // `wake` runs on the log's own thread after new events of `job_id` became readable; wake-ups may be merged, so read
  // until the page is empty. It may call Read, must not block for long, and never delays a writer. Subscribe first and
  // read then, or events between the two are missed.
  std::unique_ptr<Subscription> Subscribe(const std::string& job_id, std::function<void()> wake);

  // `listen` runs on the log's own thread with each durable write, in order. Set before the first Append.
  void SetListener(std::function<void(const JobWrite&)> listen);

  // Subscriptions there are.
  int64_t watchers() const;
  // Reads so far of events that had left the cache.
  uint64_t store_reads() const;

  // Waits until the listener and the wake-ups of every event readable at the call have run.
  void Flush();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_EVENTS_EVENT_LOG_H_
