// Sums of gradients over the replicas of one training (data parallel), each on a device of its own. They lie in the
// devices' memory and are added up beside the backward pass that makes the next ones.
#ifndef AMPD_ENGINE_RUNTIME_COLLECTIVE_H_
#define AMPD_ENGINE_RUNTIME_COLLECTIVE_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/replica_group.h"

namespace ampd::runtime {

// One replica's end. Thread-compatible: used by its replica's thread, beside which the other replicas use theirs. Every
// replica makes the same calls in the same order. The backends and the arenas that were given outlive all of them.
class Collective {
 public:
  Collective(int rank, std::shared_ptr<ReplicaGroup> group) : rank_(rank), group_(std::move(group)) {}
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  int rank() const { return rank_; }
  int size() const { return group_->size(); }
  // Of all replicas. When it is aborted every call below returns its error, soon, whatever it waits for.
  ReplicaGroup* group() const { return group_.get(); }

  // Starts to add up, in fp32, these ranges (in elements) of the replicas' arenas, in place: afterwards all hold the
  // same bits, which do not depend on who came first. It takes what was launched on this replica's backend before, and
  // runs beside what is launched after, which must not touch the ranges until Finish(). `ranges` stay until then.
  // The replicas' ranges must not differ: GradientReducer compares them, once, before the first sum. INTERNAL where an
  // implementation sees that they do, as the host's does; NCCL compares nothing.
  virtual absl::Status AllReduceSum(float* arena, absl::Span<const ArenaSlot> ranges) = 0;
  // What is launched on this replica's backend from here on finds the sums of all that was started. In the host's
  // memory: waits for them.
  virtual absl::Status Finish() = 0;
  // Whether all that this replica started is done. To look at only: Finish() is what makes it so for the backend.
  virtual bool Done() = 0;

 private:
  const int rank_;
  const std::shared_ptr<ReplicaGroup> group_;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_COLLECTIVE_H_
