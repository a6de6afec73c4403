// The GPUs that the daemon starts with.
#ifndef AMPD_SERVER_MAIN_GPUS_H_
#define AMPD_SERVER_MAIN_GPUS_H_

#include <memory>
#include <string>
#include <vector>

#include "ampd/v1/device.pb.h"
#include "server/gpu/nvml.h"
#include "server/launch/plan_process.h"

namespace ampd {

struct Gpus {
  // Null without GPUs.
  std::unique_ptr<Nvml> nvml;
  // As GpuMonitor takes them: with what stands between them and the workers of this server.
  std::vector<v1::Device> devices;
};

// Looks through `nvml_library` ("": none) for GPUs and asks `worker`, the path of ampd-worker, what it can run on.
// Logs what it finds. A machine without GPUs, or without a library or driver that works, gives none.
Gpus FindGpus(const std::string& nvml_library, const std::string& worker, const PlanLimits& limits);

// Whether jobs could run on one of `devices`, now or once a passing condition is over.
bool AnyUsable(const std::vector<v1::Device>& devices);

// Whether this process' pids are the machine's, and not those of a container.
bool InFirstPidNamespace();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_GPUS_H_
