#include "engine/train/finite_tensors.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::string Bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), 0);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(AllFinite, FindsOneAnywhere) {
  EXPECT_TRUE(AllFinite(""));
  for (const size_t size : {1, 15, 16, 17, 100}) {
    std::vector<float> values(size, -std::numeric_limits<float>::max());
    EXPECT_TRUE(AllFinite(Bytes(values)));
    for (size_t i = 0; i < size; ++i) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> with = values;
        with[i] = bad;
        const std::string aside = "x" + Bytes(with);
        EXPECT_FALSE(AllFinite(absl::string_view(aside).substr(1))) << i << " of " << size;
      }
    }
  }
}

// Nine layers whose weights are around 100: finite logits, and gradients of the first whose squares are not.
std::string Huge() {
  std::string layers = "model { layers { name: 'flat' flatten {} }";
  for (int i = 1; i <= 9; ++i) {
    absl::StrAppend(&layers, "layers { name: 'l", i, "' dense { units: ", i == 9 ? 10 : 64,
                    " init { normal: 100 } } }");
  }
  return layers + " loss { softmax_cross_entropy {} } } train { batch_size: 32 steps: 4 } precision { mode: FP32 }";
}

// Returns the steps that were skipped.
size_t ExpectDiverged(const std::string& optimizer, const std::string& tensor) {
  SCOPED_TRACE(optimizer);
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome =
      Train(Spec({Huge(), kGlyphs, "optimizer { " + optimizer + " }"}), Options(folder.path()), &recorder);
  if (outcome.ok()) {
    ADD_FAILURE() << "it went on";
    return 0;
  }
  const v1::Failure failure = FailureOf(outcome.status());
  EXPECT_EQ(failure.class_(), v1::Failure::DIVERGED);
  EXPECT_THAT(failure.message(), HasSubstr(tensor + " is not finite"));
  EXPECT_THAT(recorder.checkpoints(), IsEmpty());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/checkpoints")) {
    EXPECT_THAT(entry.path().filename(), testing::Not(HasSubstr("step-")));
  }
  return recorder.skips().size();
}

TEST(TrainingOfHugeGradients, EndsInsteadOfFreezingWhatTheyTrain) {
  // Losses and gradients are finite all the while.
  EXPECT_EQ(ExpectDiverged("adam { learning_rate: 1e-3 }", "l1.weight.m2"), 0u);
  EXPECT_EQ(ExpectDiverged("rmsprop { learning_rate: 1e-3 }", "l1.weight.m1"), 0u);
}

TEST(TrainingOfHugeGradients, GoesOnWhereTheyAreClipped) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = Train(Spec({Huge(), kGlyphs, "optimizer { adam { learning_rate: 1e-3 } clip_global_norm: 1 }"}),
                             Options(folder.path()), &recorder);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
}

// Of infinite moments the variance is no number; as 0 it would divide the gradient by epsilon alone.
TEST(TrainingOfHugeGradients, CenteredRmsPropMovesNothingByAnUnknownVariance) {
  ExpectDiverged("rmsprop { learning_rate: 1e-3 centered: true }", "l1.weight");
}

}  // namespace
}  // namespace ampd::train
