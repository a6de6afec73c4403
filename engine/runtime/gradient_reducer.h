// Cuts the gradient arena into buckets and has each added up over the replicas as soon as the backward pass is done
// with it.
#ifndef AMPD_ENGINE_RUNTIME_GRADIENT_REDUCER_H_
#define AMPD_ENGINE_RUNTIME_GRADIENT_REDUCER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/collective.h"
#include "engine/runtime/model_memory.h"
#include "engine/runtime/plan.h"

namespace ampd::runtime {

// As large as pays for the start of a sum, as small as lets the first begin early: PyTorch's default (Li et al. 2020,
// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training").
inline constexpr int64_t kGradientBucketBytes = int64_t{25} << 20;

// Gradients that are added up in one go.
struct GradientBucket {
  // The step of the plan that adds to them last.
  int last_step = 0;
  // In the gradient arena, ascending; neighbours are one range, with the zeros between them.
  std::vector<ArenaSlot> ranges;
};

// Every parameter of plan.gradient_order is in one bucket. Buckets are in the order in which the backward pass
// completes them, and hold `bucket_bytes` or a little more, the last one less. A parameter larger than that is a bucket
// alone or with what came before it. bucket_bytes >= 1.
std::vector<GradientBucket> GradientBuckets(const Plan& plan, const ModelLayout& layout, int64_t bucket_bytes);

// Of one replica and one plan. Thread-compatible, as the collective; allocates nothing but in its constructor.
class GradientReducer {
 public:
  // All outlive it; `plan` lies in `memory`.
  GradientReducer(const Plan* plan, ModelMemory* memory, Collective* collective, int64_t bucket_bytes);

  // Before the pass that completes the gradients: of several micro-batches the last.
  void Begin() { next_ = 0; }
  // For Executor::Hook: `step` of the plan was launched. The first call waits for the other replicas'; INTERNAL where
  // their buckets are others, as plans for unlike devices may have.
  absl::Status After(const PlanStep& step);
  // After that pass: what is launched from here on finds the sums. Errors are the collective's.
  absl::Status Finish();

  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  absl::Status CompareBuckets();

  const Plan* plan_;
  ModelMemory* memory_;
  Collective* collective_;
  std::vector<GradientBucket> buckets_;
  size_t next_ = 0;
  bool compared_ = false;
  // By rank: of all buckets' ranges, in their order.
  std::vector<uint64_t> fingerprints_;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_GRADIENT_REDUCER_H_
