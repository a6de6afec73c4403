// CUDA's errors as Status.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STATUS_H_
#define AMPD_ENGINE_BACKEND_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ampd::cuda {

// OK, or an error "[cuda] WHAT: NAME: description". Its code tells what may follow:
//   RESOURCE_EXHAUSTED   no memory; the context lives
//   UNAVAILABLE          no driver or no device, or the device failed and every later call of this process will (CUDA's
//                        "sticky" errors: a kernel's fault, an uncorrectable memory error): failure class GPU_FAULT
//   INTERNAL             the rest
// `what` names the op or what was done.
absl::Status ToStatus(cudaError_t error, absl::string_view what);

#define AMPD_CUDA_RETURN_IF_ERROR(call, what)                                       \
  do {                                                                              \
    if (const cudaError_t ampd_cuda_error = (call); ampd_cuda_error != cudaSuccess) \
      return ::ampd::cuda::ToStatus(ampd_cuda_error, what);                         \
  } while (false)

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STATUS_H_
