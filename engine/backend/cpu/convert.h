// Bulk conversion between the float dtypes, bit-equal to engine/core/half.h and float8.h. Pure; thread-safe.
#ifndef AMPD_ENGINE_BACKEND_CPU_CONVERT_H_
#define AMPD_ENGINE_BACKEND_CPU_CONVERT_H_

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/float8.h"
#include "engine/core/half.h"
#include "engine/core/tensor.h"

namespace ampd::cpu {

// Elements handled at a time by loops that convert through a buffer: two or three such fit the first-level cache.
inline constexpr int64_t kBlock = 1024;

void HalfToFloat(const Half* from, int64_t n, float* to);
void FloatToHalf(const float* from, int64_t n, Half* to);
void BFloat16ToFloat(const BFloat16* from, int64_t n, float* to);
void FloatToBFloat16(const float* from, int64_t n, BFloat16* to);

void Float8ToFloat(const Float8E4M3* from, int64_t n, float* to);
void Float8ToFloat(const Float8E5M2* from, int64_t n, float* to);
// As ToFloat8E4M3 and ToFloat8E5M2: what is too large becomes NaN (e4m3fn) or infinite (e5m2).
void FloatToFloat8(const float* from, int64_t n, Float8E4M3* to);
void FloatToFloat8(const float* from, int64_t n, Float8E5M2* to);
// As ToFloat8E4M3Saturating and ToFloat8E5M2Saturating.
void FloatToFloat8Saturating(const float* from, int64_t n, Float8E4M3* to);
void FloatToFloat8Saturating(const float* from, int64_t n, Float8E5M2* to);
// Rounds to 10 fraction bits; `to` may be `from`.
void RoundToTf32(const float* from, int64_t n, float* to);

// `n` elements of float dtype `dtype` at `from` as f32, and back (not saturating). f32 is copied.
void ToF32(DType dtype, const void* from, int64_t n, float* to);
void FromF32(const float* from, int64_t n, DType dtype, void* to);

// Rounds through `dtype` and stays f32; `to` may be `from`.
void RoundThrough(DType dtype, const float* from, int64_t n, float* to);

// The same conversions over up to `threads` threads.
void ParallelToF32(int threads, DType dtype, const void* from, int64_t n, float* to);
void ParallelFromF32(int threads, const float* from, int64_t n, DType dtype, void* to);
void ParallelRoundThrough(int threads, DType dtype, const float* from, int64_t n, float* to);
void ParallelConvert(int threads, DType from_dtype, const void* from, int64_t n, DType to_dtype, void* to);

// Elements first..first+n-1 of a float tensor as f32: in place if it is f32, else converted into `buffer`.
inline const float* Load(const TensorView& tensor, int64_t first, int64_t n, float* buffer) {
  if (tensor.dtype == DType::kF32) return tensor.as<float>() + first;
  ToF32(tensor.dtype, tensor.as<char>() + first * SizeOf(tensor.dtype), n, buffer);
  return buffer;
}

// Where to compute elements from `first` on: in place if the tensor is f32, else `buffer`. Store() completes it.
inline float* Target(const TensorView& tensor, int64_t first, float* buffer) {
  return tensor.dtype == DType::kF32 ? tensor.as<float>() + first : buffer;
}

inline void Store(const TensorView& tensor, int64_t first, int64_t n, const float* computed) {
  if (tensor.dtype != DType::kF32) {
    FromF32(computed, n, tensor.dtype, tensor.as<char>() + first * SizeOf(tensor.dtype));
  }
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_CONVERT_H_
