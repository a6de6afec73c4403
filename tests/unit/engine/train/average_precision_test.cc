// What counts as a detection, and mean average precision against figures worked out by hand.
#include "engine/train/average_precision.h"

#include <cmath>
#include <limits>

#include "engine/models/prior_boxes.h"
#include "gtest/gtest.h"

namespace ampd::train {
namespace {

// Four priors of a quarter of the image each, two classes.
class DetectionsTest : public ::testing::Test {
 protected:
  DetectionsTest() {
    v1::PriorMap* map = loss_.add_maps();
    map->set_height(2);
    map->set_width(2);
    map->set_scale(0.5);
    map->add_ratios(1);
    loss_.set_center_variance(0.1);
    loss_.set_size_variance(0.2);
    priors_ = models::PriorBoxes(loss_);
    prediction_.assign(4 * kWidth, 0.0f);
    for (int p = 0; p < 4; ++p) Set(p, -1, 0);
  }

  // Gives class `c` (-1: the background) of a prior all but e^-9 of what `share` leaves to the background.
  void Set(int prior, int c, double share) {
    float* logits = &prediction_[prior * kWidth + 4];
    logits[0] = static_cast<float>(std::log(1 - share + 1e-9));
    for (int i = 0; i < 2; ++i) logits[1 + i] = static_cast<float>(std::log(i == c ? share : 1e-9));
  }
  float& Offset(int prior, int i) { return prediction_[prior * kWidth + i]; }
  std::vector<Detection> Found() const { return Detections(loss_, priors_, prediction_, kWidth); }

  static constexpr int kWidth = 7;
  v1::MultiboxLoss loss_;
  Tensor priors_;
  std::vector<float> prediction_;
};

TEST_F(DetectionsTest, AreDecodedAndSortedByProbability) {
  Set(0, 0, 0.6);
  Set(3, 1, 0.9);
  Set(2, 0, 0.009);
  Offset(3, 0) = 1;                                        // a tenth of the prior's width to the right
  Offset(3, 3) = static_cast<float>(std::log(0.5) / 0.2);  // half as high
  Offset(0, 2) = static_cast<float>(std::log(2.0) / 0.2);  // twice as wide
  const std::vector<Detection> found = Found();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].c, 1);
  EXPECT_NEAR(found[0].probability, 0.9, 1e-6);
  EXPECT_NEAR(found[0].box.x0, 0.55, 1e-6);
  EXPECT_NEAR(found[0].box.x1, 1.05, 1e-6);
  EXPECT_NEAR(found[0].box.y0, 0.625, 1e-6);
  EXPECT_NEAR(found[0].box.y1, 0.875, 1e-6);
  EXPECT_EQ(found[1].c, 0);
  EXPECT_NEAR(found[1].box.x0, -0.25, 1e-6);
  EXPECT_NEAR(found[1].box.x1, 0.75, 1e-6);
}

TEST_F(DetectionsTest, HideWhatOverlapsThemInTheirClassAlone) {
  Set(0, 0, 0.8);
  Set(1, 0, 0.7);
  Offset(1, 0) = -10;  // onto the first prior
  EXPECT_EQ(Found().size(), 1u);
  Set(1, 1, 0.7);
  EXPECT_EQ(Found().size(), 2u);
  Set(1, 0, 0.7);
  Offset(1, 0) = -6;  // 0.3 of 0.5 beside it: a share of 0.3 / 0.7 in common, below 0.45
  EXPECT_EQ(Found().size(), 2u);
  Offset(1, 0) = -7;  // 0.35 / 0.65
  EXPECT_EQ(Found().size(), 1u);
}

TEST_F(DetectionsTest, AreNeverNaN) {
  Set(0, 0, 0.8);
  prediction_[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Found().empty());
}

Detection At(int64_t c, double probability, double x0, double width = 0.2) {
  return {c, probability, {x0, 0, x0 + width, 1}};
}

// Boxes of one class from these places on, 0.2 wide.
std::vector<float> Boxes(std::vector<std::pair<int, double>> boxes) {
  std::vector<float> targets;
  for (const auto& [c, x0] : boxes) {
    for (double v : {static_cast<double>(c), x0, 0.0, x0 + 0.2, 1.0}) targets.push_back(static_cast<float>(v));
  }
  return targets;
}

TEST(AveragePrecisionTest, IsTheAreaUnderTheBestPrecisionAtEachRecall) {
  AveragePrecision precision(1);
  // By falling probability over both images: right, wrong, right; one box of four is never found.
  precision.Add({At(0, 0.9, 0.0), At(0, 0.8, 0.7)}, Boxes({{0, 0.0}, {0, 0.4}, {-1, 0.7}}));
  precision.Add({At(0, 0.7, 0.4)}, Boxes({{0, 0.4}, {0, 0.0}}));
  EXPECT_DOUBLE_EQ(precision.Mean(), (1.0 + 2.0 / 3) / 4);
  // A fourth, right: precision at its recall is 3/4, which the third's 2/3 rises to.
  precision.Add({At(0, 0.6, 0.0)}, Boxes({{0, 0.0}}));
  EXPECT_DOUBLE_EQ(precision.Mean(), (1.0 + 0.75 + 0.75) / 5);
}

TEST(AveragePrecisionTest, ABoxIsFoundOnce) {
  AveragePrecision precision(1);
  precision.Add({At(0, 0.9, 0.02), At(0, 0.8, 0.0)}, Boxes({{0, 0.0}, {0, 0.6}}));
  EXPECT_DOUBLE_EQ(precision.Mean(), 0.5);
}

TEST(AveragePrecisionTest, HalfOfTheAreaIsEnough) {
  AveragePrecision enough(1), little(1);
  enough.Add({At(0, 0.9, 0.0, 0.39)}, Boxes({{0, 0.0}}));
  little.Add({At(0, 0.9, 0.0, 0.41)}, Boxes({{0, 0.0}}));
  EXPECT_EQ(enough.Mean(), 1);
  EXPECT_EQ(little.Mean(), 0);
}

TEST(AveragePrecisionTest, MeansOverTheClassesThatThereAre) {
  AveragePrecision precision(4);
  precision.Add({At(3, 0.7, 0.7)}, {});
  EXPECT_TRUE(std::isnan(precision.Mean())) << "nothing was there to find";
  // Class 1 is taken for class 0, which costs both; class 3 is nowhere, so that what is said of it counts in no mean.
  precision.Add({At(0, 0.9, 0.0), At(0, 0.8, 0.4), At(3, 0.7, 0.7)}, Boxes({{0, 0.0}, {1, 0.4}, {2, 0.7}}));
  EXPECT_DOUBLE_EQ(precision.Mean(), 1.0 / 3);
}

}  // namespace
}  // namespace ampd::train
