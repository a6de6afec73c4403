// Sums and maxima over the threads of a warp and of a block, in an order that depends on nothing but the block's size.
// For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BLOCK_SUM_H_
#define AMPD_ENGINE_BACKEND_CUDA_BLOCK_SUM_H_

#include <cuda_runtime.h>

#include "engine/backend/cuda/launch.h"

namespace ampd::cuda {

struct SumOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
// A NaN wins.
struct MaxOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  __device__ __forceinline__ float operator()(float a, float b) const {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
  }
#endif
};

// Over all 32 lanes, which all get it.
template <typename T, typename Combine>
__device__ __forceinline__ T WarpReduce(T value, Combine combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over the block's threads (one axis, a multiple of 32, at most 1024), which all get it. Every thread calls it; it may
// be called again at once. `identity` changes nothing when combined.
template <typename T, typename Combine>
__device__ inline T BlockReduce(T value, T identity, Combine combine) {
  __shared__ T partial[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpReduce(value, combine);
  // The sums before may still be read.
  __syncthreads();
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return WarpReduce(lane < warps ? partial[lane] : identity, combine);
}

template <typename T>
__device__ __forceinline__ T BlockSum(T value) {
  return BlockReduce(value, T{0}, SumOf());
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_BLOCK_SUM_H_
