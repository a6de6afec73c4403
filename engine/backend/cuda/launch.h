// How every kernel of the backend is launched. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_LAUNCH_H_
#define AMPD_ENGINE_BACKEND_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/dynamic_shared.h"
#include "engine/backend/cuda/status.h"

namespace ampd::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Enqueues `kernel`; `what` names the op or node in an error. Kernels that ask for more than 48 KiB of dynamic shared
// memory are allowed it once, when they are prepared: AllowSharedMemory().
template <typename... Parameters, typename... Arguments>
absl::Status Launch(absl::string_view what, void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes,
                    cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  return ToStatus(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

// Needs a device.
template <typename... Parameters>
absl::Status AllowSharedMemory(absl::string_view what, void (*kernel)(Parameters...), int64_t bytes) {
  return ToStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                  what);
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks of `threads` for `items` of work in a grid-stride loop: no more than fill the device a few times over, at
// least one (so a kernel for nothing is still a valid launch).
inline unsigned BlocksFor(int64_t items, int threads, int sm_count) {
  const int64_t most = int64_t{sm_count} * (2048 / threads) * 4;
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(items, threads), 1, most));
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_LAUNCH_H_
