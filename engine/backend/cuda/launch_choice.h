// How the steps of a network that one multiprocessor can hold are launched: whole by one kernel, or kernel by kernel
// from a graph. Which is faster depends on the device and on the network, so it is measured.
#ifndef AMPD_ENGINE_BACKEND_CUDA_LAUNCH_CHOICE_H_
#define AMPD_ENGINE_BACKEND_CUDA_LAUNCH_CHOICE_H_

#include <functional>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/runtime/step_loop.h"

namespace ampd::cuda {

// Whether `resident` is faster than `captured`; each enqueues the same number of steps of `config` on the context's
// stream, all but their updates, which change nothing. Measured once for a device, a network and a version of this
// program, and remembered in context.autotune(), so that who goes on with a training computes as before. False where
// nothing may be measured. Waits.
absl::StatusOr<bool> IsResidentFaster(const Context& context, const runtime::StepLoopConfig& config,
                                      const std::function<absl::Status()>& captured,
                                      const std::function<absl::Status()>& resident);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_LAUNCH_CHOICE_H_
