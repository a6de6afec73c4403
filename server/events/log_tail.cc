#include "server/events/log_tail.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr size_t kPageBytes = 1 << 20;

}  // namespace

LogTail::LogTail(EventLog* log, std::string job_id, uint64_t begin, uint64_t end, int stretch)
    : log_(log),
      job_id_(std::move(job_id)),
      begin_(begin),
      first_stretch_(static_cast<uint64_t>(stretch)),
      end_(end),
      stretch_(first_stretch_) {}

absl::StatusOr<int64_t> LogTail::Back(absl::FunctionRef<void(std::vector<v1::JobEvent>)> visit) {
  if (done()) return 0;
  uint64_t after = 0;
  EventPage page;
  while (true) {
    after = end_ - begin_ > stretch_ ? end_ - stretch_ : begin_;
    AMPD_ASSIGN_OR_RETURN(page, ReadPage(after));
    const bool whole = page.events.empty() || page.events.back().sequence() >= end_;
    // How many events a longer one has cannot be known.
    if (whole || end_ - after <= kMaxStretch) break;
    stretch_ = (end_ - after) / 2;
  }
  uint64_t events = 0;
  uint64_t at = after;
  while (true) {
    while (!page.events.empty() && page.events.back().sequence() > end_) page.events.pop_back();
    if (page.events.empty()) break;
    at = page.events.back().sequence();
    events += page.events.size();
    visit(std::move(page.events));
    if (at >= end_) break;
    AMPD_ASSIGN_OR_RETURN(page, ReadPage(at));
  }
  end_ = after;
  if (2 * events < first_stretch_) stretch_ *= 2;
  return static_cast<int64_t>(events);
}

absl::StatusOr<EventPage> LogTail::ReadPage(uint64_t after) {
  const auto most = static_cast<int>(std::min<uint64_t>(kMaxStretch, end_ - after));
  return log_->Read(job_id_, after, most, kPageBytes);
}

}  // namespace ampd
