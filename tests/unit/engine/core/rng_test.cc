#include "engine/core/rng.h"

#include <gtest/gtest.h>

#include <vector>

namespace ampd {
namespace {

// Known answers published with the Random123 library (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngSequence, DrawsAreTheWordsOfTheCounter) {
  RngSequence rng(42, "conv1.weight", 7, 3);
  for (uint64_t e = 0; e < 100; ++e) {
    EXPECT_EQ(rng.NextWord(), Philox4x32(RngCounter(7, 3, e, RngStream("conv1.weight")), 42)[e % 4]);
  }
}

TEST(RngSequence, BelowCoversItsRangeEvenly) {
  RngSequence rng(1, "below");
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[rng.NextBelow(7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard deviations are 463
  EXPECT_EQ(rng.NextBelow(1), 0u);
}

TEST(UniformFloat, StaysBelowOne) {
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_EQ(UniformFloat(0xffffffff), 1.0f - 0x1p-24f);
}

}  // namespace
}  // namespace ampd
