#include "engine/runtime/zero_constants.h"

#include <algorithm>

namespace ampd::runtime {

int64_t ZeroConstantBytes(const Plan& plan) {
  int64_t most = 0;
  const auto note = [&](const PlannedTensor& tensor) {
    if (tensor.space != Space::kConstant || plan.constants[static_cast<size_t>(tensor.offset)] != nullptr) return;
    most = std::max(most, BytesOf(tensor));
  };
  for (const PlanStep& step : plan.steps) {
    for (const PlannedTensor& tensor : step.inputs) note(tensor);
  }
  for (const auto& [name, tensor] : plan.outputs) note(tensor);
  return most;
}

}  // namespace ampd::runtime
