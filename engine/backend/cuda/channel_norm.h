// What batch and group norm share: bodies for channel_sums.h. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CHANNEL_NORM_H_
#define AMPD_ENGINE_BACKEND_CUDA_CHANNEL_NORM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/vectors.h"
#include "engine/backend/cuda/wide.h"

namespace ampd::cuda {

// A channel's first element is a shift near enough to its mean; an infinite one would turn every difference into NaN.
__device__ __forceinline__ float ShiftOf(float first) { return first - first == 0 ? first : 0.0f; }

template <int kWidth>
struct ChannelVector {
  float values[kWidth];
};

// Sums of x - shift and of its square, the shift being ShiftOf(the channel's first element in its image).
template <typename T>
struct Moments : WideSums<2> {
  const T* x;
  int64_t rows, channels;  // of an image

  template <int kWidth>
  __device__ __forceinline__ ChannelVector<kWidth> Begin(int64_t outer, int64_t channel) const {
    ChannelVector<kWidth> shift;
    LoadFloats(x + outer * rows * channels + channel, shift.values);
#pragma unroll
    for (float& value : shift.values) value = ShiftOf(value);
    return shift;
  }
  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t row, int64_t channel, const ChannelVector<kWidth>& shift,
                                             Wide (&sums)[2][kWidth]) const {
    float v[kWidth];
    LoadFloats(x + row * channels + channel, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Wide d = Difference(v[j], shift.values[j]);
      sums[0][j] += d;
      sums[1][j] += d * d;
    }
  }
};

// What stands between a norm and the gradient that comes to it, as GradSums and GradInput apply it: nothing.
struct NoGate {
  template <int kWidth>
  struct Vectors {};
  template <int kWidth>
  __device__ __forceinline__ Vectors<kWidth> Get(int64_t) const {
    return {};
  }
  template <int kWidth>
  __device__ __forceinline__ static void Apply(const Vectors<kWidth>&, const float (&)[kWidth], const float (&)[kWidth],
                                               float (&)[kWidth]) {}
};

// Sums of dy and of dy (x - mean). MeanOf is a function object: its Get<kWidth>(outer, channel) gives the means.
template <typename T, typename MeanOf, typename Gate = NoGate>
struct GradSums : RunSums<2> {
  const T* dy;
  const T* x;
  int64_t channels;
  MeanOf mean_of;
  Gate gate;

  template <int kWidth>
  struct Constants : ChannelVector<kWidth> {
    typename Gate::template Vectors<kWidth> gate;
  };

  template <int kWidth>
  __device__ __forceinline__ Constants<kWidth> Begin(int64_t outer, int64_t channel) const {
    return {mean_of.template Get<kWidth>(outer, channel), gate.template Get<kWidth>(channel)};
  }
  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t row, int64_t channel, const Constants<kWidth>& mean,
                                             float (&sums)[2][kWidth]) const {
    float g[kWidth], v[kWidth];
    LoadFloats(dy + row * channels + channel, g);
    LoadFloats(x + row * channels + channel, v);
    Gate::Apply(mean.gate, v, mean.values, g);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums[0][j] += g[j];
      sums[1][j] += g[j] * (v[j] - mean.values[j]);
    }
  }
};

// y = (x - mean) * factor + bias. Centring first keeps y accurate where the mean is large against the deviation.
// VectorsOf's Get<kWidth>(outer, channel) gives the three.
template <int kWidth>
struct NormVectors {
  float mean[kWidth], factor[kWidth], bias[kWidth];
};
template <typename T, typename VectorsOf>
struct Normalize {
  const T* x;
  T* y;
  VectorsOf vectors_of;

  template <int kWidth>
  __device__ __forceinline__ NormVectors<kWidth> Begin(int64_t outer, int64_t channel) const {
    return vectors_of.template Get<kWidth>(outer, channel);
  }
  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t at, const NormVectors<kWidth>& c) const {
    float v[kWidth];
    LoadFloats(x + at, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = (v[j] - c.mean[j]) * c.factor[j] + c.bias[j];
    StoreFloats(v, y + at);
  }
};

// dx = dy * factor - shift - (x - mean) * slope.
template <int kWidth>
struct GradVectors {
  float mean[kWidth], factor[kWidth], shift[kWidth], slope[kWidth];
};
template <typename T, typename VectorsOf, typename Gate = NoGate>
struct GradInput {
  const T* dy;
  const T* x;
  T* dx;
  VectorsOf vectors_of;
  Gate gate;

  template <int kWidth>
  struct Constants : GradVectors<kWidth> {
    typename Gate::template Vectors<kWidth> gate;
  };

  template <int kWidth>
  __device__ __forceinline__ Constants<kWidth> Begin(int64_t outer, int64_t channel) const {
    return {vectors_of.template Get<kWidth>(outer, channel), gate.template Get<kWidth>(channel)};
  }
  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t at, const Constants<kWidth>& c) const {
    float g[kWidth], v[kWidth];
    LoadFloats(dy + at, g);
    LoadFloats(x + at, v);
    Gate::Apply(c.gate, v, c.mean, g);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = g[j] * c.factor[j] - c.shift[j] - (v[j] - c.mean[j]) * c.slope[j];
    StoreFloats(v, dx + at);
  }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_CHANNEL_NORM_H_
