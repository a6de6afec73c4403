// What 8-bit codes stand for.
#ifndef AMPD_ENGINE_BACKEND_CUDA_QUANTIZE_H_
#define AMPD_ENGINE_BACKEND_CUDA_QUANTIZE_H_

#include <string>

#include "absl/status/status.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {

// y = x / *scale_a / *scale_b, rounded to y's dtype; x is f32, and may be y where that is f32, too. All in device
// memory. Enqueues on the context's stream.
absl::Status LaunchDequantize(const Context& context, const std::string& name, const float* x, const float* scale_a,
                              const float* scale_b, const TensorView& y);

// From a factor of operands of 8 bits to the next, in floats: cuBLASLt has no product for one that does not start at a
// multiple of 16 bytes.
inline constexpr int64_t kFactorStride = 4;

// to[0] = 1 / *scale_a, to[kFactorStride] = 1 / *scale_b.
absl::Status LaunchReciprocals(const Context& context, const std::string& name, const float* scale_a,
                               const float* scale_b, float* to);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_QUANTIZE_H_
