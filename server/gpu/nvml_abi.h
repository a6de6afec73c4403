// The part of NVIDIA's management library that is used, declared here because the driver brings no header. Names,
// numbers and layouts are those of its public interface (NVML API reference), under which new versions of a function
// get new names and old ones stay.
#ifndef AMPD_SERVER_GPU_NVML_ABI_H_
#define AMPD_SERVER_GPU_NVML_ABI_H_

#include <cstdint>

namespace ampd::nvml {

enum Return : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kFunctionNotFound = 13,
  kGpuIsLost = 15,
  kResetRequired = 16,
  kLibraryDriverMismatch = 18,
  kUnknown = 999,
};

// Opaque.
using DeviceHandle = struct nvmlDevice_st*;
using EventSet = struct nvmlEventSet_st*;
using GpmSample = struct nvmlGpmSample_st*;

inline constexpr uint32_t kTemperatureGpu = 0;
inline constexpr uint32_t kClockSm = 1;
inline constexpr uint32_t kClockMemory = 2;
inline constexpr uint32_t kEccCorrected = 0;
inline constexpr uint32_t kEccUncorrected = 1;
inline constexpr uint32_t kEccVolatile = 0;
inline constexpr unsigned long long kEventXid = 8;
inline constexpr uint32_t kGpmAnyTensor = 5;
// Instead of a process' memory that is not known.
inline constexpr unsigned long long kValueNotAvailable = ~0ULL;

struct Utilization {
  unsigned int gpu;  // percent
  unsigned int memory;
};

struct Memory {
  unsigned long long total;  // bytes
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_memory;  // bytes
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

struct EventData {
  DeviceHandle device;
  unsigned long long type;
  unsigned long long data;  // the XID
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

struct Temperature {
  unsigned int version;
  unsigned int sensor;
  int celsius;
};
inline constexpr unsigned int kTemperatureVersion = sizeof(Temperature) | (1u << 24);

struct GpmSupport {
  unsigned int version;
  unsigned int supported;
};
inline constexpr unsigned int kGpmSupportVersion = 1;

struct GpmMetric {
  unsigned int id;
  Return result;
  double value;
  const char* names[3];
};

struct GpmMetricsGet {
  unsigned int version;
  unsigned int count;
  GpmSample earlier;
  GpmSample later;
  // The library touches `count` of them; its own array grows with its versions.
  GpmMetric metrics[512];
};
inline constexpr unsigned int kGpmMetricsVersion = 1;

// What is called. One that the library lacks is null.
struct Functions {
  Return (*init)();
  Return (*shutdown)();
  const char* (*error_string)(Return);
  Return (*driver_version)(char*, unsigned int);
  Return (*cuda_driver_version)(int*);
  Return (*device_count)(unsigned int*);
  Return (*device_by_index)(unsigned int, DeviceHandle*);
  Return (*name)(DeviceHandle, char*, unsigned int);
  Return (*uuid)(DeviceHandle, char*, unsigned int);
  Return (*pci_info)(DeviceHandle, PciInfo*);
  Return (*compute_capability)(DeviceHandle, int*, int*);
  Return (*mig_mode)(DeviceHandle, unsigned int*, unsigned int*);
  Return (*utilization)(DeviceHandle, Utilization*);
  Return (*memory)(DeviceHandle, Memory*);
  Return (*power)(DeviceHandle, unsigned int*);         // mW
  Return (*power_limit)(DeviceHandle, unsigned int*);   // mW
  Return (*energy)(DeviceHandle, unsigned long long*);  // mJ
  Return (*temperature)(DeviceHandle, unsigned int, unsigned int*);
  Return (*temperature_v)(DeviceHandle, Temperature*);
  Return (*clock)(DeviceHandle, unsigned int, unsigned int*);  // MHz
  Return (*throttle_reasons)(DeviceHandle, unsigned long long*);
  Return (*ecc_errors)(DeviceHandle, unsigned int, unsigned int, unsigned long long*);
  Return (*processes)(DeviceHandle, unsigned int*, ProcessInfo*);
  Return (*event_set_create)(EventSet*);
  Return (*event_set_free)(EventSet);
  Return (*register_events)(DeviceHandle, unsigned long long, EventSet);
  Return (*event_set_wait)(EventSet, EventData*, unsigned int);
  Return (*gpm_support)(DeviceHandle, GpmSupport*);
  Return (*gpm_sample_alloc)(GpmSample*);
  Return (*gpm_sample_free)(GpmSample);
  Return (*gpm_sample_get)(DeviceHandle, GpmSample);
  Return (*gpm_metrics_get)(GpmMetricsGet*);
};

}  // namespace ampd::nvml

#endif  // AMPD_SERVER_GPU_NVML_ABI_H_
