// The GPUs of this machine as NVIDIA's management library (NVML) tells of them, without a CUDA context. The library is
// loaded at run time: it comes with the driver.
#ifndef AMPD_SERVER_GPU_NVML_H_
#define AMPD_SERVER_GPU_NVML_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ampd/v1/device.pb.h"
#include "server/gpu/nvml_abi.h"

namespace ampd {

// An XID, as it was reported.
struct XidEvent {
  // Index into Nvml::Identify's GPUs.
  int gpu = 0;
  uint32_t xid = 0;
};

// Read is for one thread and WaitForXid for one more; the rest is for before they start.
class Nvml {
 public:
  // `library` is a name for the dynamic linker or a path. NOT_FOUND: there is none, hence no NVIDIA driver;
  // UNAVAILABLE: it does not work, with its own words (no driver loaded, driver and library of different versions).
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // What does not change: id (the UUID), name, memory_total_bytes, gpu.pci_bus_id, compute capability, versions, MIG. A
  // GPU that tells no UUID is left out and described in `problems`.
  std::vector<v1::Device> Identify(std::vector<std::string>* problems);

  // The present figures of GPU `index` of Identify: memory, utilization, and `gpu` but for xid_errors and what Identify
  // tells, MIG excepted. tensor_active is over the time since the Read before. What is not told is left absent; a GPU
  // that does not answer at all has the condition GPU_LOST or NO_ANSWER, and no figures.
  v1::Device Read(int index);

  // Waits at most `timeout` for an XID of any GPU; nullopt when there was none. UNIMPLEMENTED when the driver reports
  // none for any GPU; UNAVAILABLE when it does not answer. Errors come back at once, so a caller that asks again waits
  // first.
  absl::StatusOr<std::optional<XidEvent>> WaitForXid(absl::Duration timeout);

 private:
  struct Gpu;

  Nvml() = default;
  absl::Status Load(const std::string& library);
  absl::Status Check(nvml::Return result, const char* call) const;
  std::optional<v1::DeviceCondition> Unreachable(nvml::Return result) const;
  absl::StatusOr<v1::Device> IdentifyOne(unsigned int index);
  void ReadFigures(nvml::DeviceHandle handle, v1::Device* device) const;
  void ReadProcesses(nvml::DeviceHandle handle, v1::GpuStatus* status) const;
  void ReadTensorActivity(Gpu& gpu, v1::GpuStatus* status) const;
  void ListenForXids();

  void* library_ = nullptr;
  bool initialized_ = false;
  nvml::Functions call_ = {};
  std::vector<Gpu> gpus_;
  nvml::EventSet events_ = nullptr;
};

}  // namespace ampd

#endif  // AMPD_SERVER_GPU_NVML_H_
