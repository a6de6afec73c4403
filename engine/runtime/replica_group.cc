#include "engine/runtime/replica_group.h"

#include <utility>

namespace ampd::runtime {

absl::Status ReplicaGroup::Meet(std::unique_lock<std::mutex>* lock, bool may_abort) {
  if (may_abort && !status_.ok()) return status_;
  const uint64_t meeting = meetings_;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++meetings_;
    changed_.notify_all();
    return absl::OkStatus();
  }
  changed_.wait(*lock, [&] { return meetings_ != meeting || (may_abort && !status_.ok()); });
  return meetings_ != meeting ? absl::OkStatus() : status_;
}

absl::Status ReplicaGroup::Exchange(int rank, const void* own,
                                    absl::FunctionRef<void(const std::vector<const void*>&)> read) {
  std::unique_lock lock(mutex_);
  slots_[static_cast<size_t>(rank)] = own;
  absl::Status met = Meet(&lock, /*may_abort=*/true);
  if (!met.ok()) return met;
  // Nobody writes a slot before the second meeting.
  lock.unlock();
  read(slots_);
  lock.lock();
  // What `own` points at stays until all have read it. They do nothing else by now, so this ends, aborted or not.
  return Meet(&lock, /*may_abort=*/false);
}

void ReplicaGroup::Abort(absl::Status why) {
  const std::lock_guard end_lock(end_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(why);
    changed_.notify_all();
  }
  if (end_) end_();
}

absl::Status ReplicaGroup::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void ReplicaGroup::OnAbort(std::function<void()> end) {
  const std::lock_guard end_lock(end_mutex_);
  end_ = std::move(end);
  if (end_ && !status().ok()) end_();
}

}  // namespace ampd::runtime
