// Memory that a backend computes in. For the CPU it is the host's own; a device keeps tensors where the host cannot
// dereference them, and whoever looks at them from the host copies them first.
#ifndef AMPD_ENGINE_RUNTIME_MEMORY_H_
#define AMPD_ENGINE_RUNTIME_MEMORY_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/core/tensor.h"

namespace ampd::runtime {

// Thread-compatible, as the backend it belongs to, unless an implementation says more. What Upload, Copy and Zero
// write, every launch that follows on the same backend reads, and they overwrite nothing that an earlier launch still
// reads. No two ranges given to one call overlap. Errors are the device's and name the call.
class Memory {
 public:
  virtual ~Memory() = default;

  // Whether the host may dereference it as soon as a call of the backend has returned.
  virtual bool on_host() const = 0;
  // What the device has altogether, and how much of it is free now; bytes.
  virtual int64_t total_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;

  // Zero-filled memory, aligned to kTensorAlignment at least. bytes > 0. RESOURCE_EXHAUSTED with `what`, the bytes
  // asked and the bytes free, where there is not so much. The caller frees it; Buffer does.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) = 0;
  // `p` is from Allocate(). What was launched before may still use it. nullptr: nothing happens.
  virtual void Free(void* p) = 0;

  // From host memory, which has been read when this returns.
  virtual absl::Status Upload(const void* host, int64_t bytes, void* to) = 0;
  // To host memory, which has been written when this returns: it waits for all that was launched before.
  virtual absl::Status Download(const void* from, int64_t bytes, void* host) = 0;
  // Within this memory.
  virtual absl::Status Copy(const void* from, int64_t bytes, void* to) = 0;
  virtual absl::Status Zero(void* p, int64_t bytes) = 0;
  // Returns when all that was launched before is done, with the first error of it.
  virtual absl::Status Wait() = 0;
};

// The host's, as the CPU backend uses it. Lives for ever; thread-safe.
Memory* HostMemory();

// Owns one allocation. Movable. The memory outlives it.
class Buffer {
 public:
  Buffer() = default;
  // `bytes` >= 0, zero-filled; errors as Memory::Allocate's.
  static absl::StatusOr<Buffer> Allocate(Memory* memory, int64_t bytes, absl::string_view what);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) memory_->Free(data_);
  }

  // Not null, even of 0 bytes, unless it was default-made or moved from.
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Memory* memory() const { return memory_; }

 private:
  Memory* memory_ = nullptr;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// `tensor`, which lies in `memory`, for the host to read: itself where memory is the host's, else a copy in `*staging`
// (which grows to what it needs and is kept by the caller for the next time). Waits as Download() does.
absl::StatusOr<TensorView> OnHost(Memory* memory, const TensorView& tensor, AlignedBuffer* staging);

// `write` fills the `bytes` it is given, all of them, and they become what lies at `to` in `memory`.
absl::Status WriteFromHost(Memory* memory, void* to, int64_t bytes, const std::function<void(void*)>& write);

// As WriteFromHost, but `edit` finds there what lies at `p`.
absl::Status EditOnHost(Memory* memory, void* p, int64_t bytes, const std::function<void(void*)>& edit);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_MEMORY_H_
