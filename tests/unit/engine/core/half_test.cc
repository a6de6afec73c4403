// Conversions against their definition: round to nearest, ties to even, done in exact double arithmetic.
#include "engine/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace ampd {
namespace {

// Value of a small binary float from its bits, straight from IEEE 754's definition.
double Decode(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const double fraction = std::ldexp(static_cast<double>(bits & ((1u << fraction_bits) - 1)), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

// `x` rounded to `fraction_bits` + 1 significant bits, ties to even, with gradual underflow at `min_exponent`.
double Round(double x, int fraction_bits, int min_exponent, double max_finite) {
  if (x == 0 || std::isnan(x) || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double ulp = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(x / ulp) * ulp;  // nearbyint: ties to even
  return std::abs(rounded) > max_finite ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

void ExpectSame(double expected, double actual, uint32_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << std::hex << bits;
  } else {
    EXPECT_EQ(expected, actual) << std::hex << bits;
    EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << std::hex << bits;
  }
}

TEST(Half, EveryHalfWidensExactly) {
  for (uint32_t b = 0; b < 65536; ++b) {
    ExpectSame(Decode(b, 5, 10), ToFloat(Half{static_cast<uint16_t>(b)}), b);
    ExpectSame(Decode(b, 8, 7), ToFloat(BFloat16{static_cast<uint16_t>(b)}), b);
  }
}

TEST(Half, FloatsRoundToNearestEven) {
  // Steps through the floats with a stride that is coprime to 2^32, so every exponent and many ties are met.
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 104729) {
    const uint32_t bits = static_cast<uint32_t>(u);
    const float f = FloatFromBits(bits);
    ExpectSame(Round(f, 10, -14, 65504.0), ToFloat(ToHalf(f)), bits);
    ExpectSame(Round(f, 7, -126, 3.3895313892515355e38), ToFloat(ToBFloat16(f)), bits);
  }
}

TEST(Half, TiesBetweenNeighboursGoToEven) {
  for (uint32_t b = 0; b < 0x7bff; ++b) {
    const double low = Decode(b, 5, 10), high = Decode(b + 1, 5, 10);
    const uint32_t even = b % 2 == 0 ? b : b + 1;
    EXPECT_EQ(ToHalf(static_cast<float>((low + high) / 2)).bits, even);
  }
  EXPECT_EQ(ToHalf(65519.996f).bits, 0x7bff);
  EXPECT_EQ(ToHalf(65520.0f).bits, 0x7c00);
}

}  // namespace
}  // namespace ampd
