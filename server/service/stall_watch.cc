#include "server/service/stall_watch.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ampd {

StallWatch::Stream::~Stream() { Go(); }

void StallWatch::Stream::Wait() {
  const absl::Duration now = watch_->clock_->Monotonic();
  const MutexLock lock(&watch_->mutex_);
  if (since_) return;
  since_ = now;
  watch_->waiting_.emplace(now, this);
}

void StallWatch::Stream::Go() {
  const MutexLock lock(&watch_->mutex_);
  if (!since_) return;
  const auto [begin, end] = watch_->waiting_.equal_range(*since_);
  for (auto it = begin; it != end; ++it) {
    if (it->second != this) continue;
    watch_->waiting_.erase(it);
    break;
  }
  since_.reset();
}

StallWatch::StallWatch(absl::Duration limit, const Clock* clock) : limit_(limit), clock_(clock) {
  if (limit_ < absl::InfiniteDuration()) thread_ = std::thread([this] { Run(); });
}

StallWatch::~StallWatch() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<StallWatch::Stream> StallWatch::Watch(std::function<void()> end) {
  return std::make_unique<Stream>(this, std::move(end));
}

absl::Status StallWatch::Silence() const {
  return absl::DeadlineExceededError(absl::StrCat("nothing was sent for ", absl::FormatDuration(limit_)));
}

void StallWatch::Check() {
  std::vector<std::function<void()>> ends;
  {
    const MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    while (!waiting_.empty() && now - waiting_.begin()->first >= limit_) {
      Stream* const stream = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      stream->since_.reset();
      ends.push_back(stream->end_);
    }
  }
  for (const std::function<void()>& end : ends) end();
}

void StallWatch::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    const auto wake_at = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(limit_ / 4);
    while (!stopping_ && changed_.WaitUntil(&mutex_, wake_at)) {
    }
    if (stopping_) return;
    lock.Unlock();
    Check();
    lock.Lock();
  }
}

}  // namespace ampd
