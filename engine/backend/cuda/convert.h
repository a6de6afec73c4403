// Between a tensor's stored types and fp32, in device code: by the GPU's own instructions where it has them, with the
// same results as engine/core's (but for the payload of a NaN). For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CONVERT_H_
#define AMPD_ENGINE_BACKEND_CUDA_CONVERT_H_

#include <cuda_runtime.h>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <type_traits>

#include "engine/core/dtype.h"
#include "engine/core/float8.h"
#include "engine/core/half.h"

namespace ampd::cuda {

__device__ __forceinline__ float Load(float x) { return x; }
__device__ __forceinline__ float Load(Half x) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(x.bits));
#else
  return ToFloat(x);
#endif
}
__device__ __forceinline__ float Load(BFloat16 x) { return ToFloat(x); }
__device__ __forceinline__ float Load(Float8E4M3 x) { return ToFloat(x); }
__device__ __forceinline__ float Load(Float8E5M2 x) { return ToFloat(x); }

// The code of `x`, and two codes, of which the GPU's own conversion saturates all, infinities too. For capability 8.9
// and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define AMPD_CONVERTS_FLOAT8 1
template <typename T>
__device__ __forceinline__ uint32_t SaturatedPair(float low, float high) {
  uint16_t pair;
  if constexpr (std::is_same_v<T, Float8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
template <typename T>
__device__ __forceinline__ T Float8Of(float x) {
  constexpr bool kE4M3 = std::is_same_v<T, Float8E4M3>;
  // From here on, NaN included, the magnitude is past the largest value: engine/core/float8.h.
  constexpr uint32_t kLimit = kE4M3 ? 0x43e80001u : 0x47700000u;
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  const uint32_t past = (bits >> 24 & 0x80u) | (kE4M3 || magnitude > 0x7f800000u ? 0x7fu : 0x7cu);
  return {static_cast<uint8_t>(magnitude >= kLimit ? past : SaturatedPair<T>(x, 0))};
}
#endif

// `x` rounded to nearest, ties to even; past the largest value as engine/core's conversions without saturation.
template <typename T>
__device__ __forceinline__ T Store(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, Half>) {
#if defined(__CUDA_ARCH__)
    return Half{__half_as_ushort(__float2half_rn(x))};
#else
    return ToHalf(x);
#endif
  } else if constexpr (std::is_same_v<T, BFloat16>) {
#if defined(__CUDA_ARCH__)
    return BFloat16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    return ToBFloat16(x);
#endif
  } else {
    static_assert(std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>);
#if defined(AMPD_CONVERTS_FLOAT8)
    return Float8Of<T>(x);
#else
    if constexpr (std::is_same_v<T, Float8E4M3>) return ToFloat8E4M3(x);
    if constexpr (std::is_same_v<T, Float8E5M2>) return ToFloat8E5M2(x);
#endif
  }
}

// `x` as a tensor of T would hold it.
template <typename T>
__device__ __forceinline__ float RoundTo(float x) {
  return Load(Store<T>(x));
}

// Two 16-bit numbers as one word, the first in its lower half; and element 0 or 1 of one.
template <typename T>
__device__ __forceinline__ uint32_t PairOf(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // Both by one instruction.
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
#else
  return static_cast<uint32_t>(Store<T>(low).bits) | static_cast<uint32_t>(Store<T>(high).bits) << 16;
#endif
}
template <typename T>
__device__ __forceinline__ float ElementOfPair(uint32_t pair, int element) {
  return Load(T{static_cast<uint16_t>(pair >> (16 * element))});
}

// The C++ type of a dtype's elements.
template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::kF32> {
  using type = float;
};
template <>
struct ElementOf<DType::kF16> {
  using type = Half;
};
template <>
struct ElementOf<DType::kBF16> {
  using type = BFloat16;
};
template <>
struct ElementOf<DType::kF8E4M3> {
  using type = Float8E4M3;
};
template <>
struct ElementOf<DType::kF8E5M2> {
  using type = Float8E5M2;
};
template <DType kDType>
using Element = typename ElementOf<kDType>::type;

// N elements that are read and written at once: N * sizeof(T) is at most 16, and their address a multiple of it.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16);
  T values[N];
};
// Elements of T in 16 bytes.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CONVERT_H_
