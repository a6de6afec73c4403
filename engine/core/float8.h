// The two 8-bit float types, held as their bits, and TF32, which is stored as f32. Formats: Open Compute Project, 8-bit
// Floating Point Specification 1.0, section 5. Conversions round to nearest, ties to even; subnormals are exact. A NaN
// keeps its sign and becomes 0x7f.
#ifndef AMPD_ENGINE_CORE_FLOAT8_H_
#define AMPD_ENGINE_CORE_FLOAT8_H_

#include <cstdint>

#include "engine/core/half.h"
#include "engine/core/host_device.h"

namespace ampd {

// 1 sign, 4 exponent (bias 7), 3 fraction bits. No infinity; 0x7f and 0xff are NaN; the largest value is 448.
struct Float8E4M3 {
  uint8_t bits;
};

// 1 sign, 5 exponent (bias 15), 2 fraction bits: the upper byte of a binary16. The largest finite value is 57344.
struct Float8E5M2 {
  uint8_t bits;
};

namespace internal {

// `magnitude` is the bits of a float >= 0 within the format's range, `kBias` the format's exponent bias.
template <int kFractionBits, int kBias>
AMPD_HOST_DEVICE inline uint32_t RoundMagnitude(uint32_t magnitude) {
  constexpr int kDropped = 23 - kFractionBits;
  // Adding a power of two whose last place is the format's smallest value leaves the rounded subnormal in the low bits.
  constexpr uint32_t kShift = static_cast<uint32_t>(128 - kBias + kDropped) << 23;
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + FloatFromBits(kShift)) - kShift;
  const uint32_t rounded = magnitude + ((1u << (kDropped - 1)) - 1u) + ((magnitude >> kDropped) & 1u);
  const uint32_t normal = (rounded - (static_cast<uint32_t>(127 - kBias) << 23)) >> kDropped;
  return magnitude < static_cast<uint32_t>(128 - kBias) << 23 ? subnormal : normal;
}

// The code of `f`: `overflow` for magnitudes whose bits reach `limit`, 0x7f for NaN.
template <int kFractionBits, int kBias>
AMPD_HOST_DEVICE inline uint8_t ToFloat8Bits(float f, uint32_t limit, uint32_t overflow) {
  const uint32_t u = FloatBits(f);
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t code = RoundMagnitude<kFractionBits, kBias>(magnitude);
  code = magnitude >= limit ? overflow : code;
  code = magnitude > 0x7f800000u ? 0x7fu : code;
  return static_cast<uint8_t>(((u >> 24) & 0x80u) | code);
}

}  // namespace internal

// Past the largest value (after rounding: above 464) and for infinities: NaN.
AMPD_HOST_DEVICE inline Float8E4M3 ToFloat8E4M3(float f) {
  return {internal::ToFloat8Bits<3, 7>(f, 0x43e80001u, 0x7fu)};
}
// Past the largest value and for infinities: +-448.
AMPD_HOST_DEVICE inline Float8E4M3 ToFloat8E4M3Saturating(float f) {
  return {internal::ToFloat8Bits<3, 7>(f, 0x43e00000u, 0x7eu)};
}
// Past the largest value (from 61440 on) and for infinities: an infinity.
AMPD_HOST_DEVICE inline Float8E5M2 ToFloat8E5M2(float f) {
  return {internal::ToFloat8Bits<2, 15>(f, 0x47700000u, 0x7cu)};
}
// Past the largest value and for infinities: +-57344.
AMPD_HOST_DEVICE inline Float8E5M2 ToFloat8E5M2Saturating(float f) {
  return {internal::ToFloat8Bits<2, 15>(f, 0x47600000u, 0x7bu)};
}

AMPD_HOST_DEVICE inline float ToFloat(Float8E4M3 f) {
  const uint32_t sign = static_cast<uint32_t>(f.bits & 0x80u) << 24;
  const uint32_t magnitude = f.bits & 0x7fu;
  if (magnitude == 0x7fu) return FloatFromBits(sign | 0x7fc00000u);
  if (magnitude < 8u) return FloatFromBits(sign | FloatBits(static_cast<float>(magnitude) * 0x1p-9f));
  return FloatFromBits(sign | ((magnitude << 20) + (120u << 23)));
}

AMPD_HOST_DEVICE inline float ToFloat(Float8E5M2 f) { return ToFloat(Half{static_cast<uint16_t>(f.bits << 8)}); }

// The nearest float with 10 fraction bits, ties to even: what a TF32 matrix unit sees of an operand. Values that round
// past the largest become infinite; a NaN stays as it is.
AMPD_HOST_DEVICE inline float RoundToTf32(float f) {
  const uint32_t u = FloatBits(f);
  const uint32_t rounded = (u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu;
  return FloatFromBits((u & 0x7fffffffu) >= 0x7f800000u ? u : rounded);
}

}  // namespace ampd

#endif  // AMPD_ENGINE_CORE_FLOAT8_H_
