#include "engine/backend/cuda/device_failure.h"

#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {

absl::Status DeviceFailureOr(const Context& context, const absl::Status& status) {
  // UNAVAILABLE, it says already what the device's error is.
  if (status.ok() || absl::IsUnavailable(status) || !context.is_open()) return status;
  // What another library met, our own runtime's last error need not know of: a call asks the driver.
  size_t free = 0, total = 0;
  const absl::Status device = ToStatus(cudaMemGetInfo(&free, &total), "the device");
  if (!absl::IsUnavailable(device)) return status;
  return Annotate(device, status.message());
}

}  // namespace ampd::cuda
