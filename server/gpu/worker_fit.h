// Whether the workers of this server can use a GPU at all.
#ifndef AMPD_SERVER_GPU_WORKER_FIT_H_
#define AMPD_SERVER_GPU_WORKER_FIT_H_

#include <vector>

#include "ampd/v1/device.pb.h"
#include "ampd/v1/worker_link.pb.h"

namespace ampd {

// What stands between a worker of `build` and `gpu`, as Nvml::Identify tells of it; empty: nothing. All block jobs:
//   NO_CUDA_BUILD;
//   DRIVER_TOO_OLD: the driver's CUDA is of an older major version than the build's (within one major version every
//     driver runs every build: CUDA's minor version compatibility); names both;
//   UNSUPPORTED_ARCHITECTURE: the compute capability is below the lowest one built for.
// What the driver does not tell stands between nothing.
std::vector<v1::DeviceCondition> WorkerFit(const v1::WorkerBuild& build, const v1::GpuStatus& gpu);

}  // namespace ampd

#endif  // AMPD_SERVER_GPU_WORKER_FIT_H_
