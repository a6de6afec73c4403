// Steps of a small network, whole and many in one launch, by one block of threads that keeps the weights, their moments
// and the activations in its shared memory: between the steps nothing is launched, and of the model nothing is read.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STEP_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/step_control.h"
#include "engine/runtime/step_loop.h"

namespace ampd::cuda {

// The loop that the steps belong to; pointers are the device's and outlive the steps.
struct ResidentLoop {
  StepControl* control = nullptr;
  PhaseControl* phase = nullptr;
  FeedRing ring;
  DecisionConfig decision;
  RecordRing records;
  // Take no layers together.
  bool interpret_all = false;
  // Where an input begins in a slot of the ring; nullopt: it is not fed.
  std::function<absl::optional<int64_t>(absl::string_view input)> input_offset;
};

// A step is what the loop's captured one is (step_loop.h): the same draws, the same decisions by the same code; its
// products and sums are added up in another order, which depends on nothing but the plan.
class ResidentStep {
 public:
  // UNIMPLEMENTED, with the reason, where the job's steps cannot be taken so: several phases, buckets or micro-batches,
  // untrained state, LAMB, an operation without such a form, more than the device's shared memory holds.
  static absl::StatusOr<std::unique_ptr<ResidentStep>> Create(Context* context, const runtime::StepLoopConfig& config,
                                                              const ResidentLoop& loop);
  virtual ~ResidentStep() = default;

  // Whether dense layers are taken together (dense_stack.h).
  virtual bool takes_layers_together() const = 0;
  // Only enqueues, on the context's stream: `steps` steps, fewer where one halts the loop. Records appear some steps at
  // a time, the last ones when everything is back in global memory.
  virtual absl::Status Enqueue(int64_t steps) const = 0;
  // The same of a loop that is halted: `steps` steps are computed but for their updates, and nothing comes of them.
  virtual absl::Status EnqueueTrial(int64_t steps) const = 0;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_STEP_H_
