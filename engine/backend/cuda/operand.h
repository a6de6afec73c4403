// How the operands of elementwise kernels lie beside the output. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_OPERAND_H_
#define AMPD_ENGINE_BACKEND_CUDA_OPERAND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

// Where a run of N of the output's elements finds its own in an operand.
enum class Reach : uint8_t {
  kDense,   // at the same place
  kOne,     // one element for all
  kSpread,  // one element for the run, at index.At(first)
  kPacked,  // a run of N, at index.At(first); aligned as a Pack
};

// Plain data, passed to kernels by value.
struct Operand {
  const void* data = nullptr;
  Reach reach = Reach::kDense;
  StridedIndex index;
};

// The operands of an elementwise node, broadcast to its output; their `data` is left null. Returns the N they are for:
// `width`, or 1 where some operand's runs of `width` would not be aligned or all alike. Where N > 1 and some operand is
// kSpread or kPacked, N divides the output's size. UNIMPLEMENTED as MakeStridedIndex().
absl::StatusOr<int> MakeOperands(const runtime::NodeDesc& desc, int width, absl::Span<Operand> operands);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_OPERAND_H_
