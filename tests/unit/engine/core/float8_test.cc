// The 8-bit formats against their definition, for every code and around every rounding boundary, and TF32 rounding
// against rounding in float64.
#include "engine/core/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ampd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// OCP OFP8 1.0, table 1: value of a code from its fields.
double DecodeE4M3(int code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return kNaN;
  return exponent == 0 ? sign * std::ldexp(fraction / 8.0, -6) : sign * std::ldexp(1 + fraction / 8.0, exponent - 7);
}

double DecodeE5M2(int code) {
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = (code >> 2) & 31, fraction = code & 3;
  if (exponent == 31) return fraction == 0 ? sign * kInfinity : kNaN;
  return exponent == 0 ? sign * std::ldexp(fraction / 4.0, -14) : sign * std::ldexp(1 + fraction / 4.0, exponent - 15);
}

struct Format {
  double (*decode)(int);
  int largest;      // code of the largest finite value
  double past_it;   // the value that would follow it
  double overflow;  // what the conversion that does not saturate makes of larger ones
  uint8_t (*convert)(float);
  uint8_t (*saturate)(float);
};

const Format kE4M3 = {DecodeE4M3,
                      0x7e,
                      480,
                      kNaN,
                      [](float f) { return ToFloat8E4M3(f).bits; },
                      [](float f) { return ToFloat8E4M3Saturating(f).bits; }};
const Format kE5M2 = {DecodeE5M2,
                      0x7b,
                      65536,
                      kInfinity,
                      [](float f) { return ToFloat8E5M2(f).bits; },
                      [](float f) { return ToFloat8E5M2Saturating(f).bits; }};

// The code nearest to `x` >= 0 by searching all of them; ties to the even code; `largest` + 1 stands for overflow.
int Nearest(const Format& format, double x) {
  if (x >= format.past_it) return format.largest + 1;
  int best = 0;
  double distance = kInfinity;
  for (int code = 0; code <= format.largest + 1; ++code) {
    const double value = code <= format.largest ? format.decode(code) : format.past_it;
    const double d = std::fabs(x - value);
    if (d < distance || (d == distance && code % 2 == 0)) best = code, distance = d;
  }
  return best;
}

void ExpectValue(double expected, double actual, double of) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << of;
  } else {
    EXPECT_EQ(expected, actual) << of;
    EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << of;
  }
}

void ExpectConverts(const Format& format, float x) {
  const int code = Nearest(format, x);
  const bool over = code > format.largest;
  for (float sign : {1.0f, -1.0f}) {
    ExpectValue(sign * (over ? format.overflow : format.decode(code)), format.decode(format.convert(sign * x)), x);
    ExpectValue(sign * format.decode(over ? format.largest : code), format.decode(format.saturate(sign * x)), x);
  }
}

class Float8 : public ::testing::TestWithParam<const Format*> {};

TEST_P(Float8, EveryCodeSurvivesTheRoundTrip) {
  const Format& format = *GetParam();
  for (int code = 0; code < 256; ++code) {
    const double value = format.decode(code);
    if (std::isnan(value)) {
      EXPECT_EQ(format.convert(static_cast<float>(value)) & 0x7f, 0x7f);
    } else {
      EXPECT_EQ(format.convert(static_cast<float>(value)), code);
    }
  }
}

TEST_P(Float8, EveryBoundaryRoundsToNearestEven) {
  const Format& format = *GetParam();
  for (int code = 0; code <= format.largest; ++code) {
    const double high = code < format.largest ? format.decode(code + 1) : format.past_it;
    const auto middle = static_cast<float>((format.decode(code) + high) / 2);
    const auto value = static_cast<float>(format.decode(code));
    for (float x : {value, middle}) {
      ExpectConverts(format, x);
      ExpectConverts(format, std::nextafter(x, 0.0f));
      ExpectConverts(format, std::nextafter(x, INFINITY));
    }
  }
}

TEST_P(Float8, FloatsOfEveryExponent) {
  const Format& format = *GetParam();
  for (uint32_t upper = 0; upper < 0x7f80; upper += 3) ExpectConverts(format, FloatFromBits(upper << 16 | 0x1235u));
}

TEST_P(Float8, NonFinite) {
  const Format& format = *GetParam();
  for (float sign : {1.0f, -1.0f}) {
    ExpectValue(sign * format.overflow, format.decode(format.convert(sign * INFINITY)), INFINITY);
    ExpectValue(sign * format.decode(format.largest), format.decode(format.saturate(sign * INFINITY)), INFINITY);
  }
  EXPECT_EQ(format.convert(NAN), 0x7f);
  EXPECT_EQ(format.saturate(-NAN), 0xff);
  EXPECT_EQ(format.convert(FloatFromBits(0x7f800001u)), 0x7f);
}

INSTANTIATE_TEST_SUITE_P(Formats, Float8, ::testing::Values(&kE4M3, &kE5M2),
                         [](const auto& info) { return info.param == &kE4M3 ? "E4M3" : "E5M2"; });

TEST(Float8, EveryCodeWidensExactly) {
  for (int code = 0; code < 256; ++code) {
    ExpectValue(DecodeE4M3(code), ToFloat(Float8E4M3{static_cast<uint8_t>(code)}), code);
    ExpectValue(DecodeE5M2(code), ToFloat(Float8E5M2{static_cast<uint8_t>(code)}), code);
  }
}

double NearestTf32(float x) {
  if (x == 0) return x;
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 10);
  const double rounded = std::nearbyint(x / ulp) * ulp;
  return std::fabs(rounded) < 0x1p128 ? rounded : std::copysign(kInfinity, x);
}

TEST(Tf32, RoundsToNearestEven) {
  for (uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      for (uint32_t sign : {0u, 0x80000000u}) {
        const float x = FloatFromBits(sign | upper << 16 | lower);
        ExpectValue(NearestTf32(x), RoundToTf32(x), x);
      }
    }
  }
  EXPECT_EQ(RoundToTf32(-INFINITY), -INFINITY);
  EXPECT_TRUE(std::isnan(RoundToTf32(FloatFromBits(0x7f800001u))));
}

}  // namespace
}  // namespace ampd
