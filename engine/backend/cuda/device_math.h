// The functions of f32 that ops::elementwise takes, on a GPU: CUDA's, whose errors are at most 2 units in the last
// place each but where said. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DEVICE_MATH_H_
#define AMPD_ENGINE_BACKEND_CUDA_DEVICE_MATH_H_

#include <cuda_runtime.h>

#include <cmath>

namespace ampd::cuda {

// Also of the host, for the functions of elementwise.h are of both.
struct DeviceMath {
  __host__ __device__ static float Exp(float x) { return expf(x); }
  __host__ __device__ static float Expm1(float x) { return expm1f(x); }
  __host__ __device__ static float Log(float x) { return logf(x); }
  __host__ __device__ static float Log1p(float x) { return log1pf(x); }
  __host__ __device__ static float Sigmoid(float x) {
    const float z = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : z) / (1.0f + z) + (x != x ? x : 0.0f);
  }
  __host__ __device__ static float Tanh(float x) { return tanhf(x); }
  __host__ __device__ static float Erf(float x) { return erff(x); }
  // 5 units in the last place by NVIDIA's table.
  __host__ __device__ static float NormalCdf(float x) { return normcdff(x); }
  __host__ __device__ static float NormalPdf(float x) { return 0.39894228f * expf(-0.5f * (x * x)); }
  __host__ __device__ static float Sin(float x) { return sinf(x); }
  __host__ __device__ static float Cos(float x) { return cosf(x); }
  __host__ __device__ static float Pow(float x, float y) { return powf(x, y); }
  __host__ __device__ static float Remainder(float x, float y) { return fmodf(x, y); }
  __host__ __device__ static float Floor(float x) { return floorf(x); }
  __host__ __device__ static float Ceil(float x) { return ceilf(x); }
  __host__ __device__ static float RoundEven(float x) { return rintf(x); }
  __host__ __device__ static float Sqrt(float x) { return sqrtf(x); }
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DEVICE_MATH_H_
