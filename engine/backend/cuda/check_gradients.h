// One pass over scaled gradients in device memory.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CHECK_GRADIENTS_H_
#define AMPD_ENGINE_BACKEND_CUDA_CHECK_GRADIENTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ampd::cuda {

// In device memory.
struct GradientSummary {
  // Sum of the squares of (gradient * factor), in double; meaningless where a gradient is not finite.
  double sum_of_squares;
  int64_t zeros;
  // Index of the first gradient that is not finite, or `size`.
  int64_t first_non_finite;
};

// Doubles of scratch memory that CheckGradients() needs.
int64_t CheckGradientsScratch();

// Enqueues the pass over `size` gradients at `gradients`; `summary` and `scratch` are device memory, undefined before.
// The order of the sum is fixed, so equal gradients give equal bits. Reads nothing back. Any CUDA launch error is
// returned.
cudaError_t CheckGradients(const float* gradients, int64_t size, float factor, double* scratch,
                           GradientSummary* summary, cudaStream_t stream);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CHECK_GRADIENTS_H_
