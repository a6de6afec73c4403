// The two 16-bit float types, held as their bits. Conversions round to nearest, ties to even, and overflow to infinity,
// as IEEE 754 and the GPUs do; fp16 subnormals are exact. A NaN becomes quiet and keeps the upper bits of its payload,
// as x86's F16C does.
#ifndef AMPD_ENGINE_CORE_HALF_H_
#define AMPD_ENGINE_CORE_HALF_H_

#include <cstdint>
#include <cstring>

#include "engine/core/host_device.h"

namespace ampd {

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Half {
  uint16_t bits;
};

// bfloat16: the upper half of a binary32.
struct BFloat16 {
  uint16_t bits;
};

AMPD_HOST_DEVICE inline uint32_t FloatBits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof(u));
  return u;
}

AMPD_HOST_DEVICE inline float FloatFromBits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof(f));
  return f;
}

AMPD_HOST_DEVICE inline BFloat16 ToBFloat16(float f) {
  const uint32_t u = FloatBits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x0040u)};  // keep NaN quiet
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

AMPD_HOST_DEVICE inline float ToFloat(BFloat16 b) { return FloatFromBits(static_cast<uint32_t>(b.bits) << 16); }

AMPD_HOST_DEVICE inline Half ToHalf(float f) {
  const uint32_t u = FloatBits(f);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x1ffu))};
  if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the fp16 subnormal, rounded to nearest even, in the low bits of the float.
    const float shifted = FloatFromBits(a) + 0.5f;
    return {static_cast<uint16_t>(sign | (FloatBits(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

AMPD_HOST_DEVICE inline float ToFloat(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t exponent = (h.bits >> 10) & 0x1fu;
  const uint32_t fraction = h.bits & 0x3ffu;
  if (exponent == 0x1fu) return FloatFromBits(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0u));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return FloatFromBits(sign | FloatBits(magnitude));
  }
  return FloatFromBits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_HALF_H_
