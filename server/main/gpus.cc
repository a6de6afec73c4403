#include "server/main/gpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/gpu/worker_fit.h"
#include "server/main/log.h"
#include "server/scheduling/devices.h"

namespace ampd {
namespace {

// PROC_PID_INIT_INO of the kernel: the first pid namespace always has this number.
constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;

std::vector<v1::DeviceCondition> Fit(const absl::StatusOr<v1::PlanResponse>& answer, const v1::GpuStatus& gpu) {
  if (answer.ok()) return WorkerFit(answer->build(), gpu);
  v1::DeviceCondition condition;
  condition.set_kind(v1::DeviceCondition::NO_CUDA_BUILD);
  condition.set_blocks_jobs(true);
  condition.set_message(
      absl::StrCat("the worker does not tell what it is built with: ", std::string(answer.status().message())));
  return {condition};
}

void LogGpu(const v1::Device& device) {
  const v1::GpuStatus& gpu = device.gpu();
  std::string text = absl::StrCat("GPU ", device.id(), ": ", device.name());
  if (gpu.has_compute_capability_major()) {
    absl::StrAppend(&text, ", compute capability ", gpu.compute_capability_major(), ".",
                    gpu.compute_capability_minor());
  }
  absl::StrAppend(&text, ", driver ", gpu.driver_version(), ", CUDA ", gpu.cuda_driver_version());
  Log(Severity::kInfo, text);
}

}  // namespace

Gpus FindGpus(const std::string& nvml_library, const std::string& worker, const PlanLimits& limits) {
  Gpus gpus;
  if (nvml_library.empty()) return gpus;
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open(nvml_library);
  if (!nvml.ok()) {
    Log(absl::IsNotFound(nvml.status()) ? Severity::kInfo : Severity::kWarning,
        absl::StrCat("no GPUs: ", std::string(nvml.status().message())));
    return gpus;
  }
  std::vector<std::string> problems;
  gpus.devices = (*nvml)->Identify(&problems);
  for (const std::string& problem : problems) Log(Severity::kWarning, problem);
  if (gpus.devices.empty()) return gpus;
  gpus.nvml = *std::move(nvml);
  const absl::StatusOr<v1::PlanResponse> answer = RunPlanProcess(worker, v1::PlanRequest(), limits);
  const int threads = std::max(1, UsableCores() / static_cast<int>(gpus.devices.size()));
  for (v1::Device& device : gpus.devices) {
    device.set_threads(threads);
    for (v1::DeviceCondition& condition : Fit(answer, device.gpu())) *device.add_conditions() = std::move(condition);
    LogGpu(device);
  }
  return gpus;
}

bool AnyUsable(const std::vector<v1::Device>& devices) {
  return std::any_of(devices.begin(), devices.end(), [](const v1::Device& device) {
    return std::none_of(device.conditions().begin(), device.conditions().end(),
                        [](const v1::DeviceCondition& condition) { return condition.blocks_jobs(); });
  });
}

bool InFirstPidNamespace() {
  struct stat ns = {};
  return stat("/proc/self/ns/pid", &ns) == 0 && ns.st_ino == kFirstPidNamespace;
}

}  // namespace ampd
