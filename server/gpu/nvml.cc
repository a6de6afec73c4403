#include "server/gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/core/status.h"

namespace ampd {

using nvml::Return;

struct Nvml::Gpu {
  nvml::DeviceHandle handle = nullptr;
  // Two samples taken in turn; null where the GPU has no such counters.
  std::array<nvml::GpmSample, 2> samples = {};
  int newest = -1;
};

namespace {

constexpr unsigned int kMaxProcesses = 1024;

template <typename Function>
void Resolve(void* library, std::initializer_list<const char*> names, Function** function) {
  for (const char* name : names) {
    *function = reinterpret_cast<Function*>(dlsym(library, name));
    if (*function != nullptr) return;
  }
}

nvml::Functions ResolveAll(void* library) {
  nvml::Functions f = {};
  Resolve(library, {"nvmlInit_v2"}, &f.init);
  Resolve(library, {"nvmlShutdown"}, &f.shutdown);
  Resolve(library, {"nvmlErrorString"}, &f.error_string);
  Resolve(library, {"nvmlSystemGetDriverVersion"}, &f.driver_version);
  Resolve(library, {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"}, &f.cuda_driver_version);
  Resolve(library, {"nvmlDeviceGetCount_v2"}, &f.device_count);
  Resolve(library, {"nvmlDeviceGetHandleByIndex_v2"}, &f.device_by_index);
  Resolve(library, {"nvmlDeviceGetName"}, &f.name);
  Resolve(library, {"nvmlDeviceGetUUID"}, &f.uuid);
  Resolve(library, {"nvmlDeviceGetPciInfo_v3"}, &f.pci_info);
  Resolve(library, {"nvmlDeviceGetCudaComputeCapability"}, &f.compute_capability);
  Resolve(library, {"nvmlDeviceGetMigMode"}, &f.mig_mode);
  Resolve(library, {"nvmlDeviceGetUtilizationRates"}, &f.utilization);
  Resolve(library, {"nvmlDeviceGetMemoryInfo"}, &f.memory);
  Resolve(library, {"nvmlDeviceGetPowerUsage"}, &f.power);
  Resolve(library, {"nvmlDeviceGetEnforcedPowerLimit"}, &f.power_limit);
  Resolve(library, {"nvmlDeviceGetTotalEnergyConsumption"}, &f.energy);
  Resolve(library, {"nvmlDeviceGetTemperature"}, &f.temperature);
  Resolve(library, {"nvmlDeviceGetTemperatureV"}, &f.temperature_v);
  Resolve(library, {"nvmlDeviceGetClockInfo"}, &f.clock);
  Resolve(library, {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
          &f.throttle_reasons);
  Resolve(library, {"nvmlDeviceGetTotalEccErrors"}, &f.ecc_errors);
  Resolve(library, {"nvmlDeviceGetComputeRunningProcesses_v3"}, &f.processes);
  Resolve(library, {"nvmlEventSetCreate"}, &f.event_set_create);
  Resolve(library, {"nvmlEventSetFree"}, &f.event_set_free);
  Resolve(library, {"nvmlDeviceRegisterEvents"}, &f.register_events);
  Resolve(library, {"nvmlEventSetWait_v2"}, &f.event_set_wait);
  Resolve(library, {"nvmlGpmQueryDeviceSupport"}, &f.gpm_support);
  Resolve(library, {"nvmlGpmSampleAlloc"}, &f.gpm_sample_alloc);
  Resolve(library, {"nvmlGpmSampleFree"}, &f.gpm_sample_free);
  Resolve(library, {"nvmlGpmSampleGet"}, &f.gpm_sample_get);
  Resolve(library, {"nvmlGpmMetricsGet"}, &f.gpm_metrics_get);
  return f;
}

// Calls what may be missing.
template <typename... Parameters, typename... Arguments>
Return Call(Return (*function)(Parameters...), Arguments... arguments) {
  return function == nullptr ? nvml::kFunctionNotFound : function(arguments...);
}

// The text that `function` writes; empty when it fails.
template <typename... Parameters, typename... Arguments>
std::string Text(Return (*function)(Parameters...), Arguments... arguments) {
  std::array<char, 128> text = {};
  if (Call(function, arguments..., text.data(), static_cast<unsigned int>(text.size())) != nvml::kSuccess) return "";
  return std::string(text.data(), strnlen(text.data(), text.size()));
}

// The number that `function` writes; nullopt when it fails.
template <typename T, typename... Parameters, typename... Arguments>
std::optional<T> Number(Return (*function)(Parameters...), Arguments... arguments) {
  T value = {};
  if (Call(function, arguments..., &value) != nvml::kSuccess) return std::nullopt;
  return value;
}

double Ratio(double percent) { return std::clamp(percent / 100, 0.0, 1.0); }

int64_t Signed(unsigned long long value) {
  return static_cast<int64_t>(std::min<unsigned long long>(value, INT64_MAX));
}

struct ThrottleReason {
  unsigned long long bit;
  const char* name;
};
// Bit 1, idling, is left out: it throttles nothing.
constexpr ThrottleReason kThrottleReasons[] = {
    {0x2, "APPLICATION_CLOCKS"},   {0x4, "SW_POWER_CAP"},         {0x8, "HW_SLOWDOWN"},     {0x10, "SYNC_BOOST"},
    {0x20, "SW_THERMAL_SLOWDOWN"}, {0x40, "HW_THERMAL_SLOWDOWN"}, {0x80, "HW_POWER_BRAKE"}, {0x100, "DISPLAY_CLOCKS"},
};

void SetThrottling(unsigned long long reasons, v1::GpuStatus* status) {
  for (const ThrottleReason& reason : kThrottleReasons) {
    if (reasons & reason.bit) status->add_throttle_reasons(reason.name);
  }
  status->set_throttled(status->throttle_reasons_size() > 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  std::unique_ptr<Nvml> nvml(new Nvml());
  AMPD_RETURN_IF_ERROR(nvml->Load(library));
  return nvml;
}

absl::Status Nvml::Load(const std::string& library) {
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return absl::NotFoundError(absl::StrCat("NVML: ", dlerror()));
  call_ = ResolveAll(library_);
  if (call_.init == nullptr || call_.device_count == nullptr || call_.device_by_index == nullptr ||
      call_.uuid == nullptr) {
    return absl::UnavailableError(absl::StrCat("NVML: ", library, " lacks functions that every version has"));
  }
  AMPD_RETURN_IF_ERROR(Check(call_.init(), "nvmlInit_v2"));
  initialized_ = true;
  return absl::OkStatus();
}

Nvml::~Nvml() {
  for (const Gpu& gpu : gpus_) {
    for (const nvml::GpmSample sample : gpu.samples) {
      if (sample != nullptr) Call(call_.gpm_sample_free, sample);
    }
  }
  if (events_ != nullptr) Call(call_.event_set_free, events_);
  if (initialized_) Call(call_.shutdown);
  if (library_ != nullptr) dlclose(library_);
}

absl::Status Nvml::Check(Return result, const char* call) const {
  if (result == nvml::kSuccess) return absl::OkStatus();
  const char* words = call_.error_string == nullptr ? nullptr : call_.error_string(result);
  return absl::UnavailableError(
      absl::StrCat("NVML: ", call, ": ", words == nullptr ? "error" : words, " (", static_cast<int>(result), ")"));
}

std::vector<v1::Device> Nvml::Identify(std::vector<std::string>* problems) {
  std::vector<v1::Device> devices;
  unsigned int count = 0;
  if (const absl::Status status = Check(call_.device_count(&count), "nvmlDeviceGetCount_v2"); !status.ok()) {
    problems->push_back(std::string(status.message()));
    return devices;
  }
  for (unsigned int i = 0; i < count; ++i) {
    absl::StatusOr<v1::Device> device = IdentifyOne(i);
    if (device.ok()) {
      devices.push_back(*std::move(device));
    } else {
      problems->push_back(absl::StrCat("GPU ", i, ": ", std::string(device.status().message())));
    }
  }
  ListenForXids();
  return devices;
}

absl::StatusOr<v1::Device> Nvml::IdentifyOne(unsigned int index) {
  Gpu gpu;
  AMPD_RETURN_IF_ERROR(Check(call_.device_by_index(index, &gpu.handle), "nvmlDeviceGetHandleByIndex_v2"));
  v1::Device device;
  device.set_id(Text(call_.uuid, gpu.handle));
  if (device.id().empty()) return absl::UnavailableError("it tells no UUID");
  device.set_kind(v1::Device::CUDA);
  device.set_name(Text(call_.name, gpu.handle));
  if (const auto memory = Number<nvml::Memory>(call_.memory, gpu.handle)) {
    device.set_memory_total_bytes(Signed(memory->total));
  }
  v1::GpuStatus& status = *device.mutable_gpu();
  if (const auto pci = Number<nvml::PciInfo>(call_.pci_info, gpu.handle)) {
    status.set_pci_bus_id(std::string(pci->bus_id, strnlen(pci->bus_id, sizeof(pci->bus_id))));
  }
  int major = 0, minor = 0;
  if (Call(call_.compute_capability, gpu.handle, &major, &minor) == nvml::kSuccess) {
    status.set_compute_capability_major(major);
    status.set_compute_capability_minor(minor);
  }
  status.set_driver_version(Text(call_.driver_version));
  if (const auto version = Number<int>(call_.cuda_driver_version)) {
    status.set_cuda_driver_version(absl::StrCat(*version / 1000, ".", *version % 1000 / 10));
  }
  nvml::GpmSupport support = {.version = nvml::kGpmSupportVersion};
  if (Call(call_.gpm_support, gpu.handle, &support) == nvml::kSuccess && support.supported != 0) {
    for (nvml::GpmSample& sample : gpu.samples) {
      if (Call(call_.gpm_sample_alloc, &sample) != nvml::kSuccess) sample = nullptr;
    }
  }
  gpus_.push_back(gpu);
  return device;
}

std::optional<v1::DeviceCondition> Nvml::Unreachable(Return result) const {
  // Whatever a single figure's function may say of a GPU that is well.
  if (result == nvml::kSuccess || result == nvml::kNotSupported || result == nvml::kFunctionNotFound ||
      result == nvml::kNoPermission) {
    return std::nullopt;
  }
  const bool lost = result == nvml::kGpuIsLost || result == nvml::kResetRequired;
  v1::DeviceCondition condition;
  condition.set_kind(lost ? v1::DeviceCondition::GPU_LOST : v1::DeviceCondition::NO_ANSWER);
  condition.set_blocks_jobs(true);
  condition.set_message(std::string(Check(result, "nvmlDeviceGetMemoryInfo").message()));
  return condition;
}

v1::Device Nvml::Read(int index) {
  v1::Device device;
  Gpu& gpu = gpus_[index];
  nvml::Memory memory = {};
  const Return result = Call(call_.memory, gpu.handle, &memory);
  if (const auto condition = Unreachable(result)) {
    gpu.newest = -1;
    *device.add_conditions() = *condition;
    return device;
  }
  v1::GpuStatus& status = *device.mutable_gpu();
  if (result == nvml::kSuccess) {
    device.set_memory_total_bytes(Signed(memory.total));
    device.set_memory_used_bytes(Signed(memory.used));
    status.set_memory_free_bytes(Signed(memory.free));
  }
  ReadFigures(gpu.handle, &device);
  ReadProcesses(gpu.handle, &status);
  ReadTensorActivity(gpu, &status);
  return device;
}

void Nvml::ReadFigures(nvml::DeviceHandle handle, v1::Device* device) const {
  v1::GpuStatus& status = *device->mutable_gpu();
  if (const auto utilization = Number<nvml::Utilization>(call_.utilization, handle)) {
    device->set_utilization(Ratio(utilization->gpu));
    status.set_memory_utilization(Ratio(utilization->memory));
  }
  unsigned int current = 0, pending = 0;
  if (Call(call_.mig_mode, handle, &current, &pending) == nvml::kSuccess) status.set_mig_enabled(current != 0);
  if (const auto milliwatts = Number<unsigned int>(call_.power, handle)) status.set_power_watts(*milliwatts / 1e3);
  if (const auto limit = Number<unsigned int>(call_.power_limit, handle)) status.set_power_limit_watts(*limit / 1e3);
  if (const auto energy = Number<unsigned long long>(call_.energy, handle)) {
    status.set_energy_joules(static_cast<double>(*energy) / 1e3);
  }
  nvml::Temperature temperature = {.version = nvml::kTemperatureVersion, .sensor = nvml::kTemperatureGpu};
  if (const auto celsius = Number<unsigned int>(call_.temperature, handle, nvml::kTemperatureGpu)) {
    status.set_temperature_celsius(*celsius);
  } else if (Call(call_.temperature_v, handle, &temperature) == nvml::kSuccess) {
    status.set_temperature_celsius(temperature.celsius);
  }
  if (const auto clock = Number<unsigned int>(call_.clock, handle, nvml::kClockSm)) {
    status.set_sm_clock_hertz(*clock * 1e6);
  }
  if (const auto clock = Number<unsigned int>(call_.clock, handle, nvml::kClockMemory)) {
    status.set_memory_clock_hertz(*clock * 1e6);
  }
  if (const auto reasons = Number<unsigned long long>(call_.throttle_reasons, handle)) SetThrottling(*reasons, &status);
  using Count = unsigned long long;
  if (const auto errors = Number<Count>(call_.ecc_errors, handle, nvml::kEccCorrected, nvml::kEccVolatile)) {
    status.set_ecc_corrected_errors(Signed(*errors));
  }
  if (const auto errors = Number<Count>(call_.ecc_errors, handle, nvml::kEccUncorrected, nvml::kEccVolatile)) {
    status.set_ecc_uncorrected_errors(Signed(*errors));
  }
}

void Nvml::ReadProcesses(nvml::DeviceHandle handle, v1::GpuStatus* status) const {
  std::vector<nvml::ProcessInfo> processes(16);
  unsigned int count = 0;
  Return result = nvml::kInsufficientSize;
  // They may grow in number between two calls.
  while (result == nvml::kInsufficientSize && processes.size() <= kMaxProcesses) {
    count = static_cast<unsigned int>(processes.size());
    result = Call(call_.processes, handle, &count, processes.data());
    if (result == nvml::kInsufficientSize) processes.resize(processes.size() * 4);
  }
  if (result != nvml::kSuccess) return;
  status->set_process_count(static_cast<int32_t>(std::min<size_t>(count, processes.size())));
  for (size_t i = 0; i < std::min<size_t>(count, processes.size()); ++i) {
    v1::GpuProcess& process = *status->add_processes();
    process.set_pid(processes[i].pid);
    if (processes[i].used_memory != nvml::kValueNotAvailable) {
      process.set_memory_used_bytes(Signed(processes[i].used_memory));
    }
  }
}

void Nvml::ReadTensorActivity(Gpu& gpu, v1::GpuStatus* status) const {
  if (gpu.samples[0] == nullptr || gpu.samples[1] == nullptr) return;
  const int next = gpu.newest == 0 ? 1 : 0;
  if (Call(call_.gpm_sample_get, gpu.handle, gpu.samples[next]) != nvml::kSuccess) {
    gpu.newest = -1;
    return;
  }
  const int before = std::exchange(gpu.newest, next);
  if (before < 0) return;
  nvml::GpmMetricsGet get = {.version = nvml::kGpmMetricsVersion, .count = 1};
  get.earlier = gpu.samples[before];
  get.later = gpu.samples[next];
  get.metrics[0].id = nvml::kGpmAnyTensor;
  if (Call(call_.gpm_metrics_get, &get) != nvml::kSuccess || get.metrics[0].result != nvml::kSuccess) return;
  if (std::isfinite(get.metrics[0].value)) status->set_tensor_active(Ratio(get.metrics[0].value));
}

void Nvml::ListenForXids() {
  if (gpus_.empty() || Call(call_.event_set_create, &events_) != nvml::kSuccess) {
    events_ = nullptr;
    return;
  }
  bool any = false;
  for (const Gpu& gpu : gpus_) {
    any |= Call(call_.register_events, gpu.handle, nvml::kEventXid, events_) == nvml::kSuccess;
  }
  if (any && call_.event_set_wait != nullptr) return;
  Call(call_.event_set_free, events_);
  events_ = nullptr;
}

absl::StatusOr<std::optional<XidEvent>> Nvml::WaitForXid(absl::Duration timeout) {
  if (events_ == nullptr) return absl::UnimplementedError("NVML: the driver reports no XIDs");
  nvml::EventData event = {};
  const Return result =
      call_.event_set_wait(events_, &event, static_cast<unsigned int>(absl::ToInt64Milliseconds(timeout)));
  if (result == nvml::kTimeout) return std::optional<XidEvent>();
  AMPD_RETURN_IF_ERROR(Check(result, "nvmlEventSetWait_v2"));
  if ((event.type & nvml::kEventXid) == 0) return std::optional<XidEvent>();
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].handle != event.device) continue;
    return std::optional(XidEvent{static_cast<int>(i), static_cast<uint32_t>(event.data)});
  }
  return std::optional<XidEvent>();
}

}  // namespace ampd
