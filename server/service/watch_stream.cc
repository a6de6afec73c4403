#include "server/service/watch_stream.h"

#include <utility>

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

void WatchStream::Start(const std::string& job_id, uint64_t after_sequence) {
  job_id_ = job_id;
  {
    const MutexLock lock(&mutex_);
    after_ = after_sequence;
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

void WatchStream::Read() {
  absl::StatusOr<EventPage> page = ReadPage();
  if (!page.ok()) return FinishOnce(page.status());
  {
    const MutexLock lock(&mutex_);
    reading_ = false;
    // What was appended while reading is told by a wake-up; what did not fit into the page is not.
    if (!page->events.empty()) unread_ = true;
    last_known_ = page->last_sequence;
    for (v1::JobEvent& event : page->events) page_.push_back(std::move(event));
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
    after_ = current_.sequence();
    ended_ = EndsTheLog(current_);
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
