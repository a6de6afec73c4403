// Detectors: that the multibox loss trains one, in every mode, and what its data must be.
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kBoxes = 2;

uint32_t Next(uint32_t* state) { return *state = *state * 1664525u + 1013904223u; }

// Gray noise with a bright or a dark rectangle of 8 to 20 pixels; each is a class.
void WriteScenes(const std::string& folder, int64_t samples, int64_t boxes = kBoxes, const std::string& prefix = "") {
  std::vector<float> x(static_cast<size_t>(samples * kSide * kSide)), y(static_cast<size_t>(samples * boxes * 5), -1);
  uint32_t state = 1;
  for (float& v : x) v = static_cast<float>(Next(&state) >> 24) / 512 - 0.25f;
  for (int64_t n = 0; n < samples; ++n) {
    const int64_t c = n % 2, w = 8 + Next(&state) / 3 % 13, h = 8 + Next(&state) / 3 % 13;
    const int64_t x0 = Next(&state) / 3 % (kSide - w), y0 = Next(&state) / 3 % (kSide - h);
    for (int64_t at = 0; at < w * h; ++at) {
      x[static_cast<size_t>((n * kSide + y0 + at / w) * kSide + x0 + at % w)] += c == 0 ? 1.5f : -1.5f;
    }
    const int64_t box[] = {c * kSide, x0, y0, x0 + w, y0 + h};
    for (int64_t i = 0; i < 5; ++i) {
      y[static_cast<size_t>(n * boxes * 5 + i)] = static_cast<float>(box[i]) / static_cast<float>(kSide);
    }
  }
  WriteNpy(folder + "/" + prefix + "x.npy", "<f4", {samples, kSide, kSide, 1}, x);
  WriteNpy(folder + "/" + prefix + "y.npy", "<f4", {samples, boxes, 5}, y);
}

const std::string kScenes =
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'x.npy' targets: 'y.npy' } } }";
const std::string kSsd = "model { preset { ssd { classes: 2 size: 32 width: 4 } } }";

TEST(DetectorTest, LearnsToFindBoxes) {
  ScratchFolder folder;
  WriteScenes(folder.path(), 160);
  Recorder recorder;
  const auto outcome = Train(Spec({kSsd, kScenes, "optimizer { adam { learning_rate: 0.003 } }",
                                   "train { epochs: 30 batch_size: 16 eval_every_epochs: 30 }"}),
                             Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::Evaluation> evaluations = recorder.evaluations();
  ASSERT_FALSE(evaluations.empty());
  const v1::Evaluation& last = evaluations.back();
  EXPECT_EQ(last.samples(), 160);
  EXPECT_GT(last.metrics().at("mean_average_precision"), 0.6);
  EXPECT_LT(last.loss(), 2);
  EXPECT_FALSE(last.has_accuracy());
}

TEST(DetectorTest, TrainsInEveryMode) {
  std::vector<double> exact;
  for (const char* mode : {"FP32", "FP16", "BF16"}) {
    ScratchFolder folder;
    WriteScenes(folder.path(), 80);
    Recorder recorder;
    const auto outcome =
        Train(Spec({kSsd, kScenes, std::string("precision { mode: ") + mode + " }",
                    "optimizer { sgd { learning_rate: 0.01 } } report { every_steps: 1 } train { steps: 5 batch_size: "
                    "16 }"}),
              Options(folder.path()), &recorder);
    ASSERT_TRUE(outcome.ok()) << mode << ": " << outcome.status();
    const std::vector<double> losses = recorder.losses();
    ASSERT_EQ(losses.size(), 5u);
    if (exact.empty()) exact = losses;
    for (size_t i = 0; i < (recorder.skips().empty() ? 3 : 1); ++i) {
      EXPECT_NEAR(losses[i], exact[i], 0.03 * (1 + exact[i])) << mode << ", step " << i + 1;
    }
  }
}

// A batch is the mean of its samples however it is cut.
TEST(DetectorTest, MicroBatchesChangeNothing) {
  std::vector<double> whole;
  for (const char* micro : {"16", "4"}) {
    ScratchFolder folder;
    WriteScenes(folder.path(), 80);
    Recorder recorder;
    const auto outcome = Train(Spec({kSsd, kScenes, "optimizer { sgd { learning_rate: 0.01 } }",
                                     "report { every_steps: 1 } train { steps: 4 batch_size: 16 micro_batch_size: " +
                                         std::string(micro) + " }"}),
                               Options(folder.path()), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    if (whole.empty()) whole = recorder.losses();
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(recorder.losses().at(i), whole.at(i), 1e-4 * whole.at(i));
  }
}

TEST(DetectorTest, NamesALossOfWrongClasses) {
  ScratchFolder folder;
  WriteScenes(folder.path(), 32);
  Recorder recorder;
  // Class 1 is none of the network's.
  const auto outcome = Train(Spec({"model { preset { ssd { classes: 1 size: 32 width: 4 } } }", kScenes,
                                   "train { steps: 200 batch_size: 16 }"}),
                             Options(folder.path()), &recorder);
  EXPECT_FALSE(outcome.ok());
  ASSERT_FALSE(recorder.skips().empty());
  EXPECT_EQ(recorder.skips()[0].stage(), v1::OverflowSkip::LOSS);
}

TEST(DetectorTest, RefusesOtherNumbersOfBoxesInTheEvaluation) {
  ScratchFolder folder;
  WriteScenes(folder.path(), 32);
  WriteScenes(folder.path(), 16, 3, "eval_");
  Recorder recorder;
  const auto outcome = Train(Spec({kSsd,
                                   "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } }"
                                   "       eval { npy { inputs: 'eval_x.npy' targets: 'eval_y.npy' } } }"}),
                             Options(folder.path()), &recorder);
  EXPECT_THAT(std::string(outcome.status().message()), testing::HasSubstr("have 15 numbers of boxes, those of"));
}

}  // namespace
}  // namespace ampd::train
