#include "engine/train/detection_score.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace ampd::train {
namespace {

// A grid of two cells side by side, one square prior of half the image's side in each.
v1::MultiboxLoss TwoPriors() {
  v1::MultiboxLoss loss;
  v1::PriorMap* map = loss.add_maps();
  map->set_height(1);
  map->set_width(2);
  map->set_scale(0.5);
  map->add_ratios(1);
  loss.set_center_variance(0.1);
  loss.set_size_variance(0.2);
  return loss;
}

// Offsets of 0, and logits of the background and two classes.
std::vector<float> Predictions(std::vector<float> left, std::vector<float> right) {
  std::vector<float> all = {0, 0, 0, 0};
  all.insert(all.end(), left.begin(), left.end());
  all.insert(all.end(), 4, 0.0f);
  all.insert(all.end(), right.begin(), right.end());
  return all;
}

// The priors' own boxes.
const std::vector<float> kLeftOfClass0 = {0, 0, 0.25f, 0.5f, 0.75f};
const std::vector<float> kRightOfClass1 = {1, 0.5f, 0.25f, 1, 0.75f};

std::vector<float> Both(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(DetectionScoreTest, IsOneWhereAllIsFound) {
  DetectionScore score(TwoPriors());
  score.Add(Predictions({0, 9, 0}, {0, 0, 9}).data(), 7, Both(kLeftOfClass0, kRightOfClass1));
  EXPECT_DOUBLE_EQ(score.MeanAveragePrecision(), 1);
}

TEST(DetectionScoreTest, CountsMissesAndFalseAlarmsByClass) {
  DetectionScore score(TwoPriors());
  // Class 0: found in one image of two. Class 1: the more probable of two detections is wrong.
  score.Add(Predictions({0, 5, -9}, {0, -9, 5}).data(), 7, kLeftOfClass0);
  score.Add(Predictions({0, -9, -9}, {0, -9, 4}).data(), 7, Both(kLeftOfClass0, kRightOfClass1));
  EXPECT_DOUBLE_EQ(score.MeanAveragePrecision(), (0.5 + 0.5) / 2);
}

TEST(DetectionScoreTest, DecodesOffsets) {
  std::vector<float> predictions = Predictions({0, 9, 0}, {9, 0, 0});
  // Center 0.25 + 0.1 * 0.5 * 2, sides 0.5 * exp(0.2 * 2): 0.35 and 0.746.
  for (int i = 0; i < 4; ++i) predictions[i] = 2;
  const float half = static_cast<float>(0.25 * std::exp(0.4));
  const std::vector<float> box = {0, 0.35f - half, 0.6f - half, 0.35f + half, 0.6f + half};
  DetectionScore right(TwoPriors()), wrong(TwoPriors());
  right.Add(predictions.data(), 7, box);
  EXPECT_DOUBLE_EQ(right.MeanAveragePrecision(), 1);
  wrong.Add(predictions.data(), 7, kLeftOfClass0);
  EXPECT_DOUBLE_EQ(wrong.MeanAveragePrecision(), 0);
}

// The second detection of the same place is no second box.
TEST(DetectionScoreTest, SuppressesRepetitions) {
  std::vector<float> predictions = Predictions({0, 9, 0}, {0, 8, 0});
  predictions[7] = -10;  // the right prior's center, moved by 0.1 * 0.5 * 10 to the left one's
  DetectionScore score(TwoPriors());
  score.Add(predictions.data(), 7, kLeftOfClass0);
  score.Add(Predictions({0, 5, 0}, {9, 0, 0}).data(), 7, kLeftOfClass0);
  EXPECT_DOUBLE_EQ(score.MeanAveragePrecision(), 1);
}

TEST(DetectionScoreTest, LivesWithWhatIsNoBox) {
  DetectionScore score(TwoPriors());
  EXPECT_EQ(score.MeanAveragePrecision(), 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  score.Add(Predictions({nan, 9, 0}, {0, 0, 9}).data(), 7, {{-1, 0, 0, 1, 1, nan, 0, 0, 1, 1, 3e9f, 0, 0, 1, 1}});
  EXPECT_EQ(score.MeanAveragePrecision(), 0);
}

}  // namespace
}  // namespace ampd::train
