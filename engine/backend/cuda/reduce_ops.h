// What reduce.cu folds, one struct an operation: T are the elements, Sum is what a thread keeps, Total what threads
// join. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_REDUCE_OPS_H_
#define AMPD_ENGINE_BACKEND_CUDA_REDUCE_OPS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {

// An element as it is computed with: floats in fp32, integers in 64 bits.
template <typename T>
__device__ __forceinline__ auto Widened(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(x);
  } else {
    return Load(x);
  }
}
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;

template <typename T>
struct SumFold {
  using Sum = std::conditional_t<kIsInteger<T>, uint64_t, Wide>;
  using Total = std::conditional_t<kIsInteger<T>, uint64_t, double>;
  __device__ static Sum Identity() { return Sum(); }
  __device__ static void Add(Sum* sum, T x) { *sum += Sum(Widened(x)); }
  __device__ static Total Finish(Sum sum) {
    if constexpr (kIsInteger<T>) {
      return sum;
    } else {
      return ToDouble(sum);
    }
  }
  __device__ static Total Join(Total a, Total b) { return a + b; }
};

template <typename T>
struct ProdFold {
  using Sum = std::conditional_t<kIsInteger<T>, uint64_t, double>;
  using Total = Sum;
  __device__ static Sum Identity() { return 1; }
  __device__ static void Add(Sum* sum, T x) { *sum *= static_cast<Sum>(Widened(x)); }
  __device__ static Total Finish(Sum sum) { return sum; }
  __device__ static Total Join(Total a, Total b) { return a * b; }
};

// The largest, or the smallest; a NaN wins.
template <typename T, bool kMax>
struct ExtremeFold {
  using Sum = std::conditional_t<kIsInteger<T>, int64_t, float>;
  using Total = Sum;
  __device__ static Sum Identity() {
    using Limits = std::numeric_limits<Sum>;
    if (kIsInteger<T>) return kMax ? Limits::min() : Limits::max();
    return kMax ? -Limits::infinity() : Limits::infinity();
  }
  __device__ static void Add(Sum* sum, T x) { *sum = Join(*sum, Widened(x)); }
  __device__ static Total Finish(Sum sum) { return sum; }
  __device__ static Total Join(Total a, Total b) { return (kMax ? a > b : a < b) || a != a ? a : b; }
};
template <typename T>
using MaxFold = ExtremeFold<T, true>;
template <typename T>
using MinFold = ExtremeFold<T, false>;

template <typename Fold>
struct JoinOf {
  __device__ __forceinline__ typename Fold::Total operator()(typename Fold::Total a, typename Fold::Total b) const {
    return Fold::Join(a, b);
  }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_REDUCE_OPS_H_
