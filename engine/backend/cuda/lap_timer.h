// Laps on a CUDA device: by the device's own record of kernels where CUPTI is there, else by events.
#ifndef AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_
#define AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/kernel_activity.h"
#include "engine/runtime/lap_timer.h"

namespace ampd::cuda {

// `context` outlives them. They time what is launched on its stream. `note`: LapTimer's.
std::unique_ptr<runtime::LapTimer> MakeEventLapTimer(Context* context, std::string note = "");
std::unique_ptr<runtime::LapTimer> MakeActivityLapTimer(Context* context, std::unique_ptr<KernelActivity> activity);

// The second where `kernels` are asked for and there is a CUPTI that works, else the first.
std::unique_ptr<runtime::LapTimer> MakeLapTimer(Context* context, bool kernels);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_LAP_TIMER_H_
