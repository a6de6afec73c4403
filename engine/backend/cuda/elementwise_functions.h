// The functions of ops/elementwise.h as types that kernels are made from. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_FUNCTIONS_H_
#define AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_FUNCTIONS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/device_math.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/elementwise_functions.h"

namespace ampd::cuda {

// kInputs; kIntegers: whether Of() takes int64 beside float.
template <ops::ElementwiseFunction>
struct Function;

#define X(op, function, inputs)                                                                   \
  template <>                                                                                     \
  struct Function<ops::ElementwiseFunction::k##function> {                                        \
    static constexpr int kInputs = inputs;                                                        \
    static constexpr bool kIntegers = false;                                                      \
    template <typename... Floats>                                                                 \
    __device__ __forceinline__ static float Of(const ops::ElementwiseConstants& c, Floats... x) { \
      return ops::elementwise::function<DeviceMath>(c, x...);                                     \
    }                                                                                             \
  };
#define X_I(op, function, inputs)                                                                                \
  template <>                                                                                                    \
  struct Function<ops::ElementwiseFunction::k##function> {                                                       \
    static constexpr int kInputs = inputs;                                                                       \
    static constexpr bool kIntegers = true;                                                                      \
    template <typename... Floats>                                                                                \
    __device__ __forceinline__ static float Of(const ops::ElementwiseConstants& c, float a, Floats... x) {       \
      return ops::elementwise::function<DeviceMath>(c, a, x...);                                                 \
    }                                                                                                            \
    template <typename... Integers>                                                                              \
    __device__ __forceinline__ static int64_t Of(const ops::ElementwiseConstants& c, int64_t a, Integers... x) { \
      return ops::elementwise::Int##function(c, a, x...);                                                        \
    }                                                                                                            \
  };
AMPD_ELEMENTWISE_FUNCTIONS(X, X_I)
#undef X
#undef X_I

// F of the first kInputs of three values of type V.
template <typename F, typename V>
__device__ __forceinline__ V Apply(const ops::ElementwiseConstants& c, V a, V b, V d) {
  if constexpr (F::kInputs == 1) {
    return F::Of(c, a);
  } else if constexpr (F::kInputs == 2) {
    return F::Of(c, a, b);
  } else {
    return F::Of(c, a, b, d);
  }
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_ELEMENTWISE_FUNCTIONS_H_
