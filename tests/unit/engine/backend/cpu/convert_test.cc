// Bulk conversions against the scalar ones of engine/core/half.h and float8.h, and against rounding in float64.
#include "engine/backend/cpu/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/ref_tensor.h"

namespace ampd::cpu {
namespace {

constexpr int64_t kAll = 1 << 16;

// Every upper half of a float's bits with lower halves at and around every rounding boundary.
std::vector<float> FloatSweep(uint32_t upper_begin, uint32_t upper_end) {
  std::vector<float> floats;
  for (uint32_t upper = upper_begin; upper < upper_end; ++upper) {
    for (uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu, 0x2000u, 0x3000u, 0x7fffu, 0x8000u,
                           0x8001u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      floats.push_back(FloatFromBits(upper << 16 | lower));
    }
  }
  return floats;
}

TEST(Convert, EveryHalfToFloat) {
  std::vector<Half> halves(kAll);
  for (int64_t i = 0; i < kAll; ++i) halves[i].bits = static_cast<uint16_t>(i);
  std::vector<float> bulk(kAll);
  HalfToFloat(halves.data(), kAll, bulk.data());
  for (int64_t i = 0; i < kAll; ++i) {
    ASSERT_EQ(FloatBits(bulk[i]), FloatBits(ToFloat(halves[i]))) << "half " << i;
  }
}

TEST(Convert, EveryBFloat16ToFloat) {
  std::vector<BFloat16> values(kAll);
  for (int64_t i = 0; i < kAll; ++i) values[i].bits = static_cast<uint16_t>(i);
  std::vector<float> bulk(kAll);
  BFloat16ToFloat(values.data(), kAll, bulk.data());
  for (int64_t i = 0; i < kAll; ++i) {
    ASSERT_EQ(FloatBits(bulk[i]), FloatBits(ToFloat(values[i]))) << "bfloat16 " << i;
  }
}

TEST(Convert, FloatSweepToHalves) {
  const std::vector<float> floats = FloatSweep(0, 1 << 16);
  const int64_t n = static_cast<int64_t>(floats.size());
  std::vector<Half> halves(n);
  std::vector<BFloat16> bfloats(n);
  FloatToHalf(floats.data(), n, halves.data());
  FloatToBFloat16(floats.data(), n, bfloats.data());
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(halves[i].bits, ToHalf(floats[i]).bits) << std::hex << FloatBits(floats[i]);
    ASSERT_EQ(bfloats[i].bits, ToBFloat16(floats[i]).bits) << std::hex << FloatBits(floats[i]);
  }
}

template <typename Float8>
void ExpectWidensEveryCode() {
  std::vector<Float8> codes(256);
  for (int i = 0; i < 256; ++i) codes[i].bits = static_cast<uint8_t>(i);
  std::vector<float> bulk(256);
  Float8ToFloat(codes.data(), 256, bulk.data());
  for (int i = 0; i < 256; ++i) ASSERT_EQ(FloatBits(bulk[i]), FloatBits(ToFloat(codes[i]))) << "code " << i;
}

TEST(Convert, EveryFloat8ToFloat) {
  ExpectWidensEveryCode<Float8E4M3>();
  ExpectWidensEveryCode<Float8E5M2>();
}

TEST(Convert, FloatSweepToFloat8) {
  const std::vector<float> floats = FloatSweep(0, 1 << 16);
  const int64_t n = static_cast<int64_t>(floats.size());
  std::vector<Float8E4M3> a(n), saturated_a(n);
  std::vector<Float8E5M2> b(n), saturated_b(n);
  FloatToFloat8(floats.data(), n, a.data());
  FloatToFloat8(floats.data(), n, b.data());
  FloatToFloat8Saturating(floats.data(), n, saturated_a.data());
  FloatToFloat8Saturating(floats.data(), n, saturated_b.data());
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(a[i].bits, ToFloat8E4M3(floats[i]).bits) << std::hex << FloatBits(floats[i]);
    ASSERT_EQ(b[i].bits, ToFloat8E5M2(floats[i]).bits) << std::hex << FloatBits(floats[i]);
    ASSERT_EQ(saturated_a[i].bits, ToFloat8E4M3Saturating(floats[i]).bits) << std::hex << FloatBits(floats[i]);
    ASSERT_EQ(saturated_b[i].bits, ToFloat8E5M2Saturating(floats[i]).bits) << std::hex << FloatBits(floats[i]);
  }
}

TEST(Convert, Tf32Sweep) {
  const std::vector<float> floats = FloatSweep(0, 1 << 16);
  std::vector<float> rounded(floats.size());
  RoundToTf32(floats.data(), static_cast<int64_t>(floats.size()), rounded.data());
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(FloatBits(rounded[i]), FloatBits(ampd::RoundToTf32(floats[i])));
  }
}

// Every pair of float dtypes, through the codes of the test support's own encoder.
TEST(Convert, BetweenAnyTwoDTypes) {
  constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  ampd::testing::Random random(5);
  for (DType from : kFloats) {
    const Tensor x = ToTensor(RandomTensor(&random, {1500}, from, -600, 600), from);
    for (DType to : kFloats) {
      Tensor y(to, {1500});
      ParallelConvert(2, from, x.view().data, 1500, to, y.view().data);
      const Tensor expected = ToTensor(ampd::testing::FromTensor(x.view()), to);
      EXPECT_EQ(std::memcmp(y.view().data, expected.view().data, y.view().bytes()), 0)
          << DTypeName(from) << " to " << DTypeName(to);
    }
  }
}

// The scalar conversions themselves against rounding in float64.
TEST(Convert, RoundsToNearestEven) {
  for (float f : FloatSweep(0x3300, 0x4800)) {
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
      float rounded = 0;
      RoundThrough(dtype, &f, 1, &rounded);
      const double expected = ampd::testing::RoundToDType(f, dtype);
      if (std::isnan(expected) && std::isnan(rounded)) continue;
      ASSERT_EQ(static_cast<double>(rounded), expected) << DTypeName(dtype) << " of " << f;
    }
  }
}

TEST(Convert, OverflowsAndKeepsNaN) {
  const float values[] = {65519.0f, 65520.0f, -65520.0f, INFINITY, -INFINITY, NAN, 3.4e38f, 65504.0f, 0x1p-25f};
  constexpr int64_t kCount = 9;
  float half[kCount], bfloat[kCount];
  RoundThrough(DType::kF16, values, kCount, half);
  RoundThrough(DType::kBF16, values, kCount, bfloat);
  EXPECT_EQ(half[0], 65504.0f);
  EXPECT_EQ(half[1], INFINITY);
  EXPECT_EQ(half[2], -INFINITY);
  EXPECT_EQ(half[3], INFINITY);
  EXPECT_TRUE(std::isnan(half[5]));
  EXPECT_EQ(half[6], INFINITY);
  EXPECT_EQ(half[8], 0.0f);
  EXPECT_EQ(bfloat[4], -INFINITY);
  EXPECT_TRUE(std::isnan(bfloat[5]));
  EXPECT_EQ(bfloat[6], INFINITY);
}

// Lengths that leave every remainder of the vector width, split over threads.
TEST(Convert, AnyLengthOnAnyThreadCount) {
  ampd::testing::Random random(3);
  for (int64_t n : {0, 1, 7, 8, 9, 15, 17, 31, 33, 1023, 1025, 100001}) {
    std::vector<float> floats(n);
    for (float& f : floats) f = static_cast<float>(random.Uniform(-100, 100));
    std::vector<Half> one(n + 1, Half{0x1234}), two(n + 1, Half{0x1234});
    ParallelFromF32(1, floats.data(), n, DType::kF16, one.data());
    ParallelFromF32(2, floats.data(), n, DType::kF16, two.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(one[i].bits, ToHalf(floats[i]).bits);
      ASSERT_EQ(two[i].bits, one[i].bits);
    }
    EXPECT_EQ(one[n].bits, 0x1234);
  }
}

}  // namespace
}  // namespace ampd::cpu
