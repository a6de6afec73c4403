// Runs a plan on the host.
#ifndef AMPD_ENGINE_RUNTIME_EXECUTOR_H_
#define AMPD_ENGINE_RUNTIME_EXECUTOR_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/core/tensor.h"
#include "engine/runtime/model_memory.h"
#include "engine/runtime/plan.h"
#include "engine/runtime/step_state.h"

namespace ampd::runtime {

// Thread-compatible. Run() allocates nothing.
class Executor {
 public:
  // Sees each step after it ran; `outputs` are its results (for accumulate_grad: the gradient slot). An error ends the
  // run and is returned.
  using Hook = std::function<absl::Status(const PlanStep& step, absl::Span<const TensorView> outputs)>;

  // `plan`, `memory` and `arena` outlive the executor. Plans that never run at once may share an arena; it holds at
  // least plan.arena_bytes.
  Executor(const Plan* plan, ModelMemory* memory, AlignedBuffer* arena);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Reads input `name` ("x", "labels" or "targets") from `data` (dense, of the plan's type) in the runs that follow;
  // not owned. NOT_FOUND when the plan has no such input.
  absl::Status BindInput(absl::string_view name, const void* data);
  // A result of the last run; NOT_FOUND when the plan has none of this name.
  absl::StatusOr<TensorView> Output(absl::string_view name) const;

  // Runs every step in order. FAILED_PRECONDITION when an input is not bound. Errors name the step.
  absl::Status Run(const StepState& step, const Hook& hook = nullptr);

 private:
  struct BoundStep {
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    void* workspace = nullptr;
  };
  TensorView Bind(const PlannedTensor& tensor) const;

  const Plan* plan_;
  ModelMemory* memory_;
  AlignedBuffer* arena_;
  float loss_seed_ = 1.0f;
  std::vector<BoundStep> steps_;
  // By plan input: the views that read it, as (step, operand).
  std::vector<std::vector<std::pair<int, int>>> input_uses_;
  std::vector<const void*> bound_inputs_;  // null: not bound
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_EXECUTOR_H_
