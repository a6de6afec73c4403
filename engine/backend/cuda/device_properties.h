// What the backend must know of a GPU to make plans for it; no driver is asked.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DEVICE_PROPERTIES_H_
#define AMPD_ENGINE_BACKEND_CUDA_DEVICE_PROPERTIES_H_

#include <cstdint>
#include <string>

namespace ampd::cuda {

struct DeviceProperties {
  std::string name;  // e.g. "NVIDIA H200"
  std::string uuid;  // "GPU-..." as NVML writes it; empty for a device that is not there
  // Compute capability; 9 and 0 for sm_90.
  int major = 9;
  int minor = 0;
  int sm_count = 132;
  int64_t shared_bytes_per_block = 227 << 10;  // the most a kernel may ask for
  int64_t shared_bytes_per_sm = 228 << 10;
  int64_t l2_bytes = 50 << 20;
  int64_t memory_bytes = int64_t{141} << 30;
  // Whether it reads pageable host memory itself, by the host's page tables (as GH200 and GB200 do).
  bool reads_pageable_memory = false;

  int capability() const { return 10 * major + minor; }
  // bf16 and TF32 matrix units, and bf16 arithmetic.
  bool has_bf16() const { return major >= 8; }
  // 8-bit float matrix units.
  bool has_fp8() const { return capability() >= 89; }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DEVICE_PROPERTIES_H_
