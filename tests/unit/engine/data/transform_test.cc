#include "engine/data/transform.h"

#include <cmath>
#include <limits>
#include <set>

#include "engine/data/memory_dataset.h"
#include "gmock/gmock.h"

namespace ampd::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Dataset> Images(Shape shape, std::vector<uint8_t> bytes) {
  Columns columns;
  columns.info.name = "images";
  columns.info.byte_inputs = true;
  columns.info.input_shape = shape;
  columns.info.size = static_cast<int64_t>(bytes.size()) / NumElements(shape);
  columns.info.classes = 1;
  columns.bytes = std::move(bytes);
  columns.labels.assign(static_cast<size_t>(columns.info.size), 0);
  return *MakeMemoryDataset(std::move(columns), 0);
}

std::unique_ptr<Dataset> Floats(Shape shape, std::vector<float> values, std::vector<NonFinite> non_finite = {}) {
  Columns columns;
  columns.info.name = "floats";
  columns.info.input_shape = shape;
  columns.info.size = static_cast<int64_t>(values.size()) / NumElements(shape);
  columns.info.classes = 1;
  columns.floats = std::move(values);
  columns.labels.assign(static_cast<size_t>(columns.info.size), 0);
  columns.non_finite = std::move(non_finite);
  return *MakeMemoryDataset(std::move(columns), 0);
}

v1::ImageTransform Normalize(v1::ImageTransform::Normalize normalize) {
  v1::ImageTransform spec;
  spec.set_normalize(normalize);
  return spec;
}

std::vector<float> Plain(const v1::ImageTransform& spec, const Dataset& dataset, int64_t i) {
  const auto transform = Transform::Create(spec, dataset);
  EXPECT_TRUE(transform.ok()) << transform.status();
  std::vector<float> out(static_cast<size_t>(dataset.info().input_elements()));
  if (transform.ok()) {
    EXPECT_TRUE(transform->ReadPlain(dataset, i, absl::MakeSpan(out)).ok());
  }
  return out;
}

std::vector<float> Augmented(const v1::ImageTransform& spec, const Dataset& dataset, const Draw& draw) {
  const auto transform = Transform::Create(spec, dataset);
  EXPECT_TRUE(transform.ok()) << transform.status();
  std::vector<float> out(static_cast<size_t>(dataset.info().input_elements())), scratch;
  if (transform.ok()) {
    EXPECT_TRUE(transform->ReadAugmented(dataset, 0, draw, scratch, absl::MakeSpan(out)).ok());
  }
  return out;
}

TEST(TransformTest, StandardDoesNotMeasurePadding) {
  DatasetInfo info;
  info.name = "sequences";
  info.size = 2;
  info.input_shape = {3, 2};
  info.lengths = {1, 3};
  v1::ImageTransform spec;
  EXPECT_TRUE(CheckTransform(spec, info).ok());
  spec.set_normalize(v1::ImageTransform::STANDARD);
  EXPECT_THAT(std::string(CheckTransform(spec, info).message()), ::testing::HasSubstr("past the samples' lengths"));
}

TEST(TransformTest, DefaultsToUnitForBytesAndNoneForFloats) {
  EXPECT_THAT(Plain({}, *Images({1, 3, 1}, {0, 51, 255}), 0), ElementsAre(0.0f, 51.0f / 255, 1.0f));
  EXPECT_THAT(Plain({}, *Floats({3}, {0, 51, 1e6f}), 0), ElementsAre(0, 51, 1e6f));
  // Images or not: MNIST as [n, 784].
  EXPECT_THAT(Plain({}, *Images({3}, {0, 51, 255}), 0), ElementsAre(0.0f, 51.0f / 255, 1.0f));
  EXPECT_THAT(Plain(Normalize(v1::ImageTransform::NONE), *Images({1, 3, 1}, {0, 51, 255}), 0), ElementsAre(0, 51, 255));
}

TEST(TransformTest, StandardCentersEachChannel) {
  // Channel 0: 1, 3, 5, 7 (mean 4, variance 5); channel 1: constant.
  const auto data = Images({1, 2, 2}, {1, 9, 3, 9, 5, 9, 7, 9});
  const auto transform = Transform::Create(Normalize(v1::ImageTransform::STANDARD), *data);
  ASSERT_TRUE(transform.ok()) << transform.status();
  EXPECT_THAT(transform->mean(), ElementsAre(4, 9));
  EXPECT_THAT(transform->std(), ElementsAre(::testing::DoubleNear(std::sqrt(5.0), 1e-15), 1));
  std::vector<float> out(4);
  ASSERT_TRUE(transform->ReadPlain(*data, 1, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(static_cast<float>(1 / std::sqrt(5.0)), 0, static_cast<float>(3 / std::sqrt(5.0)), 0));
}

TEST(TransformTest, StandardTakesEveryFeatureAsAChannel) {
  const auto data = Floats({2}, {0, 10, 2, 30});
  EXPECT_THAT(Plain(Normalize(v1::ImageTransform::STANDARD), *data, 1), ElementsAre(1, 1));
}

TEST(TransformTest, StandardRefusesWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto marked = Floats({1}, {1, inf}, {{1, inf, "file"}});
  EXPECT_EQ(Transform::Create(Normalize(v1::ImageTransform::STANDARD), *marked).status().code(),
            absl::StatusCode::kDataLoss);
  const auto overflowed = Floats({1}, {1, inf});
  const absl::Status status = Transform::Create(Normalize(v1::ImageTransform::STANDARD), *overflowed).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sample 1"));
}

TEST(TransformTest, ImageNetUsesItsConstants) {
  const auto out = Plain(Normalize(v1::ImageTransform::IMAGENET), *Images({1, 1, 3}, {0, 128, 255}), 0);
  EXPECT_FLOAT_EQ(out[0], static_cast<float>((0 - 0.485) / 0.229));
  EXPECT_FLOAT_EQ(out[1], static_cast<float>((128 / 255.0 - 0.456) / 0.224));
  EXPECT_FLOAT_EQ(out[2], static_cast<float>((1 - 0.406) / 0.225));
}

TEST(TransformTest, RefusesWhatMakesNoSense) {
  const auto bytes = Images({2, 2, 1}, {1, 2, 3, 4});
  const auto flat = Images({4}, {1, 2, 3, 4});
  const auto floats = Floats({4}, {1, 2, 3, 4});
  const auto code = [](const v1::ImageTransform& spec, const Dataset& d) {
    return Transform::Create(spec, d).status().code();
  };
  EXPECT_EQ(code(Normalize(v1::ImageTransform::IMAGENET), *bytes), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Normalize(v1::ImageTransform::UNIT), *floats), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Normalize(static_cast<v1::ImageTransform::Normalize>(99)), *bytes),
            absl::StatusCode::kInvalidArgument);
  v1::ImageTransform spec;
  spec.set_random_flip(true);
  EXPECT_EQ(code(spec, *bytes), absl::StatusCode::kOk);
  EXPECT_EQ(code(spec, *flat), absl::StatusCode::kInvalidArgument);
  spec.Clear();
  for (const auto& [padding, ok] : {std::pair(1, true), std::pair(2, false), std::pair(-1, false)}) {
    spec.set_random_crop_padding(padding);
    EXPECT_EQ(code(spec, *bytes) == absl::StatusCode::kOk, ok) << padding;
    EXPECT_EQ(code(spec, *flat), absl::StatusCode::kInvalidArgument);
  }
  spec.Clear();
  spec.set_size(32);
  EXPECT_EQ(code(spec, *bytes), absl::StatusCode::kInvalidArgument);
}

TEST(TransformTest, AppliesOnlyToSamplesOfTheSameShapeAndKind) {
  const auto transform = Transform::Create({}, *Images({2, 2, 1}, {1, 2, 3, 4}));
  ASSERT_TRUE(transform.ok());
  EXPECT_TRUE(transform->CheckApplies(Images({2, 2, 1}, {5, 6, 7, 8})->info()).ok());
  EXPECT_FALSE(transform->CheckApplies(Images({4}, {5, 6, 7, 8})->info()).ok());
  EXPECT_FALSE(transform->CheckApplies(Floats({2, 2, 1}, {5, 6, 7, 8})->info()).ok());
}

TEST(TransformTest, FlipMirrorsHalfOfTheImages) {
  v1::ImageTransform spec = Normalize(v1::ImageTransform::NONE);
  spec.set_random_flip(true);
  const auto data = Images({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  int mirrored = 0;
  for (int64_t step = 0; step < 400; ++step) {
    const std::vector<float> out = Augmented(spec, *data, {.seed = 7, .step = step, .position = 3});
    if (out == std::vector<float>{3, 4, 1, 2, 7, 8, 5, 6}) {
      ++mirrored;
    } else {
      EXPECT_THAT(out, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    }
  }
  EXPECT_GT(mirrored, 150);
  EXPECT_LT(mirrored, 250);
}

// Every window of the padded image is cut, and no other, the border being the normalised zero.
TEST(TransformTest, CropCutsWindowsOfThePaddedImage) {
  v1::ImageTransform spec = Normalize(v1::ImageTransform::STANDARD);
  spec.set_random_crop_padding(1);
  const auto data = Images({2, 2, 1}, {10, 20, 30, 40});
  const auto value = [](double v) { return static_cast<float>((v - 25) / std::sqrt(125.0)); };
  const double padded[4][4] = {{0, 0, 0, 0}, {0, 10, 20, 0}, {0, 30, 40, 0}, {0, 0, 0, 0}};
  std::set<std::vector<float>> expected, seen;
  for (int y = 0; y < 3; ++y) {
    for (int x = 0; x < 3; ++x) {
      expected.insert(
          {value(padded[y][x]), value(padded[y][x + 1]), value(padded[y + 1][x]), value(padded[y + 1][x + 1])});
    }
  }
  for (int64_t position = 0; position < 300; ++position) seen.insert(Augmented(spec, *data, {.position = position}));
  EXPECT_EQ(seen, expected);
}

TEST(TransformTest, RandomnessFollowsFromSeedStepAndPosition) {
  v1::ImageTransform spec;
  spec.set_random_flip(true);
  spec.set_random_crop_padding(3);
  std::vector<uint8_t> pixels(64);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i + 1);
  const auto data = Images({8, 8, 1}, pixels);
  const Draw draw = {.seed = 5, .step = 6, .position = 7};
  EXPECT_EQ(Augmented(spec, *data, draw), Augmented(spec, *data, draw));
  std::set<std::vector<float>> by_seed, by_step, by_position;
  for (int64_t i = 0; i < 20; ++i) {
    by_seed.insert(Augmented(spec, *data, {.seed = static_cast<uint64_t>(i), .step = 6, .position = 7}));
    by_step.insert(Augmented(spec, *data, {.seed = 5, .step = i, .position = 7}));
    by_position.insert(Augmented(spec, *data, {.seed = 5, .step = 6, .position = i}));
  }
  EXPECT_GT(by_seed.size(), 10u);
  EXPECT_GT(by_step.size(), 10u);
  EXPECT_GT(by_position.size(), 10u);
}

}  // namespace
}  // namespace ampd::data
