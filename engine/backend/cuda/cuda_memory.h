// Device memory, as runtime::Memory.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDA_MEMORY_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDA_MEMORY_H_

#include "engine/backend/cuda/context.h"
#include "engine/runtime/memory.h"

namespace ampd::cuda {

// On the context's stream, so everything is ordered with launches. Allocate, Free and Download wait; a captured step
// calls none of them. Copy and Zero can be captured.
class CudaMemory : public runtime::Memory {
 public:
  explicit CudaMemory(Context* context) : context_(context) {}

  bool on_host() const override { return false; }
  int64_t total_bytes() const override { return context_->properties().memory_bytes; }
  // 0 where the driver does not say.
  int64_t free_bytes() const override;
  absl::StatusOr<void*> Allocate(int64_t bytes, absl::string_view what) override;
  void Free(void* p) override;
  // From pageable memory, which may change or be freed as soon as this returns; on a device that reads such memory
  // itself it therefore waits. Memory of cudaHostAlloc(), and any in a capture, has to stay as it is until the copy is
  // done.
  absl::Status Upload(const void* host, int64_t bytes, void* to) override;
  absl::Status Download(const void* from, int64_t bytes, void* host) override;
  absl::Status Copy(const void* from, int64_t bytes, void* to) override;
  absl::Status Zero(void* p, int64_t bytes) override;
  absl::Status Wait() override { return context_->Wait(); }

 private:
  Context* const context_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDA_MEMORY_H_
