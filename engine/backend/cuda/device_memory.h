// Memory on the device, owned.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DEVICE_MEMORY_H_
#define AMPD_ENGINE_BACKEND_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/cuda/context.h"

namespace ampd::cuda {

// Movable; freed with its last owner, which must not outlive the context. Undefined at first.
class DeviceArray {
 public:
  DeviceArray() = default;
  // RESOURCE_EXHAUSTED says what was asked, for `what`, and what was free.
  static absl::StatusOr<DeviceArray> Allocate(int64_t bytes, absl::string_view what);
  // With `bytes` from `host`, which may change after the call. Waits.
  static absl::StatusOr<DeviceArray> Upload(Context* context, const void* host, int64_t bytes, absl::string_view what);
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceArray();

  // Gives it up; the caller frees it by cudaFree().
  void* Release() { return std::exchange(data_, nullptr); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// As DeviceArray, of page-locked host memory that the device reads and writes too, at the same address.
class PinnedArray {
 public:
  PinnedArray() = default;
  static absl::StatusOr<PinnedArray> Allocate(int64_t bytes, absl::string_view what);
  PinnedArray(PinnedArray&& other) noexcept { *this = std::move(other); }
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedArray();

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DEVICE_MEMORY_H_
