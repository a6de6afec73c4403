#include "engine/backend/cuda/context.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

std::string UuidString(const cudaDeviceProp& properties) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

DeviceProperties PropertiesOf(const cudaDeviceProp& p) {
  DeviceProperties properties;
  properties.name = p.name;
  properties.uuid = UuidString(p);
  properties.major = p.major;
  properties.minor = p.minor;
  properties.sm_count = p.multiProcessorCount;
  properties.shared_bytes_per_block = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  properties.shared_bytes_per_sm = static_cast<int64_t>(p.sharedMemPerMultiprocessor);
  properties.l2_bytes = p.l2CacheSize;
  properties.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
  properties.reads_pageable_memory = p.pageableMemoryAccessUsesHostPageTables != 0;
  return properties;
}

std::string VersionString(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

absl::Status CheckDriver() {
  int driver = 0, runtime = 0;
  AMPD_CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver), "driver version");
  AMPD_CUDA_RETURN_IF_ERROR(cudaRuntimeGetVersion(&runtime), "runtime version");
  // 0: none is installed; the next call says so. Within a major version any driver serves any runtime.
  if (driver == 0 || driver / 1000 >= runtime / 1000) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("[cuda] the driver supports CUDA ", VersionString(driver),
                                             ", this build needs ", VersionString(runtime), ": update the driver"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> Context::Open(const std::string& uuid) {
  AMPD_RETURN_IF_ERROR(CheckDriver());
  int devices = 0;
  AMPD_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&devices), "device count");
  std::vector<std::string> seen;
  for (int i = 0; i < devices; ++i) {
    cudaDeviceProp p;
    AMPD_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&p, i), absl::StrCat("properties of device ", i));
    auto context = std::make_unique<Context>(PropertiesOf(p));
    seen.push_back(context->properties_.uuid);
    if (!uuid.empty() && seen.back() != uuid) continue;
    context->device_ = i;
    AMPD_RETURN_IF_ERROR(context->Enter());
    AMPD_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking), "stream");
    context->open_ = true;
    return context;
  }
  if (seen.empty()) return absl::UnavailableError("[cuda] the driver lists no device");
  return absl::NotFoundError(absl::StrCat("[cuda] no device ", uuid, "; there are ", absl::StrJoin(seen, ", ")));
}

Context::~Context() {
  for (std::shared_ptr<void>& library : libraries_) library.reset();
  // Nothing can be done about an error here; a device that failed fails every call.
  if (open_) static_cast<void>(cudaStreamDestroy(stream_));
}

absl::Status Context::Enter() const { return ToStatus(cudaSetDevice(device_), absl::StrCat("device ", device_)); }

absl::Status Context::Wait() const { return ToStatus(cudaStreamSynchronize(stream_), "waiting for the device"); }

}  // namespace ampd::cuda
