// Laps on a CUDA device: by the device's own record of kernels where CUPTI is there, else by events.
#ifndef AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_
#define AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/kernel_activity.h"
#include "engine/runtime/lap_timer.h"

namespace ampd::cuda {

// `context` outlives them. They time what is launched on its stream.
std::unique_ptr<runtime::LapTimer> MakeEventLapTimer(Context* context);
std::unique_ptr<runtime::LapTimer> MakeActivityLapTimer(Context* context, std::unique_ptr<KernelActivity> activity);

// The second where there is a CUPTI that works, else the first.
std::unique_ptr<runtime::LapTimer> MakeLapTimer(Context* context);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_
