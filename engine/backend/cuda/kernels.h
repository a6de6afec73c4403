// Internal to the CUDA backend: how its kernels are put together and registered.
#ifndef AMPD_ENGINE_BACKEND_CUDA_KERNELS_H_
#define AMPD_ENGINE_BACKEND_CUDA_KERNELS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "engine/backend/cuda/context.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

inline constexpr DType kDataTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
// What ops that only move elements take.
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                                       DType::kI32, DType::kI64, DType::kU8,   DType::kBool};

// Enqueues on the context's stream and returns: it allocates nothing, waits for nothing and reads no device memory, so
// that it can be captured in a graph. Pointers of the arguments, and `step`, are the device's.
using LaunchFunction = std::function<absl::Status(const runtime::KernelArgs&)>;

// A kernel that is one function. `overwrites`: the input that its first output may be written over.
std::unique_ptr<runtime::Kernel> MakeKernel(int64_t workspace_bytes, LaunchFunction launch, int overwrites = -1);

// Hands out parts of a workspace, each aligned to kTensorAlignment. The part for a library that tries several
// algorithms is added last: what one writes behind it is nothing that another reads.
class WorkspaceLayout {
 public:
  // Offset of `bytes` more bytes.
  int64_t Add(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += AlignUp(bytes);
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

template <typename T>
T* WorkspaceAt(const runtime::KernelArgs& args, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(args.workspace) + offset);
}

// What each file of kernel_files.def registers. `context` outlives the kernels.
#define X(name) void Register##name(runtime::KernelTable* table, Context* context);
#include "engine/backend/cuda/kernel_files.def"
#undef X

// All of them.
void RegisterCudaKernels(runtime::KernelTable* table, Context* context);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_KERNELS_H_
