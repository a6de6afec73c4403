// Runs a plan, one kernel after the other, as the host says.
#ifndef AMPD_ENGINE_RUNTIME_EXECUTOR_H_
#define AMPD_ENGINE_RUNTIME_EXECUTOR_H_

#include <functional>
#include <memory>
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

// Thread-compatible. Nothing allocates after Create().
class Executor {
 public:
  // Sees each step after it was launched; `outputs` are its results (for accumulate_grad: the gradient slot), in the
  // backend's memory. An error ends the run and is returned.
  using Hook = std::function<absl::Status(const PlanStep& step, absl::Span<const TensorView> outputs)>;

  // All outlive the executor, and the buffers lie in model's memory. Plans that never run at once may share an arena;
  // it holds at least plan.arena_bytes. Of memory that is not the host's, `inputs` is where inputs are copied to, at
  // least plan.input_bytes; executors may share it too, and then what is bound to one holds until something is bound to
  // another. nullptr: the executor makes its own. Constants are copied here, once. Errors are the memory's.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const Plan* plan, ModelMemory* model, const Buffer* arena,
                                                          const Buffer* inputs = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Reads input `name` ("x", "labels" or "targets") from `data` (dense, of the plan's type, on the host) in the runs
  // that follow; nullptr: it is no longer bound. Where the model's memory is the host's, not owned and not copied; else
  // copied, and `data` is no longer needed. NOT_FOUND when the plan has no such input.
  absl::Status BindInput(absl::string_view name, const void* data);
  // Where input `name` is read, for kernels that write it in place of BindInput(); it counts as bound from here on.
  // NOT_FOUND as BindInput. FAILED_PRECONDITION where the model's memory is the host's: there inputs have no place of
  // their own.
  absl::StatusOr<void*> InputBuffer(absl::string_view name);
  // A result of the last run, in the backend's memory; NOT_FOUND when the plan has none of this name.
  absl::StatusOr<TensorView> Output(absl::string_view name) const;

  // Gives kernels `step`, then Launch().
  absl::Status Run(const StepState& step, const Hook& hook = nullptr);
  // Launches every step in order, upon the inputs and the step state that lie in the backend's memory by then. It waits
  // for nothing, unless the hook does. FAILED_PRECONDITION when an input is not bound. Errors name the step.
  absl::Status Launch(const Hook& hook = nullptr);
  const Plan& plan() const { return *plan_; }
  // What kernels read as KernelArgs::step, in the backend's memory, and the loss seed in it; at one address for life.
  StepState* step_state() const { return reinterpret_cast<StepState*>(step_.data()); }

 private:
  struct BoundStep {
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    void* workspace = nullptr;
  };
  Executor(const Plan* plan, ModelMemory* model, const Buffer* arena);
  absl::Status Place(const Buffer* inputs);
  absl::Status PlaceConstants();
  absl::StatusOr<size_t> InputIndex(absl::string_view name) const;
  TensorView Bind(const PlannedTensor& tensor) const;

  const Plan* plan_;
  ModelMemory* model_;
  const Buffer* arena_;
  Buffer step_;
  // Of memory that is not the host's.
  Buffer own_inputs_;
  Buffer own_constants_;
  std::vector<BoundStep> steps_;
  std::vector<void*> constants_;
  // By plan input: its place; null on the host until it is bound.
  std::vector<void*> inputs_;
  std::vector<bool> bound_;
  // By plan input: the views that read it, as (step, operand).
  std::vector<std::vector<std::pair<int, int>>> input_uses_;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_EXECUTOR_H_
