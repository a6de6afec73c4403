// Internal: telling a library's failure from its device's.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DEVICE_FAILURE_H_
#define AMPD_ENGINE_BACKEND_CUDA_DEVICE_FAILURE_H_

#include "absl/status/status.h"
#include "engine/backend/cuda/context.h"

namespace ampd::cuda {

// `status`, of a call of a library; where it is an error and the context's device has failed, so that every later call
// of the process will fail too, UNAVAILABLE with the device's error behind it. Libraries have codes of their own for
// that, which name none. Asks nothing of a context that is not open. In a capture, too.
absl::Status DeviceFailureOr(const Context& context, const absl::Status& status);

// Whether the backend's own kernels run what a library refused, or failed at, with `status`, an error: not where the
// device failed or there is no memory, which they would meet too.
inline bool OwnKernelsServe(const absl::Status& status) {
  return !absl::IsUnavailable(status) && !absl::IsResourceExhausted(status);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DEVICE_FAILURE_H_
