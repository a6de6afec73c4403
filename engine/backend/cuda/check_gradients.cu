#include "engine/backend/cuda/check_gradients.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__global__ void ClearSummary(int64_t size, GradientSummary* summary) {
  summary->sum_of_squares = 0;
  summary->zeros = 0;
  summary->first_non_finite = size;
}

// Sums `values`, one a thread, over the block in a fixed order; thread 0 has the result.
__device__ double SumOverBlock(double* values) {
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (threadIdx.x < distance) values[threadIdx.x] += values[threadIdx.x + distance];
  }
  return values[0];
}

// Integer results are exact in any order, so they go through atomics; the sum of each block waits in `partial`.
__global__ void SummarizeBlocks(const float* __restrict__ gradients, int64_t size, float factor, double* partial,
                                GradientSummary* summary) {
  __shared__ double sums[kThreads];
  double sum = 0;
  unsigned long long zeros = 0;
  long long first = size;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    const float g = gradients[i];
    const double scaled = static_cast<double>(g) * static_cast<double>(factor);
    sum += scaled * scaled;
    zeros += g == 0 ? 1 : 0;
    if (!isfinite(g) && i < first) first = i;
  }
  if (zeros > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&summary->zeros), zeros);
  if (first < size) atomicMin(reinterpret_cast<long long*>(&summary->first_non_finite), first);
  sums[threadIdx.x] = sum;
  const double total = SumOverBlock(sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void SumPartials(const double* partial, GradientSummary* summary) {
  __shared__ double sums[kThreads];
  double sum = 0;
  for (int i = threadIdx.x; i < kBlocks; i += kThreads) sum += partial[i];
  sums[threadIdx.x] = sum;
  const double total = SumOverBlock(sums);
  if (threadIdx.x == 0) summary->sum_of_squares = total;
}

}  // namespace

int64_t CheckGradientsScratch() { return kBlocks; }

cudaError_t CheckGradients(const float* gradients, int64_t size, float factor, double* scratch,
                           GradientSummary* summary, cudaStream_t stream) {
  ClearSummary<<<1, 1, 0, stream>>>(size, summary);
  SummarizeBlocks<<<kBlocks, kThreads, 0, stream>>>(gradients, size, factor, scratch, summary);
  SumPartials<<<1, kThreads, 0, stream>>>(scratch, summary);
  return cudaGetLastError();
}

}  // namespace ampd::cuda
