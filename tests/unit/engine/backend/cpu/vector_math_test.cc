// The vector functions against the C library's in double: the bounds that vector_math.h promises.
#include "engine/backend/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ampd::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kSmallestNormal = 0x1p-126;

// Distance in units in the last place of an f32 of the exact result's magnitude.
double Ulps(float actual, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 23);
}

// Largest error over every 101st float of [low, high] whose result is at least `smallest`.
double LargestError(float (*function)(float), double (*exact)(double), float low, float high,
                    double smallest = kSmallestNormal) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 101) {
    const float x = FloatOfBits(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double expected = exact(static_cast<double>(x));
    if (std::fabs(expected) >= smallest) worst = std::max(worst, Ulps(function(x), expected));
  }
  return worst;
}

float Exp(float x) { return ExpF(x); }
float Sigmoid(float x) { return SigmoidF(x); }
float Tanh(float x) { return TanhF(x); }
double ExactSigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(VectorMath, ExpIsWithinItsBound) {
  EXPECT_LT(LargestError(Exp, std::exp, -87.3f, 88.72f), 1.5);
  // Denormal results.
  for (float x = -104; x < -87.3f; x += 0.001f) {
    EXPECT_NEAR(static_cast<double>(ExpF(x)), std::exp(static_cast<double>(x)), 0x1.8p-149) << x;
  }
}

TEST(VectorMath, SigmoidIsWithinItsBound) { EXPECT_LT(LargestError(Sigmoid, ExactSigmoid, -87, 100), 3); }

TEST(VectorMath, TanhIsWithinItsBound) { EXPECT_LT(LargestError(Tanh, std::tanh, -100, 100, 1e-37), 2.5); }

float Expm1(float x) { return Expm1F(x); }
float Log(float x) { return LogF(x); }
float Log1p(float x) { return Log1pF(x); }
float Erf(float x) { return ErfF(x); }

TEST(VectorMath, Expm1IsWithinItsBound) { EXPECT_LT(LargestError(Expm1, std::expm1, -1000, 0), 2); }

TEST(VectorMath, LogIsWithinItsBound) {
  EXPECT_LT(LargestError(Log, std::log, 0x1p-149f, std::numeric_limits<float>::max()), 2);
}

TEST(VectorMath, Log1pIsWithinItsBound) { EXPECT_LT(LargestError(Log1p, std::log1p, 0, 1), 2.5); }

TEST(VectorMath, ErfIsWithinItsBound) { EXPECT_LT(LargestError(Erf, std::erf, -20, 20), 2.5); }

TEST(VectorMath, NormalDistributionIsWithinItsBounds) {
  double worst_pdf = 0, worst_cdf = 0;
  for (float x = -13; x < 13; x += 0.00037f) {
    const double z = static_cast<double>(x);
    const double pdf = std::exp(-z * z / 2) * 0.39894228040143267794;
    const double cdf = 0.5 * std::erfc(-z / std::sqrt(2.0));
    worst_pdf = std::max(worst_pdf, Ulps(NormalPdfF(x), pdf));
    worst_cdf = std::max(worst_cdf, Ulps(NormalCdfF(x), cdf));
  }
  EXPECT_LT(worst_pdf, 4);
  EXPECT_LT(worst_cdf, 6);
}

TEST(VectorMath, SpecialValuesOfTheRest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Expm1F(-kInf), -1.0f);
  EXPECT_EQ(Expm1F(0.0f), 0.0f);
  EXPECT_EQ(LogF(0.0f), -kInf);
  EXPECT_EQ(LogF(kInf), kInf);
  EXPECT_EQ(LogF(1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(LogF(-1.0f)));
  EXPECT_EQ(ErfF(kInf), 1.0f);
  EXPECT_EQ(ErfF(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(ErfF(-0.0f)));
  EXPECT_FLOAT_EQ(NormalCdfF(0.0f), 0.5f);
  EXPECT_EQ(NormalCdfF(-kInf), 0.0f);
  EXPECT_EQ(NormalCdfF(kInf), 1.0f);
  EXPECT_EQ(NormalPdfF(kInf), 0.0f);
  EXPECT_EQ(NormalPdfF(1e30f), 0.0f);
  for (float (*function)(float) : {Expm1, Log, Log1p, Erf}) EXPECT_TRUE(std::isnan(function(nan)));
  EXPECT_TRUE(std::isnan(NormalCdfF(nan)));
}

TEST(VectorMath, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ExpF(0.0f), 1.0f);
  EXPECT_EQ(ExpF(-0.0f), 1.0f);
  EXPECT_EQ(ExpF(kInf), kInf);
  EXPECT_EQ(ExpF(89.0f), kInf);
  EXPECT_EQ(ExpF(-kInf), 0.0f);
  EXPECT_EQ(ExpF(-200.0f), 0.0f);
  EXPECT_EQ(SigmoidF(0.0f), 0.5f);
  EXPECT_EQ(SigmoidF(kInf), 1.0f);
  EXPECT_EQ(SigmoidF(-kInf), 0.0f);
  EXPECT_EQ(TanhF(kInf), 1.0f);
  EXPECT_EQ(TanhF(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(TanhF(-0.0f)));
  for (float (*function)(float) : {Exp, Sigmoid, Tanh}) EXPECT_TRUE(std::isnan(function(nan)));
}

}  // namespace
}  // namespace ampd::cpu
