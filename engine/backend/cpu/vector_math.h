// Functions in f32 for loops that the compiler vectorises: no branch, no call, no table. Each is a pure function of its
// argument with the same bits on every instruction set (compile with -ffp-contract=off). Error bounds, in units in the
// last place of the exact result, are the largest seen over every 101st float and are tested:
//   ExpF < 1.5 (results from 2^-126 up; below that one smallest denormal), SigmoidF < 3, TanhF < 2.5, Expm1F < 2 (at
//   most 0), LogF < 2, Log1pF < 2.5, ErfF < 2.5; NormalPdfF and NormalCdfF (left of 0) < 4 + x^2.
// Polynomials: own minimax fits of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, (tanh(x) - x) / x^3 on |x| <= 0.625, (2
// atanh(s) - 2 s) / s^3 on s <= 0.1716 and s <= 1/3, erf(x) / x on |x| <= 0.85, and cdf(-x) e^(x^2 / 2), as a
// polynomial of 1 / (1 + 0.3 x), on [0, 14.5].
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

// e^x - 1 for x <= 0 or NaN.
AMPD_CPU_INLINE float Expm1F(float x) {
  // Rounds to -1 already at -18; NaN passes through.
  const float t = x < -30.0f ? -30.0f : x;
  const float shifted = t * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 0.001395049155689776f;
  p = p * r + 0.008368889801204205f;
  p = p * r + 0.04166620597242309f;
  p = p * r + 0.166665181517601f;
  p = p * r + 0.5f;
  const int32_t k = static_cast<int32_t>(BitsOfFloat(shifted)) - 0x4b400000;
  const float power = FloatOfBits(static_cast<uint32_t>(k + 127) << 23);
  const float y = (p * (r * r) + r) * power + (power - 1.0f);
  return x != x ? x : y;
}

// Natural logarithm: -infinity at 0, NaN below.
AMPD_CPU_INLINE float LogF(float x) {
  constexpr float kInfinity = __builtin_inff();
  const bool tiny = x < 0x1p-126f;
  const float scaled = tiny ? x * 0x1p25f : x;
  // Mantissa in [sqrt(1/2), sqrt(2)).
  const int32_t bits = static_cast<int32_t>(BitsOfFloat(scaled));
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = FloatOfBits(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23));
  const float n = static_cast<float>(exponent) - (tiny ? 25.0f : 0.0f);
  const float f = m - 1.0f;
  const float s = f / (2.0f + f);
  const float u = s * s;
  float p = 0.2358259955063189f;
  p = p * u + 0.28537286345129464f;
  p = p * u + 0.4000033551588126f;
  p = p * u + 0.6666666564414075f;
  // log(1 + f) = f - s (f - u p): the correction is small beside f.
  const float log_m = f - s * (f - u * p);
  const float y = n * 0.693359375f + (log_m - n * 2.12194440e-4f);
  const float positive = x == kInfinity ? x : y;
  const float at_zero = x == 0 ? -kInfinity : positive;
  const float below = x < 0 ? __builtin_nanf("") : at_zero;
  return x != x ? x : below;
}

// log(1 + z) for z in [0, 1] or NaN.
AMPD_CPU_INLINE float Log1pF(float z) {
  const float s = z / (2.0f + z);
  const float u = s * s;
  float p = 0.2179239449180971f;
  p = p * u + 0.17147850622150415f;
  p = p * u + 0.2230150019911755f;
  p = p * u + 0.28568396089228654f;
  p = p * u + 0.40000053000344843f;
  p = p * u + 0.6666666635913007f;
  return z - s * (z - u * p);
}

// e^(-x^2 / 2) / sqrt(2 pi).
AMPD_CPU_INLINE float NormalPdfF(float x) {
  // The rounding error of the square (Dekker 1971), which the exponential would magnify.
  const float split = x * 4097.0f;
  const float high = split - (split - x);
  const float low = x - high;
  const float square = x * x;
  const float error = ((high * high - square) + 2.0f * high * low) + low * low;
  const float a = std::fabs(x);
  const float factor = 1.0f - 0.5f * error;
  return 0.398942280f * ExpF(-0.5f * square) * (a < 15.0f ? factor : 1.0f);
}

// Standard normal distribution function at -|x|: cdf(-b) = pdf-like tail e^(-b^2/2) times a polynomial of 1/(1 + 0.3
// b).
AMPD_CPU_INLINE float NormalTailF(float x) {
  const float b = std::fabs(x);
  const float t = 1.0f / (1.0f + 0.3f * b);
  float p = -0.020623464698481832f;
  p = p * t + 0.11243558944786813f;
  p = p * t - 0.22821354418630435f;
  p = p * t + 0.19178446071140726f;
  p = p * t - 0.07942343022714876f;
  p = p * t + 0.0961568003671057f;
  p = p * t + 0.07838966041047704f;
  p = p * t + 0.11023542250306531f;
  p = p * t + 0.11957181414044851f;
  p = p * t + 0.11968668980176683f;
  return p * t * (NormalPdfF(x) * 2.50662827f);
}

AMPD_CPU_INLINE float NormalCdfF(float x) {
  const float tail = NormalTailF(x);
  return x > 0 ? 1.0f - tail : tail;
}

AMPD_CPU_INLINE float ErfF(float x) {
  const float u = x * x;
  float p = 8.857768775709374e-05f;
  p = p * u - 0.0008248977193597573f;
  p = p * u + 0.005209682053376609f;
  p = p * u - 0.026862626740111875f;
  p = p * u + 0.11283749616972805f;
  p = p * u - 0.3761263702722931f;
  p = p * u + 0.12837916695878750f;
  // The leading coefficient is 1 + 0.128..., added exactly.
  const float near = x + x * p;
  const float far = std::copysign(1.0f - 2.0f * NormalTailF(1.41421356f * x), x);
  const float y = std::fabs(x) < 0.85f ? near : far;
  return x != x ? x : y;
}

// The functions that ops::elementwise takes from a backend.
struct VectorMath {
  static AMPD_CPU_INLINE float Exp(float x) { return ExpF(x); }
  static AMPD_CPU_INLINE float Expm1(float x) { return Expm1F(x); }
  static AMPD_CPU_INLINE float Log(float x) { return LogF(x); }
  static AMPD_CPU_INLINE float Log1p(float x) { return Log1pF(x); }
  static AMPD_CPU_INLINE float Sigmoid(float x) { return SigmoidF(x); }
  static AMPD_CPU_INLINE float Tanh(float x) { return TanhF(x); }
  static AMPD_CPU_INLINE float Erf(float x) { return ErfF(x); }
  static AMPD_CPU_INLINE float NormalCdf(float x) { return NormalCdfF(x); }
  static AMPD_CPU_INLINE float NormalPdf(float x) { return NormalPdfF(x); }
  static AMPD_CPU_INLINE float Sin(float x) { return std::sin(x); }
  static AMPD_CPU_INLINE float Cos(float x) { return std::cos(x); }
  static AMPD_CPU_INLINE float Pow(float x, float y) { return std::pow(x, y); }
  static AMPD_CPU_INLINE float Remainder(float x, float y) { return std::fmod(x, y); }
  static AMPD_CPU_INLINE float Floor(float x) { return std::floor(x); }
  static AMPD_CPU_INLINE float Ceil(float x) { return std::ceil(x); }
  static AMPD_CPU_INLINE float RoundEven(float x) { return std::nearbyint(x); }
  static AMPD_CPU_INLINE float Sqrt(float x) { return std::sqrt(x); }
};

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_VECTOR_MATH_H_
