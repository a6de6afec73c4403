#include "engine/train/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "engine/core/rng.h"
#include "engine/train/label_errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The probability of every label sequence: the sum over all paths that spell it.
std::map<std::vector<int32_t>, double> AllSpellings(const std::vector<float>& logits, int32_t classes, int32_t blank) {
  const int32_t steps = static_cast<int32_t>(logits.size()) / classes;
  std::map<std::vector<int32_t>, double> sums;
  std::vector<int32_t> path(static_cast<size_t>(steps), 0);
  while (true) {
    double p = 1;
    std::vector<int32_t> spelled;
    for (int32_t t = 0; t < steps; ++t) {
      double norm = 0;
      for (int32_t c = 0; c < classes; ++c) norm += std::exp(static_cast<double>(logits[t * classes + c]));
      p *= std::exp(static_cast<double>(logits[t * classes + path[t]])) / norm;
      if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) spelled.push_back(path[t]);
    }
    sums[spelled] += p;
    int32_t t = 0;
    while (t < steps && ++path[t] == classes) path[t++] = 0;
    if (t == steps) return sums;
  }
}

std::vector<float> Noise(uint64_t seed, int64_t count, float scale) {
  RngSequence rng(seed, "beam");
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = scale * (static_cast<float>(rng.NextUniform()) - 0.5f);
  return values;
}

TEST(BeamSearch, FindsWhatEnumeratingAllPathsFinds) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int32_t classes = 2 + static_cast<int32_t>(seed % 3), steps = 1 + static_cast<int32_t>(seed % 6);
    const int32_t blank = static_cast<int32_t>(seed) % classes;
    const std::vector<float> logits = Noise(seed, steps * classes, 6);
    const auto all = AllSpellings(logits, classes, blank);
    const auto best =
        std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const BeamResult found = BeamSearch(logits, classes, blank, 1 << 14);
    EXPECT_EQ(found.labels, best->first) << seed;
    EXPECT_NEAR(found.log_probability, std::log(best->second), 1e-12) << seed;
  }
}

TEST(BeamSearch, ANarrowBeamKeepsNoMoreThanThereIs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<float> logits = Noise(100 + seed, 6 * 4, 4);
    const auto all = AllSpellings(logits, 4, 0);
    for (int64_t width : {1, 2, 3, 8}) {
      const BeamResult found = BeamSearch(logits, 4, 0, width);
      ASSERT_TRUE(all.count(found.labels));
      EXPECT_LE(found.log_probability, std::log(all.at(found.labels)) + 1e-12);
    }
  }
}

TEST(BeamSearch, SumsPathsWhereTheBestPathIsBlank) {
  // Graves 2012, figure 7.4: "-" "-" is the best path with 0.36, yet "a" has 0.64.
  const std::vector<float> logits = {std::log(0.6f), std::log(0.4f), std::log(0.6f), std::log(0.4f)};
  EXPECT_THAT(BestPathLabels(logits, 2, 0), IsEmpty());
  const BeamResult found = BeamSearch(logits, 2, 0, 4);
  EXPECT_THAT(found.labels, ElementsAre(1));
  EXPECT_NEAR(found.log_probability, std::log(0.64), 1e-6);
}

TEST(BeamSearch, RepeatedLabelsNeedABlankBetween) {
  const std::vector<float> straight = {0, 9, 0, 9}, apart = {0, 9, 9, 0, 0, 9};
  EXPECT_THAT(BeamSearch(straight, 2, 0, 8).labels, ElementsAre(1));
  EXPECT_THAT(BeamSearch(apart, 2, 0, 8).labels, ElementsAre(1, 1));
}

TEST(BeamSearch, TakesWhatIsNotFinite) {
  EXPECT_THAT(BeamSearch({}, 3, 0, 4).labels, IsEmpty());
  const std::vector<float> nothing = {kNan, -kInf, kNan, 0, 5, 0};
  EXPECT_THAT(BeamSearch(nothing, 3, 0, 4).labels, ElementsAre(1));
  const std::vector<float> certain = {0, kInf, 0};
  EXPECT_THAT(BeamSearch(certain, 3, 0, 4).labels, ElementsAre(1));
  const std::vector<float> impossible = {-kInf, 0, -kInf, 0, -kInf, -kInf};
  const BeamResult found = BeamSearch(impossible, 3, 0, 4);
  EXPECT_THAT(found.labels, ElementsAre(1));
  EXPECT_NEAR(found.log_probability, 0, 1e-12);
}

TEST(SpellingErrors, CountsLabelsAndWholeSamples) {
  SpellingErrors errors;
  EXPECT_EQ(errors.ExactMatch(), 0);
  errors.Add({4}, {});
  EXPECT_TRUE(std::isnan(errors.LabelErrorRate())) << "there was no label to miss";
  errors.Add({1, 2, 3}, {1, 2, 3});
  errors.Add({1, 3}, {1, 2, 3});
  errors.Add({}, {});
  EXPECT_EQ(errors.LabelErrorRate(), 2.0 / 6);
  EXPECT_EQ(errors.ExactMatch(), 0.5);
}

}  // namespace
}  // namespace ampd::train
