// Functions in f32 for loops that the compiler vectorises: no branch, no call, no table. Each is a pure function of its
// argument with the same bits on every instruction set (compile with -ffp-contract=off). Error bounds, in units in the
// last place of the exact result, are the largest seen over every 101st float and are tested:
//   ExpF < 1.5 (results from 2^-126 up; below that one smallest denormal), SigmoidF < 3, TanhF < 2.5.
// Polynomials: own minimax fits of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2 and (tanh(x) - x) / x^3 on |x| <= 0.625.
#ifndef AMPD_ENGINE_BACKEND_CPU_VECTOR_MATH_H_
#define AMPD_ENGINE_BACKEND_CPU_VECTOR_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#define AMPD_CPU_INLINE inline __attribute__((always_inline))

namespace ampd::cpu {

AMPD_CPU_INLINE float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

AMPD_CPU_INLINE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// e^x: infinite above 88.7228, 0 below -104, NaN for NaN.
AMPD_CPU_INLINE float ExpF(float x) {
  // Clamped so that n fits; written so that NaN passes through.
  const float above = x < -104.0f ? -104.0f : x;
  const float t = above > 89.0f ? 89.0f : above;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = t * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  // ln 2 in two parts, the first short enough for n * part to be exact.
  const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 0.001395049155689776f;
  p = p * r + 0.008368889801204205f;
  p = p * r + 0.04166620597243309f;
  p = p * r + 0.166665181517601f;
  p = p * r + 0.5f;
  const float e = (p * (r * r) + r) + 1.0f;
  // 2^n as the product of two powers, since n reaches from -150 to 128.
  const int32_t k = static_cast<int32_t>(BitsOfFloat(shifted)) - 0x4b400000;
  const int32_t half = k >> 1;
  const float first = FloatOfBits(static_cast<uint32_t>(half + 127) << 23);
  const float second = FloatOfBits(static_cast<uint32_t>(k - half + 127) << 23);
  const float y = (e * first) * second;
  return x != x ? x : y;
}

// 1 / (1 + e^-x).
AMPD_CPU_INLINE float SigmoidF(float x) {
  const float z = ExpF(-std::fabs(x));
  const float numerator = x >= 0 ? 1.0f : z;
  const float y = numerator / (1.0f + z);
  return x != x ? x : y;
}

AMPD_CPU_INLINE float TanhF(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = -0.005717044696211815f;
  p = p * s + 0.020650586113333702f;
  p = p * s - 0.05374349653720856f;
  p = p * s + 0.13331490755081177f;
  p = p * s - 0.3333328366279602f;
  const float near = a + a * (s * p);
  const float far = 1.0f - 2.0f / (ExpF(2.0f * a) + 1.0f);
  const float magnitude = a < 0.625f ? near : far;
  return std::copysign(magnitude, x);
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_VECTOR_MATH_H_
