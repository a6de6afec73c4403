// The newest events of all jobs, bounded by their size in bytes; the oldest go first, whichever job they are of.
#ifndef AMPD_SERVER_EVENTS_TAIL_CACHE_H_
#define AMPD_SERVER_EVENTS_TAIL_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/store/records.h"

namespace ampd {

// Not thread-safe.
class TailCache {
 public:
  explicit TailCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `event` follows the job's last one.
  void Add(const std::string& job_id, const v1::JobEvent& event);

  // The page after `after_sequence`, as EventLog::Read bounds it; empty when the cache does not reach back that far, or
  // not ahead that far.
  std::optional<EventPage> Read(const std::string& job_id, uint64_t after_sequence, int limit,
                                size_t max_bytes = SIZE_MAX) const;

  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    v1::JobEvent event;
    size_t bytes;
  };
  void DropOldest();

  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::deque<Entry>> jobs_;
  // The job of each entry, oldest entry first.
  std::deque<std::string> order_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_EVENTS_TAIL_CACHE_H_
