// The CUDA backend, or what stands in for it where no CUDA toolkit was found at build time. Link
// ampd_backend_cuda_or_none, which is exactly one of engine/backend/cuda and engine/backend/no_cuda.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
#define AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"

namespace ampd {

// A backend on the current CUDA device. UNIMPLEMENTED: this build has no CUDA, or training on CUDA devices is not
// supported by it. UNAVAILABLE, with CUDA's error: no driver or no device.
absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend();

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
