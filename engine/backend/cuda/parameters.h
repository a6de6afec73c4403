// What is done to parameters outside a plan: copies of the masters as kernels read them, and the search for a value
// that is not finite. All only enqueue on the context's stream.
#ifndef AMPD_ENGINE_BACKEND_CUDA_PARAMETERS_H_
#define AMPD_ENGINE_BACKEND_CUDA_PARAMETERS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/backend/cuda/context.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace ampd::cuda {

// Dense copy of `size` masters in `dtype`, a float's, rounded as casts round.
absl::Status PublishDense(Context* context, const float* masters, int64_t size, DType dtype, void* copy);

// The dense tensor `from` of `shape` at the beginning of every dimension of `to`, dense of `padded`; zeros elsewhere.
// INVALID_ARGUMENT unless both have one rank and no extent of `padded` is less than `shape`'s.
absl::Status PadInto(Context* context, const float* from, const Shape& shape, const Shape& padded, float* to);

// What FindNonFinite leaves.
struct NonFiniteFind {
  // Index of the first value that is not finite; -1: none.
  int64_t index = -1;
  bool is_nan = false;
};

// Of `size` elements of `dtype` in device memory; integers are finite. `find` is in device memory.
absl::Status FindNonFinite(Context* context, const void* values, int64_t size, DType dtype, NonFiniteFind* find);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_PARAMETERS_H_
