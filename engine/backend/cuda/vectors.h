// Several elements between memory and fp32 registers at once. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_VECTORS_H_
#define AMPD_ENGINE_BACKEND_CUDA_VECTORS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/convert.h"

namespace ampd::cuda {

// Elements in one access of at most 16 bytes, when `kWidth` are wanted.
template <typename T, int kWidth>
inline constexpr int kAtOnce = kWidth < kPack<T> ? kWidth : kPack<T>;

// `at` is aligned to the smaller of 16 bytes and kWidth elements; kWidth is a power of two.
template <int kWidth, typename T>
__device__ __forceinline__ void LoadFloats(const T* at, float (&values)[kWidth]) {
  constexpr int kN = kAtOnce<T, kWidth>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kN) {
    const auto pack = *reinterpret_cast<const Pack<T, kN>*>(at + i);
#pragma unroll
    for (int j = 0; j < kN; ++j) values[i + j] = Load(pack.values[j]);
  }
}

template <int kWidth, typename T>
__device__ __forceinline__ void StoreFloats(const float (&values)[kWidth], T* at) {
  constexpr int kN = kAtOnce<T, kWidth>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kN) {
    Pack<T, kN> pack;
#pragma unroll
    for (int j = 0; j < kN; ++j) pack.values[j] = Store<T>(values[i + j]);
    *reinterpret_cast<Pack<T, kN>*>(at + i) = pack;
  }
}

// As LoadFloats, or `absent` everywhere where `from` is null.
template <int kWidth>
__device__ __forceinline__ void LoadOr(float absent, const float* from, int64_t at, float (&values)[kWidth]) {
  if (from != nullptr) return LoadFloats<kWidth>(from + at, values);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = absent;
}

// Of a power of two of values, pair by pair: its error is that of log2(kWidth) roundings.
template <int kWidth>
__device__ __forceinline__ float PairwiseSum(const float (&values)[kWidth]) {
  float sums[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sums[j] = values[j];
#pragma unroll
  for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_VECTORS_H_
