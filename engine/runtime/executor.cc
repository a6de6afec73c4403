#include "engine/runtime/executor.h"

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/core/status.h"
#include "engine/runtime/zero_constants.h"

namespace ampd::runtime {

static_assert(std::is_trivially_copyable_v<StepState>, "it is copied to devices as it is");

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const Plan* plan, ModelMemory* model, const Buffer* arena,
                                                           const Buffer* inputs) {
  std::unique_ptr<Executor> executor(new Executor(plan, model, arena));
  AMPD_RETURN_IF_ERROR(executor->Place(inputs));
  return executor;
}

Executor::Executor(const Plan* plan, ModelMemory* model, const Buffer* arena)
    : plan_(plan),
      model_(model),
      arena_(arena),
      inputs_(plan->inputs.size(), nullptr),
      bound_(plan->inputs.size(), false),
      input_uses_(plan->inputs.size()) {}

absl::Status Executor::Place(const Buffer* inputs) {
  Memory* memory = model_->memory();
  AMPD_ASSIGN_OR_RETURN(step_, Buffer::Allocate(memory, sizeof(StepState), "step state"));
  AMPD_RETURN_IF_ERROR(PlaceConstants());
  if (!memory->on_host()) {
    if (inputs == nullptr) {
      AMPD_ASSIGN_OR_RETURN(own_inputs_, Buffer::Allocate(memory, plan_->input_bytes, "inputs"));
      inputs = &own_inputs_;
    }
    int64_t offset = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = inputs->data() + offset;
      offset += AlignUp(BytesOf(plan_->inputs[i]));
    }
  }
  for (const PlanStep& step : plan_->steps) {
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
  return absl::OkStatus();
}

absl::Status Executor::PlaceConstants() {
  Memory* memory = model_->memory();
  // They are read alone, so one place does for all that are zeros; others of the host's stay where they are.
  const int64_t zeros = AlignUp(ZeroConstantBytes(*plan_));
  const int64_t bytes = memory->on_host() ? zeros : plan_->constant_bytes;
  if (bytes > 0 || !memory->on_host()) {
    AMPD_ASSIGN_OR_RETURN(own_constants_, Buffer::Allocate(memory, bytes, "constants"));
  }
  int64_t offset = zeros;
  for (const std::shared_ptr<const Tensor>& constant : plan_->constants) {
    if (constant == nullptr) {
      constants_.push_back(own_constants_.data());
      continue;
    }
    const TensorView view = constant->view();
    constants_.push_back(view.data);
    if (memory->on_host()) continue;
    constants_.back() = own_constants_.data() + offset;
    AMPD_RETURN_IF_ERROR(memory->Upload(view.data, view.bytes(), constants_.back()));
    offset += AlignUp(view.bytes());
  }
  return absl::OkStatus();
}

TensorView Executor::Bind(const PlannedTensor& tensor) const {
  TensorView view{nullptr, tensor.type.dtype, tensor.type.shape};
  switch (tensor.space) {
    case Space::kArena:
      view.data = arena_->data() + tensor.offset;
      break;
    case Space::kMaster:
      view.data = reinterpret_cast<char*>(model_->masters()) + tensor.offset;
      break;
    case Space::kGradient:
      view.data = reinterpret_cast<char*>(model_->gradients()) + tensor.offset;
      break;
    case Space::kPublished:
      view.data = model_->published() + tensor.offset;
      break;
    case Space::kState:
      view.data = model_->state() + tensor.offset;
      break;
    case Space::kPendingState:
      view.data = model_->pending_state() + tensor.offset;
      break;
    case Space::kLossSeed:
      view.data = step_.data() + offsetof(StepState, loss_seed);
      break;
    case Space::kConstant:
      view.data = constants_[static_cast<size_t>(tensor.offset)];
      break;
    case Space::kInput:
      view.data = inputs_[static_cast<size_t>(tensor.offset)];
      break;
  }
  return view;
}

absl::StatusOr<size_t> Executor::InputIndex(absl::string_view name) const {
  for (size_t i = 0; i < plan_->inputs.size(); ++i) {
    if (absl::string_view(plan_->inputs[i].name) == name) return i;
  }
  return absl::NotFoundError(absl::StrCat("[executor] the plan has no input ", name));
}

absl::Status Executor::BindInput(absl::string_view name, const void* data) {
  AMPD_ASSIGN_OR_RETURN(const size_t i, InputIndex(name));
  bound_[i] = data != nullptr;
  if (!model_->memory()->on_host()) {
    return data == nullptr ? absl::OkStatus()
                           : Annotate(model_->memory()->Upload(data, BytesOf(plan_->inputs[i]), inputs_[i]), name);
  }
  inputs_[i] = const_cast<void*>(data);
  for (const auto& [step, operand] : input_uses_[i]) steps_[step].inputs[operand].data = inputs_[i];
  return absl::OkStatus();
}

absl::StatusOr<void*> Executor::InputBuffer(absl::string_view name) {
  AMPD_ASSIGN_OR_RETURN(const size_t i, InputIndex(name));
  if (model_->memory()->on_host()) {
    return absl::FailedPreconditionError(
        absl::StrCat("[executor] input ", name, " has no buffer: the host's memory is read where it was bound"));
  }
  bound_[i] = true;
  return inputs_[i];
}

absl::StatusOr<TensorView> Executor::Output(absl::string_view name) const {
  auto it = plan_->outputs.find(std::string(name));
  if (it == plan_->outputs.end()) return absl::NotFoundError(absl::StrCat("[executor] the plan has no output ", name));
  return Bind(it->second);
}

absl::Status Executor::Run(const StepState& step, const Hook& hook) {
  AMPD_RETURN_IF_ERROR(model_->memory()->Upload(&step, sizeof(StepState), step_.data()));
  return Launch(hook);
}

absl::Status Executor::Launch(const Hook& hook) {
  for (size_t i = 0; i < bound_.size(); ++i) {
    if (!bound_[i] && !input_uses_[i].empty()) {
      return absl::FailedPreconditionError(absl::StrCat("[executor] input ", plan_->inputs[i].name, " is not bound"));
    }
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    const PlanStep& planned = plan_->steps[s];
    const BoundStep& bound = steps_[s];
    absl::Status status = planned.kernel->Launch(
        {.inputs = bound.inputs, .outputs = bound.outputs, .workspace = bound.workspace, .step = step_state()});
    if (!status.ok()) return Annotate(status, absl::StrCat("step ", planned.name));
    if (hook) AMPD_RETURN_IF_ERROR(hook(planned, bound.outputs));
  }
  return absl::OkStatus();
}

}  // namespace ampd::runtime
