#include "engine/runtime/replica_group.h"

#include <utility>

namespace ampd::runtime {

absl::Status ReplicaGroup::Meet(bool may_abort) {
  if (may_abort && !status_.ok()) return status_;
  const uint64_t meeting = meetings_;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++meetings_;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  while (meetings_ == meeting && !(may_abort && !status_.ok())) changed_.Wait(&mutex_);
  return meetings_ != meeting ? absl::OkStatus() : status_;
}

absl::Status ReplicaGroup::Exchange(int rank, const void* own,
                                    absl::FunctionRef<void(const std::vector<const void*>&)> read) {
  MutexLock lock(&mutex_);
  slots_[static_cast<size_t>(rank)] = own;
  absl::Status met = Meet(/*may_abort=*/true);
  if (!met.ok()) return met;
  // Nobody writes a slot before the second meeting.
  const std::vector<const void*> slots = slots_;
  lock.Unlock();
  read(slots);
  lock.Lock();
  // What `own` points at stays until all have read it. They do nothing else by now, so this ends, aborted or not.
  return Meet(/*may_abort=*/false);
}

void ReplicaGroup::Abort(absl::Status why) {
  const MutexLock end_lock(&end_mutex_);
  {
    const MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = std::move(why);
    changed_.NotifyAll();
  }
  if (end_) end_();
}

absl::Status ReplicaGroup::status() const {
  const MutexLock lock(&mutex_);
  return status_;
}

void ReplicaGroup::OnAbort(std::function<void()> end) {
  const MutexLock end_lock(&end_mutex_);
  end_ = std::move(end);
  if (end_ && !status().ok()) end_();
}

}  // namespace ampd::runtime
