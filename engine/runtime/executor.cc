#include "engine/runtime/executor.h"

#include <string>
#include <utility>

#include "engine/core/status.h"

namespace ampd::runtime {

Executor::Executor(const Plan* plan, ModelMemory* memory, AlignedBuffer* arena)
    : plan_(plan),
      memory_(memory),
      arena_(arena),
      input_uses_(plan->inputs.size()),
      bound_inputs_(plan->inputs.size(), nullptr) {
  for (const PlanStep& step : plan->steps) {
    BoundStep bound;
    for (const PlannedTensor& tensor : step.inputs) {
      if (tensor.space == Space::kInput) {
        input_uses_[tensor.offset].emplace_back(static_cast<int>(steps_.size()), static_cast<int>(bound.inputs.size()));
      }
      bound.inputs.push_back(Bind(tensor));
    }
    for (const PlannedTensor& tensor : step.outputs) bound.outputs.push_back(Bind(tensor));
    bound.workspace = arena_->data() + step.workspace_offset;
    steps_.push_back(std::move(bound));
  }
}

TensorView Executor::Bind(const PlannedTensor& tensor) const {
  TensorView view{nullptr, tensor.type.dtype, tensor.type.shape};
  switch (tensor.space) {
    case Space::kArena:
      view.data = arena_->data() + tensor.offset;
      break;
    case Space::kMaster:
      view.data = reinterpret_cast<char*>(memory_->masters()) + tensor.offset;
      break;
    case Space::kGradient:
      view.data = reinterpret_cast<char*>(memory_->gradients()) + tensor.offset;
      break;
    case Space::kPublished:
      view.data = memory_->published() + tensor.offset;
      break;
    case Space::kState:
      view.data = memory_->state() + tensor.offset;
      break;
    case Space::kPendingState:
      view.data = memory_->pending_state() + tensor.offset;
      break;
    case Space::kLossSeed:
      view.data = const_cast<float*>(&loss_seed_);
      break;
    case Space::kConstant:
      view.data = plan_->constants[tensor.offset]->view().data;
      break;
    case Space::kInput:
      view.data = const_cast<void*>(bound_inputs_[tensor.offset]);
      break;
  }
  return view;
}

absl::Status Executor::BindInput(absl::string_view name, const void* data) {
  for (size_t i = 0; i < plan_->inputs.size(); ++i) {
    if (absl::string_view(plan_->inputs[i].name) != name) continue;
    for (const auto& [step, operand] : input_uses_[i]) steps_[step].inputs[operand].data = const_cast<void*>(data);
    bound_inputs_[i] = data;
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("[executor] the plan has no input ", name));
}

absl::StatusOr<TensorView> Executor::Output(absl::string_view name) const {
  auto it = plan_->outputs.find(std::string(name));
  if (it == plan_->outputs.end()) return absl::NotFoundError(absl::StrCat("[executor] the plan has no output ", name));
  return Bind(it->second);
}

absl::Status Executor::Run(const StepState& step, const Hook& hook) {
  for (size_t i = 0; i < bound_inputs_.size(); ++i) {
    if (bound_inputs_[i] == nullptr && !input_uses_[i].empty()) {
      return absl::FailedPreconditionError(absl::StrCat("[executor] input ", plan_->inputs[i].name, " is not bound"));
    }
  }
  loss_seed_ = step.loss_seed;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const PlanStep& planned = plan_->steps[s];
    const BoundStep& bound = steps_[s];
    absl::Status status = planned.kernel->Launch(
        {.inputs = bound.inputs, .outputs = bound.outputs, .workspace = bound.workspace, .step = &step});
    if (!status.ok()) return Annotate(status, absl::StrCat("step ", planned.name));
    if (hook) AMPD_RETURN_IF_ERROR(hook(planned, bound.outputs));
  }
  return absl::OkStatus();
}

}  // namespace ampd::runtime
