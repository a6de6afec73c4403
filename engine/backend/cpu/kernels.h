// Internal to the CPU backend: how its kernels are put together and registered.
#ifndef AMPD_ENGINE_BACKEND_CPU_KERNELS_H_
#define AMPD_ENGINE_BACKEND_CPU_KERNELS_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cpu {

inline constexpr DType kDataTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
// What ops that only move elements take.
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                                       DType::kI32, DType::kI64, DType::kU8,   DType::kBool};

using LaunchFunction = std::function<void(const runtime::KernelArgs&)>;

// A kernel that is one function and cannot fail. `overwrites`: the input that its first output may be written over.
std::unique_ptr<runtime::Kernel> MakeKernel(int64_t workspace_bytes, LaunchFunction launch, int overwrites = -1);

// Hands out parts of a workspace, each aligned to kTensorAlignment.
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

// What each file of kernel_files.def registers.
#define X(name) void Register##name(runtime::KernelTable* table);
#include "engine/backend/cpu/kernel_files.def"
#undef X

// Runs last, on the rows of the others: gives bilinear ops TF32 and 8-bit operands.
void RegisterReducedOperands(runtime::KernelTable* table);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_KERNELS_H_
