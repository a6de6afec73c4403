// What the replicas of one training, each in a thread of its own in one process, tell each other from the host: small
// values, and that one of them failed.
#ifndef AMPD_ENGINE_RUNTIME_REPLICA_GROUP_H_
#define AMPD_ENGINE_RUNTIME_REPLICA_GROUP_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/core/mutex.h"

namespace ampd::runtime {

// Thread-safe. No replica waits for one that failed: whoever does calls Abort().
class ReplicaGroup {
 public:
  // Of ranks 0..size-1; size >= 1.
  explicit ReplicaGroup(int size) : size_(size), slots_(static_cast<size_t>(size), nullptr) {}
  ReplicaGroup(const ReplicaGroup&) = delete;
  ReplicaGroup& operator=(const ReplicaGroup&) = delete;

  int size() const { return size_; }

  // Gives every replica what each one has, by rank. Waits until all have called it; each makes the same calls, of the
  // same T, in the same order. The error of Abort(): then `all` is as it was.
  template <typename T>
  absl::Status AllGather(int rank, const T& own, std::vector<T>* all) {
    return Exchange(rank, &own, [all](const std::vector<const void*>& slots) {
      all->clear();
      for (const void* slot : slots) all->push_back(*static_cast<const T*>(slot));
    });
  }

  // Ends with `why`, which is not OK, whatever replicas wait for now and will wait for later. The first one stands.
  void Abort(absl::Status why);
  // What Abort() was first given; OK while nobody called it.
  absl::Status status() const;
  // Calls `end` once when the group is aborted, on the thread that does so: it ends waits that the group knows nothing
  // of. At once where it was aborted already. nullptr: nothing is called any more, and no call is under way.
  void OnAbort(std::function<void()> end);

 private:
  absl::Status Exchange(int rank, const void* own, absl::FunctionRef<void(const std::vector<const void*>&)> read);
  // Waits until all have come here. Leaves at an abort if `may_abort`, and then not all may have.
  absl::Status Meet(bool may_abort) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int size_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<const void*> slots_ ABSL_GUARDED_BY(mutex_);
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Held while end_ is called.
  Mutex end_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::function<void()> end_ ABSL_GUARDED_BY(end_mutex_);
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_REPLICA_GROUP_H_
