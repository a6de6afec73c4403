// The step loop on a CUDA device: a whole step is captured once in a graph and launched again and again.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STEP_LOOP_H_
#define AMPD_ENGINE_BACKEND_CUDA_STEP_LOOP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/runtime/step_loop.h"

namespace ampd::cuda {

// Runs a step of every bucket without committing anything, so that kernels are loaded and choose their algorithms
// before a capture. Inputs are zeros for that. Errors of memory say what for.
absl::StatusOr<std::unique_ptr<runtime::StepLoop>> MakeStepLoop(Context* context,
                                                                const runtime::StepLoopConfig& config);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STEP_LOOP_H_
