#include "server/events/tail_cache.h"

#include <algorithm>

namespace ampd {

void TailCache::Add(const std::string& job_id, const v1::JobEvent& event) {
  const size_t bytes = event.ByteSizeLong();
  jobs_[job_id].push_back({event, bytes});
  order_.push_back(job_id);
  bytes_ += bytes;
  while (bytes_ > max_bytes_ && order_.size() > 1) DropOldest();
}

void TailCache::DropOldest() {
  const auto job = jobs_.find(order_.front());
  bytes_ -= job->second.front().bytes;
  job->second.pop_front();
  if (job->second.empty()) jobs_.erase(job);
  order_.pop_front();
}

std::optional<EventPage> TailCache::Read(const std::string& job_id, uint64_t after_sequence, int limit,
                                         size_t max_bytes) const {
  const auto job = jobs_.find(job_id);
  if (job == jobs_.end()) return std::nullopt;
  const std::deque<Entry>& entries = job->second;
  EventPage page;
  page.last_sequence = entries.back().event.sequence();
  if (after_sequence + 1 < entries.front().event.first_sequence() || after_sequence > page.last_sequence) {
    return std::nullopt;
  }
  auto entry = std::partition_point(entries.begin(), entries.end(),
                                    [&](const Entry& e) { return e.event.sequence() <= after_sequence; });
  size_t bytes = 0;
  for (; entry != entries.end() && static_cast<int>(page.events.size()) < limit; ++entry) {
    bytes += entry->bytes;
    if (bytes > max_bytes && !page.events.empty()) break;
    page.events.push_back(entry->event);
  }
  return page;
}

}  // namespace ampd
