// A number of at least 46 significant bits for sums whose terms may cancel, such as a mean's and a variance's: double
// where the GPU computes it at half the speed of fp32, else a pair of fp32 numbers, which costs less there. For .cu
// files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_WIDE_H_
#define AMPD_ENGINE_BACKEND_CUDA_WIDE_H_

#include <cuda_runtime.h>

#include <cmath>

#include "engine/core/host_device.h"

namespace ampd::cuda {

// The unevaluated sum high + low, with the error-free transformations of Knuth 1969 (TwoSum) and Dekker 1971, the
// product by a fused multiply-add. Infinities and NaN are `high`'s; `low` then means nothing.
struct FloatPair {
  float high = 0;
  float low = 0;

  AMPD_HOST_DEVICE FloatPair() {}
  AMPD_HOST_DEVICE explicit FloatPair(float value) : high(value) {}
  AMPD_HOST_DEVICE FloatPair(float h, float l) : high(h), low(l) {}

  // a + b exactly, unless it overflows.
  AMPD_HOST_DEVICE static FloatPair Sum(float a, float b) {
    const float sum = a + b, of_b = sum - a;
    return {sum, (a - (sum - of_b)) + (b - of_b)};
  }
  AMPD_HOST_DEVICE FloatPair& operator+=(FloatPair other) {
    const FloatPair sum = Sum(high, other.high);
    float rest = sum.low + (low + other.low);
    // What is lost of an infinity is NaN, and must not get into it.
    rest = rest == rest ? rest : 0.0f;
    high = sum.high + rest;
    low = rest - (high - sum.high);
    return *this;
  }
  AMPD_HOST_DEVICE FloatPair operator*(FloatPair other) const {
    const float product = high * other.high;
    return {product, fmaf(high, other.high, -product) + (high * other.low + low * other.high)};
  }
};

AMPD_HOST_DEVICE inline double ToDouble(double x) { return x; }
AMPD_HOST_DEVICE inline double ToDouble(FloatPair x) {
  const double high = static_cast<double>(x.high);
  return high - high == 0 ? high + static_cast<double>(x.low) : high;
}

template <typename Wide>
AMPD_HOST_DEVICE inline Wide DifferenceOf(float a, float b);
template <>
AMPD_HOST_DEVICE inline double DifferenceOf<double>(float a, float b) {
  return static_cast<double>(a) - static_cast<double>(b);
}
template <>
AMPD_HOST_DEVICE inline FloatPair DifferenceOf<FloatPair>(float a, float b) {
  return FloatPair::Sum(a, -b);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 700 || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || \
    __CUDA_ARCH__ == 1000
using Wide = double;
#else
using Wide = FloatPair;
#endif

// a - b, exactly unless it overflows.
AMPD_HOST_DEVICE inline Wide Difference(float a, float b) { return DifferenceOf<Wide>(a, b); }

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_WIDE_H_
