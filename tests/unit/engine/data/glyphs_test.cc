#include "engine/data/glyphs.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/core/rng.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::ElementsAre;

constexpr size_t kPixels = 784;

std::vector<uint8_t> Glyph(uint64_t seed, int64_t index) {
  std::vector<uint8_t> pixels(kPixels);
  DrawGlyph(seed, index, absl::MakeSpan(pixels));
  return pixels;
}

std::unique_ptr<Dataset> Set(int64_t samples, bool is_eval = false) {
  v1::DatasetSpec spec;
  spec.mutable_glyphs()->set_samples(samples);
  return *OpenDataset(spec, {}, is_eval);
}

TEST(GlyphsTest, DescribesItself) {
  v1::DatasetSpec spec;
  spec.mutable_glyphs();
  const auto info = DescribeDataset(spec, {}, false);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->size, 10000);
  EXPECT_THAT(info->input_shape, ElementsAre(28, 28, 1));
  EXPECT_EQ(info->classes, 10);
  EXPECT_TRUE(info->byte_inputs);
  spec.set_limit(7);
  EXPECT_EQ((*OpenDataset(spec, {}, false))->size(), 7);
  spec.mutable_glyphs()->set_samples(0);
  EXPECT_EQ(OpenDataset(spec, {}, false).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GlyphsTest, LabelsAreBalanced) {
  const auto set = Set(200);
  std::array<int, 10> count{};
  for (int64_t i = 0; i < set->size(); ++i) ++count[static_cast<size_t>(set->ReadLabel(i))];
  EXPECT_THAT(count, ::testing::Each(20));
}

TEST(GlyphsTest, FollowsFromSeedAndIndexAlone) {
  EXPECT_EQ(Glyph(1, 5), Glyph(1, 5));
  EXPECT_NE(Glyph(1, 5), Glyph(1, 15));
  EXPECT_NE(Glyph(1, 5), Glyph(2, 5));
  const auto train = Set(20), eval = Set(20, /*is_eval=*/true);
  std::vector<float> pixels(kPixels);
  train->ReadInput(13, absl::MakeSpan(pixels));
  EXPECT_EQ(std::vector<uint8_t>(pixels.begin(), pixels.end()), Glyph(1, 13));
  eval->ReadInput(13, absl::MakeSpan(pixels));
  EXPECT_EQ(std::vector<uint8_t>(pixels.begin(), pixels.end()), Glyph(2, 13));
}

TEST(GlyphsTest, SetsTooLargeForMemoryAreDrawnAsRead) {
  const auto set = Set(int64_t{1} << 40);
  std::vector<float> pixels(kPixels);
  set->ReadInput((int64_t{1} << 40) - 1, absl::MakeSpan(pixels));
  EXPECT_EQ(std::vector<uint8_t>(pixels.begin(), pixels.end()), Glyph(1, (int64_t{1} << 40) - 1));
}

// The bytes are part of the contract: trainings on other machines, and of later versions, see the same set.
TEST(GlyphsTest, BytesAreTheSameEverywhere) {
  uLong checksum = crc32(0, nullptr, 0);
  for (int64_t i = 0; i < 100; ++i) {
    const std::vector<uint8_t> pixels = Glyph(1, i);
    checksum = crc32(checksum, pixels.data(), static_cast<uInt>(pixels.size()));
  }
  EXPECT_EQ(checksum, 0xe7114551u);
}

// Softmax regression by plain gradient descent, the simplest learner there is.
class LinearClassifier {
 public:
  int Classify(const std::vector<float>& x) const {
    const std::array<double, 10> z = Scores(x);
    return static_cast<int>(std::max_element(z.begin(), z.end()) - z.begin());
  }
  void Learn(const std::vector<float>& x, int label, double rate) {
    std::array<double, 10> p = Scores(x);
    const double highest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - highest);
    for (size_t c = 0; c < 10; ++c) {
      const double gradient = p[c] / sum - (static_cast<int>(c) == label ? 1 : 0);
      for (size_t i = 0; i < kPixels; ++i) weights_[c][i] -= rate * gradient * x[i];
      weights_[c][kPixels] -= rate * gradient;
    }
  }

 private:
  std::array<double, 10> Scores(const std::vector<float>& x) const {
    std::array<double, 10> z;
    for (size_t c = 0; c < 10; ++c) {
      z[c] = weights_[c][kPixels];
      for (size_t i = 0; i < kPixels; ++i) z[c] += weights_[c][i] * x[i];
    }
    return z;
  }
  std::array<std::array<double, kPixels + 1>, 10> weights_{};
};

std::vector<float> Centered(const Dataset& set, int64_t i) {
  std::vector<float> x(kPixels);
  set.ReadInput(i, absl::MakeSpan(x));
  for (float& v : x) v = v / 255 - 0.25f;
  return x;
}

TEST(GlyphsTest, IsLearnableButNotByALineAlone) {
  const auto train = Set(4000), eval = Set(1000, /*is_eval=*/true);
  LinearClassifier classifier;
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (int64_t i = 0; i < train->size(); ++i) classifier.Learn(Centered(*train, i), train->ReadLabel(i), 0.004);
  }
  int right = 0;
  for (int64_t i = 0; i < eval->size(); ++i) right += classifier.Classify(Centered(*eval, i)) == eval->ReadLabel(i);
  EXPECT_GT(right, 600);
  EXPECT_LT(right, 900);
  RecordProperty("accuracy_permille", right);
}

}  // namespace
}  // namespace ampd::data
