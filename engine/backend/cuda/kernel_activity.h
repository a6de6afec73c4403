// The device's own record of what ran on it and for how long, by NVIDIA's profiling library (CUPTI).
#ifndef AMPD_ENGINE_BACKEND_CUDA_KERNEL_ACTIVITY_H_
#define AMPD_ENGINE_BACKEND_CUDA_KERNEL_ACTIVITY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/cupti_abi.h"

namespace ampd::cuda {

// A kernel, a copy or a fill.
struct ActivityRecord {
  // What SetId() said when it was launched; 0: nothing, or it was launched otherwise than by a call of that thread.
  uint64_t id = 0;
  // Demangled, cut to 200 bytes; "copy", "fill".
  std::string name;
  double seconds = 0;
};

// Records from Start() until it goes. One at a time in a process; used by one thread, which launches what is to carry
// an id. What runs while no id is set is not kept.
class KernelActivity {
 public:
  // Of the calling thread's CUDA device. `libraries`: names for the dynamic linker or paths, of which the first that is
  // one is taken and kept for the process. UNAVAILABLE, with CUPTI's words, where there is none, it refuses (another
  // profiler is at work), or there is one already.
  static absl::StatusOr<std::unique_ptr<KernelActivity>> Start(const std::vector<std::string>& libraries = {
                                                                   "libcupti.so.13", "libcupti.so.12"});
  ~KernelActivity();
  KernelActivity(const KernelActivity&) = delete;
  KernelActivity& operator=(const KernelActivity&) = delete;

  // What this thread launches from here on carries `id`; 0: none.
  absl::Status SetId(uint64_t id);
  // What has run on the device since the last Take(), in no order. The device is idle.
  absl::StatusOr<std::vector<ActivityRecord>> Take();

 private:
  struct Library;

  KernelActivity(Library* library, uint32_t device) : library_(library), device_(device) {}
  absl::Status Enable();

  Library* const library_;
  const uint32_t device_;
  bool has_id_ = false;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_KERNEL_ACTIVITY_H_
