#include "server/service/watch_stream.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/event_kinds.h"
#include "proto/spec/resolve.h"
#include "server/jobs/job_state.h"
#include "server/service/grpc_status.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

constexpr int kPageEvents = 64;
// Of a page that a slow client makes the daemon hold.
constexpr size_t kPageBytes = 32 << 10;

}  // namespace

std::shared_ptr<WatchStream> WatchStream::Create(EventLog* log, WorkPool* pool) {
  std::shared_ptr<WatchStream> stream(new WatchStream(log, pool));
  stream->self_ = stream;
  return stream;
}

void WatchStream::Start(const std::string& job_id, const v1::WatchJobRequest& request) {
  const std::vector<std::string> names(request.kinds().begin(), request.kinds().end());
  absl::StatusOr<std::vector<v1::JobEvent::PayloadCase>> kinds = PayloadsOf(names);
  if (!kinds.ok()) return Fail(kinds.status());
  if (request.tail() < 0) {
    return Fail(InvalidFields({{"tail", absl::StrCat("must be at least 0, is ", request.tail())}}));
  }
  job_id_ = job_id;
  kinds_ = *std::move(kinds);
  until_ = request.until_sequence();
  if (until_ > 0 && until_ <= request.after_sequence()) return FinishOnce(absl::OkStatus());
  if (request.has_tail()) seek_.emplace(Seek{.missing = request.tail(), .tail = std::nullopt});
  {
    const MutexLock lock(&mutex_);
    after_ = request.after_sequence();
  }
  // Before the first read, or events between the two would be missed.
  auto subscription = log_->Subscribe(job_id, [weak = weak_from_this()] {
    const std::shared_ptr<WatchStream> stream = weak.lock();
    if (stream == nullptr) return;
    {
      const MutexLock lock(&stream->mutex_);
      stream->unread_ = true;
    }
    stream->ReadSoon();
  });
  {
    const MutexLock lock(&mutex_);
    // A call that is over already drops it here, on a thread that is not the log's.
    if (!done_) subscription_ = std::move(subscription);
  }
  ReadSoon();
}

// A terminal event with others behind it is that of a job which was retried.
bool WatchStream::EndsTheLog(const v1::JobEvent& event) const {
  return event.has_state_change() && IsTerminal(event.state_change().to()) && event.sequence() >= last_known_;
}

void WatchStream::Fail(const absl::Status& status) { FinishOnce(status); }

void WatchStream::ReadSoon() {
  {
    const MutexLock lock(&mutex_);
    if (reading_ || writing_ || finished_ || ended_ || !unread_ || !page_.empty()) return;
    reading_ = true;
    unread_ = false;
  }
  if (pool_->Post([stream = shared_from_this()] { stream->Read(); })) return;
  FinishOnce(TryAgain("too many watchers at once; try again", absl::Seconds(1)));
}

absl::StatusOr<EventPage> WatchStream::ReadPage() {
  uint64_t after = 0;
  bool check_start = false;
  {
    const MutexLock lock(&mutex_);
    after = after_;
    check_start = !std::exchange(checked_start_, true) && after > 0;
  }
  if (check_start) {
    // A client that has seen the terminal event would wait for ever.
    absl::StatusOr<EventPage> last = log_->Read(job_id_, after - 1, 1);
    if (!last.ok()) return last;
    const MutexLock lock(&mutex_);
    last_known_ = last->last_sequence;
    ended_ = !last->events.empty() && last->events[0].sequence() == after && EndsTheLog(last->events[0]);
  }
  return log_->Read(job_id_, after, kPageEvents, kPageBytes);
}

bool WatchStream::IsWanted(const v1::JobEvent& event) const {
  return kinds_.empty() || absl::c_linear_search(kinds_, event.payload_case());
}

void WatchStream::Keep(EventPage page) {
  // What was appended while reading is told by a wake-up; what did not fit into the page is not.
  if (!page.events.empty()) unread_ = true;
  last_known_ = page.last_sequence;
  for (v1::JobEvent& event : page.events) {
    after_ = event.sequence();
    const bool last = until_ > 0 && after_ >= until_;
    ended_ = last || EndsTheLog(event);
    if (last || IsWanted(event)) page_.push_back(std::move(event));
    if (last) return;
  }
}

absl::StatusOr<bool> WatchStream::SeekTail() {
  uint64_t begin = 0;
  {
    const MutexLock lock(&mutex_);
    begin = after_;
  }
  if (!seek_->tail) {
    AMPD_ASSIGN_OR_RETURN(const EventPage page, log_->Read(job_id_, begin, 1, 1));
    const uint64_t end = until_ > 0 ? std::min(until_, page.last_sequence) : page.last_sequence;
    seek_->tail.emplace(log_, job_id_, begin, end, LogTail::kMaxStretch);
  }
  LogTail& tail = *seek_->tail;
  uint64_t start = tail.end();
  if (seek_->missing > 0 && !tail.done()) {
    std::vector<uint64_t> wanted;
    const auto note = [&](const std::vector<v1::JobEvent>& events) {
      for (const v1::JobEvent& event : events) {
        if (IsWanted(event)) wanted.push_back(event.sequence());
      }
    };
    AMPD_RETURN_IF_ERROR(tail.Back(note).status());
    const auto found = static_cast<int64_t>(wanted.size());
    const bool enough = found >= seek_->missing;
    start = enough ? wanted[static_cast<size_t>(found - seek_->missing)] - 1 : tail.end();
    if (!enough && !tail.done()) {
      seek_->missing -= found;
      return false;
    }
  }
  // The event there is sent in any case.
  if (until_ > 0) start = std::min(start, until_ - 1);
  seek_.reset();
  const MutexLock lock(&mutex_);
  after_ = std::max(after_, start);
  return true;
}

void WatchStream::Read() {
  if (seek_) {
    const absl::StatusOr<bool> known = SeekTail();
    if (!known.ok()) return FinishOnce(known.status());
    {
      const MutexLock lock(&mutex_);
      reading_ = false;
      unread_ = true;
    }
    // Behind others that wait to read.
    return ReadSoon();
  }
  absl::StatusOr<EventPage> page = ReadPage();
  if (!page.ok()) return FinishOnce(page.status());
  {
    const MutexLock lock(&mutex_);
    reading_ = false;
    Keep(*std::move(page));
  }
  Advance();
}

void WatchStream::Advance() {
  bool end = false;
  {
    const MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (!page_.empty()) {
      current_ = std::move(page_.front());
      page_.pop_front();
      writing_ = true;
      // Under the lock: once Finish was called no write may start.
      return StartWrite(&current_);
    }
    end = ended_;
  }
  if (end) return FinishOnce(absl::OkStatus());
  ReadSoon();
}

void WatchStream::OnWriteDone(bool ok) {
  {
    const MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (!ok) return FinishOnce(absl::CancelledError("the watcher is gone"));
  Advance();
}

void WatchStream::OnCancel() { FinishOnce(absl::CancelledError("the watch was cancelled")); }

void WatchStream::FinishOnce(const absl::Status& status) {
  const MutexLock lock(&mutex_);
  if (std::exchange(finished_, true)) return;
  Finish(ToGrpcStatus(status));
}

void WatchStream::OnDone() {
  std::unique_ptr<EventLog::Subscription> subscription;
  {
    const MutexLock lock(&mutex_);
    done_ = true;
    subscription = std::move(subscription_);
  }
  subscription.reset();
  self_.reset();
}

}  // namespace ampd
