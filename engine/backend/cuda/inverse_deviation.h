// The inverse of a norm's deviation. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_INVERSE_DEVIATION_H_
#define AMPD_ENGINE_BACKEND_CUDA_INVERSE_DEVIATION_H_

#include <cmath>

#include "engine/core/host_device.h"

namespace ampd::cuda {

// 1 / sqrt(variance + epsilon), computed in Real. A variance that rounding took below 0 counts as 0. One that
// overflowed gives NaN: of an inverse of 0 the norm would be its bias, which is finite, and the step would be applied.
template <typename Real>
AMPD_HOST_DEVICE inline float InverseDeviation(double variance, double epsilon) {
  const auto square = static_cast<Real>((variance < 0 ? 0.0 : variance) + epsilon);
  // An infinity less itself is NaN.
  return static_cast<float>(Real{1} / std::sqrt(square) + (square - square));
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_INVERSE_DEVIATION_H_
