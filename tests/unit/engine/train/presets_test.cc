// Presets as models: how large they are, and that they train in every mode.
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

int64_t Parameters(const std::string& preset, const models::SampleInfo& sample) {
  const ResolvedJobSpec spec = Spec({"data { train { glyphs {} } } model { preset { " + preset + " } }"});
  const auto model = models::BuildModel(spec, sample, 2, 2);
  EXPECT_TRUE(model.ok()) << preset << ": " << model.status();
  int64_t count = 0;
  if (!model.ok()) return count;
  for (const ir::Persistent& p : model->phases[0].train.parameters) count += NumElements(p.type.shape);
  return count;
}

// As torchvision's documentation has them; those for small images as He et al. round them, exact by their table.
TEST(PresetsTest, HaveThePublishedNumbersOfParameters) {
  const std::vector<std::pair<int, int64_t>> large = {
      {18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}};
  for (const auto& [depth, count] : large) {
    EXPECT_EQ(
        Parameters("resnet { depth: " + std::to_string(depth) + " }", {.input_shape = {224, 224, 3}, .classes = 1000}),
        count)
        << depth;
  }
  // 1x1 projections with batch norm between stages: 2,752 more than without.
  const std::vector<std::pair<int, int64_t>> small = {
      {20, 272474}, {32, 466906}, {44, 661338}, {56, 855770}, {110, 1730714}};
  for (const auto& [depth, count] : small) {
    EXPECT_EQ(
        Parameters("resnet { depth: " + std::to_string(depth) + " }", {.input_shape = {32, 32, 3}, .classes = 10}),
        count)
        << depth;
  }
  EXPECT_EQ(Parameters("mlp {}", {.input_shape = {8}, .target_features = 1}), 8 * 16 + 16 + 16 * 16 + 16 + 16 + 1);
  EXPECT_EQ(Parameters("convnet {}", {.input_shape = {256, 256, 3}, .classes = 10}),
            (25 * 3 + 3) * 32 + (49 * 32 + 3) * 64 + (121 * 64 + 3) * 128 + 1290);
}

// Trains a few steps in each mode and holds 16 bits against 32.
void TrainsInEveryMode(const std::string& preset, const std::string& data, const std::string& folder) {
  std::vector<double> exact;
  for (const char* mode : {"FP32", "FP16", "BF16"}) {
    const ResolvedJobSpec spec =
        Spec({"model { preset { " + preset + " } }", data, std::string("precision { mode: ") + mode + " }",
              "optimizer { sgd { learning_rate: 0.02 } } report { every_steps: 1 } train { steps: 5 batch_size: 16 }"});
    Recorder recorder;
    const auto outcome = Train(spec, Options(folder + "/" + mode), &recorder);
    ASSERT_TRUE(outcome.ok()) << preset << " " << mode << ": " << outcome.status();
    const std::vector<double> losses = recorder.losses();
    ASSERT_EQ(losses.size(), 5u);
    if (exact.empty()) exact = losses;
    // The scale of FP16 may still be falling.
    for (size_t i = 0; i < (recorder.skips().empty() ? 3 : 1); ++i) {
      EXPECT_NEAR(losses[i], exact[i], 0.03 * (1 + exact[i])) << preset << " " << mode << ", step " << i + 1;
    }
  }
}

class PresetTraining : public ::testing::TestWithParam<std::string> {};

TEST_P(PresetTraining, RunsInEveryMode) {
  ScratchFolder folder;
  for (const char* mode : {"FP32", "FP16", "BF16"}) std::filesystem::create_directory(folder.path() + "/" + mode);
  TrainsInEveryMode(GetParam(), "data { train { glyphs { samples: 160 } } eval { glyphs { samples: 20 } } }",
                    folder.path());
}

INSTANTIATE_TEST_SUITE_P(Families, PresetTraining,
                         ::testing::Values("mlp { outputs: 10 }", "convnet {}", "resnet { depth: 20 }",
                                           "resnet { depth: 18 classes: 10 width: 8 }",
                                           "resnet { depth: 50 classes: 10 width: 8 }"));

constexpr int64_t kHeight = 8, kWidth = 12;

// Images of noise in which a pixel's label says whether it is bright.
void WritePixels(const std::string& folder, int64_t labels) {
  const int64_t samples = 64;
  std::vector<float> x(static_cast<size_t>(samples * kHeight * kWidth));
  std::vector<int64_t> y(static_cast<size_t>(samples * labels));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>((i * 7919) % 101) / 50 - 1;
    if (i < y.size()) y[i] = x[i] > 0 ? 1 : 0;
  }
  WriteNpy(folder + "/x.npy", "<f4", {samples, kHeight, kWidth}, x);
  WriteNpy(folder + "/y.npy", "<i8", {samples, labels}, y);
}

const std::string kPixels =
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'x.npy' targets: 'y.npy' } } }";

TEST(UnetTest, TrainsInEveryModeOnALabelAPixel) {
  ScratchFolder folder;
  for (const char* mode : {"FP32", "FP16", "BF16"}) {
    std::filesystem::create_directory(folder.path() + "/" + mode);
    WritePixels(folder.path() + "/" + mode, kHeight * kWidth);
  }
  TrainsInEveryMode("unet { depth: 2 width: 8 }", kPixels, folder.path());
}

TEST(UnetTest, AccuracyCountsPixels) {
  ScratchFolder folder;
  WritePixels(folder.path(), kHeight * kWidth);
  Recorder recorder;
  const auto outcome = Train(Spec({"model { preset { unet { depth: 1 width: 8 } } }", kPixels,
                                   "optimizer { adam { learning_rate: 0.01 } } train { epochs: 12 batch_size: 16 }"}),
                             Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_FALSE(recorder.evaluations().empty());
  EXPECT_GT(recorder.evaluations().back().accuracy(), 0.95);
  EXPECT_EQ(recorder.evaluations().back().samples(), 64);
}

TEST(UnetTest, RefusesLabelsThatAreNoImage) {
  ScratchFolder folder;
  WritePixels(folder.path(), kHeight * kWidth - 1);
  Recorder recorder;
  const auto outcome =
      Train(Spec({"model { preset { unet { depth: 1 } } }", kPixels}), Options(folder.path()), &recorder);
  EXPECT_THAT(
      std::string(outcome.status().message()),
      testing::HasSubstr("needs a label for each of 8 x 12 pixels of the last layer, the data has 95 a sample"));
}

TEST(UnetTest, RefusesToMirrorImagesAwayFromTheirLabels) {
  ScratchFolder folder;
  WritePixels(folder.path(), kHeight * kWidth);
  for (const char* transform : {"random_flip: true", "random_crop_padding: 1"}) {
    Recorder recorder;
    const auto outcome = Train(
        Spec({"model { preset { unet { depth: 1 } } }", kPixels, std::string("data { image { ") + transform + " } }"}),
        Options(folder.path()), &recorder);
    EXPECT_THAT(std::string(outcome.status().message()), testing::HasSubstr("the targets would not be"));
  }
}

}  // namespace
}  // namespace ampd::train
