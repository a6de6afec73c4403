#include "tests/bench/wait_for_device.h"

#include <cuda_runtime_api.h>

#include "engine/backend/cuda/status.h"

namespace ampd::bench {

absl::Status WaitForDevice() { return cuda::ToStatus(cudaDeviceSynchronize(), "waiting for the device"); }

}  // namespace ampd::bench
