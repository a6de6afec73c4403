// The mean of what counts, by one block. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_NORMALIZED_SUM_H_
#define AMPD_ENGINE_BACKEND_CUDA_NORMALIZED_SUM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/block_sum.h"

namespace ampd::cuda {

// In double, by one block, which gets it in every thread.
__device__ inline double SumByBlock(const float* values, int64_t size) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) sum += static_cast<double>(values[i]);
  return BlockSum(sum);
}

// By one block: the sum of `values` over that of `weights`.
__device__ inline void NormalizeSum(const float* __restrict__ values, const float* __restrict__ weights, int64_t size,
                                    float* __restrict__ y) {
  const double sum = SumByBlock(values, size), weight = SumByBlock(weights, size);
  // Without weights there is nothing to divide by. What is not finite must show, also where it would divide to zero.
  const double mean = weight == 0 ? sum * 0 : sum / weight + weight * 0;
  if (threadIdx.x == 0) *y = static_cast<float>(mean);
}

// By one block, which gets it in every thread: what `dy` of the mean is for each of `values`.
__device__ inline float ShareOfSum(float dy, const float* __restrict__ weights, int64_t size) {
  const double weight = SumByBlock(weights, size);
  return weight == 0 ? 0.0f : static_cast<float>(static_cast<double>(dy) / weight);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_NORMALIZED_SUM_H_
