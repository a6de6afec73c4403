#include "engine/backend/cuda_backend.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend() {
  // Left untouched where the call fails.
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("CUDA backend: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
  }
  if (devices == 0) return absl::UnavailableError("CUDA backend: the driver lists no device");
  return absl::UnimplementedError(
      absl::StrCat("CUDA backend: training on CUDA devices is not supported yet (", devices, " found)"));
}

}  // namespace ampd
