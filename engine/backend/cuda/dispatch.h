// From a dtype known at run time to the C++ type of its elements. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DISPATCH_H_
#define AMPD_ENGINE_BACKEND_CUDA_DISPATCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/float8.h"
#include "engine/core/half.h"

namespace ampd::cuda {

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls `f` with the TypeTag of f32, f16 or bf16; `dtype` is one of them.
template <typename F>
auto VisitData(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(TypeTag<Half>());
  if (dtype == DType::kBF16) return f(TypeTag<BFloat16>());
  return f(TypeTag<float>());
}

// As VisitData, in device code.
template <typename F>
__device__ __forceinline__ void WithData(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(TypeTag<Half>());
  if (dtype == DType::kBF16) return f(TypeTag<BFloat16>());
  f(TypeTag<float>());
}

// As VisitData, or the two 8-bit formats.
template <typename F>
auto VisitFloat(DType dtype, F&& f) {
  if (dtype == DType::kF8E4M3) return f(TypeTag<Float8E4M3>());
  if (dtype == DType::kF8E5M2) return f(TypeTag<Float8E5M2>());
  return VisitData(dtype, f);
}

// i32, i64, u8; a bool is a u8 of 0 or 1.
template <typename F>
auto VisitInteger(DType dtype, F&& f) {
  if (dtype == DType::kI32) return f(TypeTag<int32_t>());
  if (dtype == DType::kI64) return f(TypeTag<int64_t>());
  return f(TypeTag<uint8_t>());
}

// By width alone, for ops that only move elements: unsigned integers of 1, 2, 4 or 8 bytes.
template <typename F>
auto VisitBytes(int64_t bytes, F&& f) {
  if (bytes == 8) return f(TypeTag<uint64_t>());
  if (bytes == 4) return f(TypeTag<uint32_t>());
  if (bytes == 2) return f(TypeTag<uint16_t>());
  return f(TypeTag<uint8_t>());
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DISPATCH_H_
