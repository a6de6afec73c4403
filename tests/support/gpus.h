// GPUs that plans are made for without having them: one of each generation that the CUDA backend is built for.
#ifndef AMPD_TESTS_SUPPORT_GPUS_H_
#define AMPD_TESTS_SUPPORT_GPUS_H_

#include <vector>

#include "engine/backend/cuda/device_properties.h"

namespace ampd::testing {

// From NVIDIA's data sheets, architecture white papers, and the table of technical specifications per compute
// capability in CUDA's programming guide.
inline std::vector<cuda::DeviceProperties> Gpus() {
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
  return {{"Tesla T4", "", 7, 5, 40, 64 * kKiB, 64 * kKiB, 4 * kMiB, 16 * kGiB},
          {"NVIDIA A100", "", 8, 0, 108, 163 * kKiB, 164 * kKiB, 40 * kMiB, 40 * kGiB},
          {"NVIDIA L4", "", 8, 9, 58, 99 * kKiB, 100 * kKiB, 48 * kMiB, 24 * kGiB},
          {"NVIDIA H200", "", 9, 0, 132, 227 * kKiB, 228 * kKiB, 60 * kMiB, 141 * kGiB},
          {"NVIDIA B200", "", 10, 0, 148, 227 * kKiB, 228 * kKiB, 126 * kMiB, 180 * kGiB}};
}

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_GPUS_H_
