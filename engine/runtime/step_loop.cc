#include "engine/runtime/step_loop.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace ampd::runtime {

absl::StatusOr<std::unique_ptr<StepLoop>> Backend::MakeStepLoop(const StepLoopConfig&) {
  return absl::UnimplementedError(absl::StrCat("[", name(), "] steps are decided by the host"));
}

}  // namespace ampd::runtime
