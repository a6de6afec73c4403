#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/train/trainer.h"
#include "tests/unit/engine/train/plan_examples.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

constexpr char kDense[] = R"(
model: {layers: [{name: flat, flatten: {}}, {name: head, dense: {units: 10}}], loss: {softmax_cross_entropy: {}}}
data: {train: {glyphs: {samples: 1200}}}
optimizer: {sgd: {}}
train: {batch_size: 64}
)";

v1::PlanResponse Plan(const std::string& yaml, const std::vector<std::string>& sets = {},
                      const std::vector<std::string>& roots = {}) {
  const v1::DeviceModel model = Model("T4");
  return PlanJob(Resolved(Spec(yaml, sets)), roots, "", &model, {v1::PrecisionSpec::FP32});
}

// The network of one that does not fit is not even looked at.
TEST(PlanJob, ABatchThatTheSetDoesNotFillIsNotPlanned) {
  for (const char* units : {"model.layers[1].dense.units=10", "model.layers[1].dense.units=3"}) {
    const v1::PlanResponse response = Plan(kDense, {"train.batch_size=100000", units});
    ASSERT_EQ(response.errors_size(), 1) << response.DebugString();
    EXPECT_EQ(response.errors(0).field(), "train.batch_size");
    EXPECT_EQ(response.errors(0).description(),
              "the training set glyphs holds 1200 samples, fewer than the batch size 100000");
    EXPECT_FALSE(response.has_plan());
  }
  EXPECT_EQ(Plan(kDense, {"train.batch_size=1200"}).errors_size(), 0);
}

TEST(PlanJob, ImagesThatAcganDrawsAreOfTheSamplesShape) {
  constexpr char kAcgan[] = R"(
model: {preset: {acgan: {width: 4}}}
data: {train: {glyphs: {samples: 64}}}
train: {batch_size: 8}
)";
  EXPECT_EQ(Plan(kAcgan).errors_size(), 0) << Plan(kAcgan).errors(0).description();
  v1::PlanResponse response = Plan(kAcgan, {"model.preset.acgan.size=32", "model.preset.acgan.channels=3"});
  ASSERT_EQ(response.errors_size(), 1) << response.DebugString();
  EXPECT_EQ(response.errors(0).field(), "model.preset.acgan.size");
  EXPECT_EQ(response.errors(0).description(),
            "with size 32 and channels 3 generated images are [32, 32, 3], but samples of glyphs are [28, 28, 1]");
  response = Plan(kAcgan, {"model.preset.acgan.channels=3"});
  ASSERT_EQ(response.errors_size(), 1) << response.DebugString();
  EXPECT_EQ(response.errors(0).field(), "model.preset.acgan.channels");
  // What data.image makes of the samples counts.
  EXPECT_EQ(Plan(kAcgan, {"model.preset.acgan.size=32", "data.image.size=32"}).errors_size(), 0);
}

// Arrays of both sets: bytes are kept as they are, other numbers as float32, and labels as int32.
TEST(PlanJob, ReportsWhatSamplesTakeOfTheHost) {
  EXPECT_EQ(Plan(kDense).report().data_bytes(), 1200 * 28 * 28);
  EXPECT_EQ(Plan(kDense, {"data.eval={glyphs: {samples: 300}}"}).report().data_bytes(), 1500 * 28 * 28);
  const ScratchFolder folder;
  WriteNpy<int64_t>(folder.path() + "/y.npy", "<i8", {100}, std::vector<int64_t>(100, 1));
  WriteNpy<double>(folder.path() + "/doubles.npy", "<f8", {100, 7}, std::vector<double>(700, 0.5));
  WriteNpy<uint8_t>(folder.path() + "/bytes.npy", "|u1", {100, 7}, std::vector<uint8_t>(700, 3));
  const auto of = [&](const std::string& train) {
    const v1::PlanResponse response = Plan(kDense, {"data.train=" + train}, {folder.path()});
    EXPECT_EQ(response.errors_size(), 0) << response.DebugString();
    return response.report().data_bytes();
  };
  EXPECT_EQ(of("{npy: {inputs: doubles.npy, targets: y.npy}}"), 100 * (7 * 4 + 4));
  EXPECT_EQ(of("{npy: {inputs: bytes.npy, targets: y.npy}}"), 100 * (7 + 4));
  EXPECT_EQ(of("{npy: {inputs: bytes.npy, targets: y.npy}, limit: 80}"), 80 * (7 + 4));
}

}  // namespace
}  // namespace ampd::train
