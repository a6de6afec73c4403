#include "server/worker/event_outbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/event_kinds.h"
#include "proto/spec/utf8.h"

namespace ampd {
namespace {

// A disk that was full may have room again without anyone here being told.
constexpr std::chrono::seconds kDiskRetry{1};

// Takes the place of an event that would never arrive, and keep all behind it from arriving.
void LeaveOut(int64_t bytes, int64_t limit, v1::JobEvent* event) {
  const std::string kind = NameOfKind(event->payload_case());
  v1::LogLine& log = *event->mutable_log();
  log.Clear();
  log.set_severity(v1::LogLine::WARNING);
  log.set_text(
      absl::StrCat("an event (", kind, ") was left out: it has ", bytes, " bytes, and an event at most ", limit));
}

}  // namespace

EventOutbox::EventOutbox(OutboxLimits limits, std::string spool_directory, std::function<void()> on_append)
    : limits_(limits), on_append_(std::move(on_append)), spool_(std::move(spool_directory), limits.spool_bytes) {}

absl::Status EventOutbox::Append(const v1::JobEvent& event) {
  v1::WorkerEvent numbered;
  *numbered.mutable_event() = event;
  // Else it would not read back.
  MakeValidUtf8(&numbered);
  const auto bytes = static_cast<int64_t>(numbered.event().ByteSizeLong());
  if (bytes > limits_.event_bytes) LeaveOut(bytes, limits_.event_bytes, numbered.mutable_event());
  {
    const MutexLock lock(&mutex_);
    if (closed_) return *closed_;
    numbered.set_number(last_ + 1);
    const std::string stored = numbered.SerializeAsString();
    while (!TryStore(stored)) {
      room_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + kDiskRetry);
      if (closed_) return *closed_;
    }
    ++last_;
  }
  on_append_();
  return absl::OkStatus();
}

bool EventOutbox::TryStore(const std::string& bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  // An event larger than the bound itself still has to pass, alone.
  if (spool_.empty() && (memory_.empty() || memory_bytes_ + size <= limits_.memory_bytes)) {
    memory_.push_back(bytes);
    memory_bytes_ += size;
    return true;
  }
  return spool_.Push(bytes).ok();
}

absl::StatusOr<std::optional<v1::WorkerEvent>> EventOutbox::Next() {
  const MutexLock lock(&mutex_);
  AMPD_RETURN_IF_ERROR(Refill());
  const uint64_t index = sent_ - acknowledged_;
  if (index >= memory_.size()) return std::optional<v1::WorkerEvent>();
  v1::WorkerEvent event;
  if (!event.ParseFromString(memory_[index]) || event.number() != sent_ + 1) {
    return absl::DataLossError(absl::StrCat("event ", sent_ + 1, " does not read back from the spool"));
  }
  ++sent_;
  return std::optional<v1::WorkerEvent>(std::move(event));
}

absl::Status EventOutbox::Refill() {
  while (!spool_.empty() && (memory_.empty() || memory_bytes_ < limits_.memory_bytes)) {
    AMPD_ASSIGN_OR_RETURN(std::string bytes, spool_.Pop());
    memory_bytes_ += static_cast<int64_t>(bytes.size());
    memory_.push_back(std::move(bytes));
  }
  return absl::OkStatus();
}

void EventOutbox::Acknowledge(uint64_t number) {
  const MutexLock lock(&mutex_);
  // What was durable before this connection may not have been sent on it; what is on disk was never sent.
  const uint64_t newest = acknowledged_ + memory_.size();
  while (acknowledged_ < std::min(number, newest)) {
    memory_bytes_ -= static_cast<int64_t>(memory_.front().size());
    memory_.pop_front();
    ++acknowledged_;
  }
  sent_ = std::max(sent_, acknowledged_);
  room_.NotifyAll();
}

void EventOutbox::Rewind() {
  const MutexLock lock(&mutex_);
  sent_ = acknowledged_;
}

void EventOutbox::Close(absl::Status reason) {
  const MutexLock lock(&mutex_);
  closed_ = std::move(reason);
  room_.NotifyAll();
}

uint64_t EventOutbox::last_number() const {
  const MutexLock lock(&mutex_);
  return last_;
}

uint64_t EventOutbox::acknowledged_number() const {
  const MutexLock lock(&mutex_);
  return acknowledged_;
}

bool EventOutbox::spooling() const {
  const MutexLock lock(&mutex_);
  return !spool_.empty();
}

}  // namespace ampd
