#include "engine/train/text_sampling.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SampleIndex, DrawsByTheSoftmaxOfTheDividedLogits) {
  const std::vector<float> logits = {1.0f, -kInfinity, 2.5f, 0.0f};
  for (double temperature : {0.5, 1.0, 3.0}) {
    double sum = 0;
    for (float logit : logits) sum += std::exp(static_cast<double>(logit) / temperature);
    RngSequence random(7, "test");
    constexpr int kDraws = 100000;
    std::map<int, int> counts;
    for (int i = 0; i < kDraws; ++i) ++counts[SampleIndex(logits, temperature, 0, random.NextUniform())];
    EXPECT_EQ(counts.count(1), 0u);
    for (int i : {0, 2, 3}) {
      const double share = std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) / temperature) / sum;
      // Five standard errors.
      EXPECT_NEAR(counts[i] / static_cast<double>(kDraws), share, 5 * std::sqrt(share * (1 - share) / kDraws)) << i;
    }
  }
}

TEST(SampleIndex, GoesThroughTheIndicesInOrder) {
  const std::vector<float> even = {0, 0, 0, 0};
  EXPECT_EQ(SampleIndex(even, 1, 0, 0.0f), 0);
  EXPECT_EQ(SampleIndex(even, 1, 0, 0.2499f), 0);
  EXPECT_EQ(SampleIndex(even, 1, 0, 0.25f), 1);
  EXPECT_EQ(SampleIndex(even, 1, 0, 0x1.fffffep-1f), 3);
}

TEST(SampleIndex, TopKLeavesTheLargest) {
  const std::vector<float> logits = {1, 3, 2, 3, 0};
  for (float uniform : {0.0f, 0.3f, 0.6f, 0.99f}) {
    EXPECT_EQ(SampleIndex(logits, 1, 1, uniform), 1);
    const int two = SampleIndex(logits, 1, 2, uniform);
    EXPECT_EQ(two, uniform < 0.5f ? 1 : 3);
    EXPECT_NE(SampleIndex(logits, 1, 4, uniform), 4);
    EXPECT_EQ(SampleIndex(logits, 1, 100, uniform), SampleIndex(logits, 1, 0, uniform));
  }
}

TEST(SampleIndex, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(SampleIndex({1, 3, 3, 2}, 0, 0, 0.99f), 1);
  // So does one that makes every other share zero.
  EXPECT_EQ(SampleIndex({1, 3, 2}, 1e-300, 0, 0.99f), 1);
}

TEST(SampleIndex, ExtremeLogitsDoNotOverflow) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(SampleIndex({-kLargest, kLargest}, 1, 0, 0.5f), 1);
  EXPECT_EQ(SampleIndex({-kLargest, -kInfinity}, 0.1, 0, 0.999f), 0);
}

TEST(SampleIndex, NoNumbersGiveNoIndex) {
  EXPECT_EQ(SampleIndex({1, NAN, 2}, 1, 0, 0.5f), -1);
  EXPECT_EQ(SampleIndex({1, kInfinity}, 1, 0, 0.5f), -1);
  EXPECT_EQ(SampleIndex({-kInfinity, -kInfinity}, 1, 0, 0.5f), -1);
  EXPECT_EQ(SampleIndex({}, 1, 0, 0.5f), -1);
}

}  // namespace
}  // namespace ampd::train
