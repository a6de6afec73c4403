// NVIDIA's management library as a script tells it, for machines without a GPU. The file that $FAKE_NVML_SCRIPT names
// is read again at every call, so that a test changes what GPUs say while a daemon runs. A line is a word and its
// values:
//   init 9                         what nvmlInit_v2 returns (default 0)
//   driver 580.95.05
//   cuda 13000
//   gpu GPU-1111                   begins a GPU; the lines below are of the last one
//   name NVIDIA H200
//   pci 00000000:4B:00.0
//   capability 9 0
//   mig 1
//   memory 100 60 40               total, free, used, bytes
//   utilization 75 30              GPU, memory, percent
//   power 350500                   mW
//   power_limit 700000             mW
//   energy 123456                  mJ
//   temperature 54
//   clock 1980 3201                SM, memory, MHz
//   throttle 4                     bits
//   ecc 3 1                        corrected, uncorrected
//   tensor 42.5                    percent
//   process 4242 1048576           pid, bytes; may be repeated; without bytes: not available
//   xid 1 79                       the first XID to be reported; the second is numbered 2
//   fails 15                       what each of the GPU's functions returns
// What has no line is NOT_SUPPORTED. Built with FAKE_NVML_OLD, it is a library of long ago, without the newer
// functions.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/gpu/nvml_abi.h"

namespace ampd::nvml {

struct nvmlDevice_st {
  int index;
};
struct nvmlGpmSample_st {
  int gpu = -1;
};
struct nvmlEventSet_st {
  std::vector<nvmlDevice_st*> registered;
};

}  // namespace ampd::nvml

namespace {

using namespace ampd::nvml;

constexpr int kMaxGpus = 16;

struct Gpu {
  std::map<std::string, std::string> values;
  std::vector<std::string> processes;
  std::map<int, int> xids;
};

struct Script {
  std::map<std::string, std::string> values;
  std::vector<Gpu> gpus;
};

nvmlDevice_st* Handle(int index) {
  static nvmlDevice_st handles[kMaxGpus];
  handles[index].index = index;
  return &handles[index];
}

Script Read() {
  Script script;
  const char* path = getenv("FAKE_NVML_SCRIPT");
  std::ifstream file(path == nullptr ? "" : path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key, rest;
    words >> key >> std::ws;
    std::getline(words, rest);
    if (key == "gpu") script.gpus.emplace_back().values["uuid"] = rest;
    auto& values = script.gpus.empty() ? script.values : script.gpus.back().values;
    if (key == "process") {
      script.gpus.back().processes.push_back(rest);
    } else if (key == "xid") {
      int number = 0, xid = 0;
      std::istringstream(rest) >> number >> xid;
      script.gpus.back().xids[number] = xid;
    } else if (!key.empty()) {
      values[key] = rest;
    }
  }
  return script;
}

// The GPU, or what its functions return instead.
Return Find(DeviceHandle device, Gpu* gpu) {
  const Script script = Read();
  if (device == nullptr || device->index >= static_cast<int>(script.gpus.size())) return kNotFound;
  *gpu = script.gpus[device->index];
  if (gpu->values.count("fails") > 0) return static_cast<Return>(std::stoi(gpu->values["fails"]));
  return kSuccess;
}

// The values of a GPU's line.
template <typename... T>
Return Values(DeviceHandle device, const char* key, T*... values) {
  Gpu gpu;
  if (const Return result = Find(device, &gpu); result != kSuccess) return result;
  if (gpu.values.count(key) == 0) return kNotSupported;
  std::istringstream words(gpu.values[key]);
  (words >> ... >> *values);
  return kSuccess;
}

Return Copy(const std::string& text, char* to, unsigned int size) {
  if (text.size() + 1 > size) return kInsufficientSize;
  memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

Return CopyValue(DeviceHandle device, const char* key, char* to, unsigned int size) {
  Gpu gpu;
  if (const Return result = Find(device, &gpu); result != kSuccess) return result;
  return gpu.values.count(key) == 0 ? kNotSupported : Copy(gpu.values[key], to, size);
}

std::mutex delivered_mutex;
int delivered[kMaxGpus];

// The next XID of a registered GPU that was not delivered yet.
[[maybe_unused]] bool NextXid(const nvmlEventSet_st& set, EventData* event) {
  const Script script = Read();
  const std::lock_guard lock(delivered_mutex);
  for (nvmlDevice_st* device : set.registered) {
    if (device->index >= static_cast<int>(script.gpus.size())) continue;
    const auto xid = script.gpus[device->index].xids.find(delivered[device->index] + 1);
    if (xid == script.gpus[device->index].xids.end()) continue;
    ++delivered[device->index];
    *event = {device, kEventXid, static_cast<unsigned long long>(xid->second), ~0u, ~0u};
    return true;
  }
  return false;
}

}  // namespace

extern "C" {

Return nvmlInit_v2() {
  Script script = Read();
  return script.values.count("init") == 0 ? kSuccess : static_cast<Return>(std::stoi(script.values["init"]));
}

Return nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(Return result) {
  if (result == kDriverNotLoaded) return "Driver Not Loaded";
  if (result == kGpuIsLost) return "GPU is lost";
  return "Some Error";
}

Return nvmlSystemGetDriverVersion(char* version, unsigned int size) {
  return Copy(Read().values["driver"], version, size);
}

Return nvmlSystemGetCudaDriverVersion(int* version) {
  Script script = Read();
  if (script.values.count("cuda") == 0) return kNotSupported;
  *version = std::stoi(script.values["cuda"]);
  return kSuccess;
}

Return nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(Read().gpus.size());
  return kSuccess;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, DeviceHandle* device) {
  if (index >= Read().gpus.size()) return kInvalidArgument;
  *device = Handle(static_cast<int>(index));
  return kSuccess;
}

Return nvmlDeviceGetName(DeviceHandle device, char* name, unsigned int size) {
  return CopyValue(device, "name", name, size);
}

Return nvmlDeviceGetUUID(DeviceHandle device, char* uuid, unsigned int size) {
  return CopyValue(device, "uuid", uuid, size);
}

Return nvmlDeviceGetPciInfo_v3(DeviceHandle device, PciInfo* pci) {
  *pci = {};
  return CopyValue(device, "pci", pci->bus_id, sizeof(pci->bus_id));
}

Return nvmlDeviceGetCudaComputeCapability(DeviceHandle device, int* major, int* minor) {
  return Values(device, "capability", major, minor);
}

Return nvmlDeviceGetMemoryInfo(DeviceHandle device, Memory* memory) {
  return Values(device, "memory", &memory->total, &memory->free, &memory->used);
}

Return nvmlDeviceGetUtilizationRates(DeviceHandle device, Utilization* utilization) {
  return Values(device, "utilization", &utilization->gpu, &utilization->memory);
}

Return nvmlDeviceGetPowerUsage(DeviceHandle device, unsigned int* power) { return Values(device, "power", power); }

Return nvmlDeviceGetEnforcedPowerLimit(DeviceHandle device, unsigned int* limit) {
  return Values(device, "power_limit", limit);
}

Return nvmlDeviceGetTemperature(DeviceHandle device, unsigned int sensor, unsigned int* celsius) {
  return sensor == kTemperatureGpu ? Values(device, "temperature", celsius) : kInvalidArgument;
}

Return nvmlDeviceGetClockInfo(DeviceHandle device, unsigned int clock, unsigned int* megahertz) {
  unsigned int sm = 0, memory = 0;
  const Return result = Values(device, "clock", &sm, &memory);
  if (result == kSuccess) *megahertz = clock == kClockSm ? sm : memory;
  return result;
}

Return nvmlDeviceGetCurrentClocksThrottleReasons(DeviceHandle device, unsigned long long* reasons) {
  return Values(device, "throttle", reasons);
}

Return nvmlDeviceGetTotalEccErrors(DeviceHandle device, unsigned int type, unsigned int counter,
                                   unsigned long long* count) {
  if (counter != kEccVolatile) return kInvalidArgument;
  unsigned long long corrected = 0, uncorrected = 0;
  const Return result = Values(device, "ecc", &corrected, &uncorrected);
  if (result == kSuccess) *count = type == kEccCorrected ? corrected : uncorrected;
  return result;
}

#ifndef FAKE_NVML_OLD

Return nvmlDeviceGetMigMode(DeviceHandle device, unsigned int* current, unsigned int* pending) {
  const Return result = Values(device, "mig", current);
  *pending = *current;
  return result;
}

Return nvmlDeviceGetTotalEnergyConsumption(DeviceHandle device, unsigned long long* energy) {
  return Values(device, "energy", energy);
}

Return nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle device, unsigned int* count, ProcessInfo* processes) {
  Gpu gpu;
  if (const Return result = Find(device, &gpu); result != kSuccess) return result;
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(gpu.processes.size());
  if (*count > room) return kInsufficientSize;
  for (unsigned int i = 0; i < *count; ++i) {
    processes[i] = {0, kValueNotAvailable, ~0u, ~0u};
    std::istringstream words(gpu.processes[i]);
    unsigned long long memory = 0;
    words >> processes[i].pid;
    if (words >> memory) processes[i].used_memory = memory;
  }
  return kSuccess;
}

Return nvmlEventSetCreate(EventSet* set) {
  *set = new nvmlEventSet_st();
  return kSuccess;
}

Return nvmlEventSetFree(EventSet set) {
  delete set;
  return kSuccess;
}

Return nvmlDeviceRegisterEvents(DeviceHandle device, unsigned long long types, EventSet set) {
  if (types != kEventXid) return kNotSupported;
  set->registered.push_back(device);
  return kSuccess;
}

Return nvmlEventSetWait_v2(EventSet set, EventData* event, unsigned int milliseconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!NextXid(*set, event)) {
    if (std::chrono::steady_clock::now() >= deadline) return kTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return kSuccess;
}

Return nvmlGpmQueryDeviceSupport(DeviceHandle device, GpmSupport* support) {
  if (support->version != kGpmSupportVersion) return kInvalidArgument;
  Gpu gpu;
  const Return result = Find(device, &gpu);
  support->supported = gpu.values.count("tensor") > 0 ? 1 : 0;
  return result;
}

Return nvmlGpmSampleAlloc(GpmSample* sample) {
  *sample = new nvmlGpmSample_st();
  return kSuccess;
}

Return nvmlGpmSampleFree(GpmSample sample) {
  delete sample;
  return kSuccess;
}

Return nvmlGpmSampleGet(DeviceHandle device, GpmSample sample) {
  Gpu gpu;
  sample->gpu = device->index;
  return Find(device, &gpu);
}

Return nvmlGpmMetricsGet(GpmMetricsGet* get) {
  if (get->version != kGpmMetricsVersion || get->earlier == get->later || get->earlier->gpu != get->later->gpu) {
    return kInvalidArgument;
  }
  for (unsigned int i = 0; i < get->count; ++i) {
    GpmMetric& metric = get->metrics[i];
    metric.result =
        metric.id == kGpmAnyTensor ? Values(Handle(get->later->gpu), "tensor", &metric.value) : kNotSupported;
  }
  return kSuccess;
}

#endif  // FAKE_NVML_OLD

}  // extern "C"
