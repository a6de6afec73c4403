#include "engine/train/environment.h"

#include "engine/backend/cpu/library.h"
#include "engine/backend/cuda_backend.h"
#include "engine/backend/nccl_collective.h"
#include "engine/train/planned_model.h"

namespace ampd::train {

v1::AttemptEnvironment EnvironmentOf(const std::vector<std::string>& devices, int threads) {
  v1::AttemptEnvironment environment;
  environment.set_cpu_threads(threads);
  auto& libraries = *environment.mutable_libraries();
  if (!devices.empty() && IsCpuDevice(devices[0])) {
    const CpuLibrary cpu = ThisCpuLibrary();
    environment.set_instruction_set(cpu.instruction_set);
    libraries["onednn"] = cpu.onednn_version;
    return environment;
  }
  for (const auto& [name, version] : CudaLibraries()) libraries[name] = version;
  const std::string nccl = devices.size() > 1 ? NcclVersion() : "";
  if (!nccl.empty()) libraries["nccl"] = nccl;
  return environment;
}

}  // namespace ampd::train
