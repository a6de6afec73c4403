// Training on a folder of images, some of them damaged.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/core/json.h"
#include "engine/data/dataset.h"
#include "engine/train/checkpoint.h"
#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/image_files.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kJob =
    "model { layers { conv2d { filters: 4 kernel: 3 stride: 2 } } layers { flatten {} } layers { dense { units: 2 } }"
    "        loss { softmax_cross_entropy {} } }"
    "data { train { image_folder { path: 'set' } } eval { image_folder { path: 'set' } }"
    "       image { size: 8 normalize: IMAGENET random_flip: true random_resized_crop {} } max_corrupt_ratio: 0.2 }"
    "train { batch_size: 4 epochs: 3 } report { every_steps: 1 } seed: 5";

class ImageTrainingTest : public ::testing::Test {
 protected:
  // Two classes of six images each.
  ImageTrainingTest() {
    for (int i = 0; i < 12; ++i) {
      const std::string folder = folder_.path() + (i < 6 ? "/set/a" : "/set/b");
      std::filesystem::create_directories(folder);
      Put((i < 6 ? "a/" : "b/") + std::to_string(i % 6), data::JpegFileBytes(data::SmoothImage(12, 10 + i, 3, i)));
    }
  }
  void Put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_.path() + "/set/" + name, std::ios::binary) << bytes;
  }
  TrainerOptions OptionsOf(const std::string& run, int threads = 1) const {
    TrainerOptions options = Options(folder_.path());
    options.checkpoint_dir = folder_.path() + "/" + run;
    options.threads = threads;
    return options;
  }
  static std::vector<v1::CorruptSample> Corrupt(const Recorder& recorder) {
    std::vector<v1::CorruptSample> corrupt;
    for (const v1::JobEvent& event : recorder.events) {
      if (event.has_corrupt_sample()) corrupt.push_back(event.corrupt_sample());
    }
    return corrupt;
  }

  ScratchFolder folder_;
};

TEST_F(ImageTrainingTest, NamesDamagedFilesOnceASet) {
  Put("a/3", "no image");
  Put("b/5", "");
  Recorder recorder;
  const auto outcome = Train(Spec({kJob}), OptionsOf("one"), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::CorruptSample> corrupt = Corrupt(recorder);
  // Two of the training set, and two of the evaluation's.
  ASSERT_EQ(corrupt.size(), 4u);
  for (const v1::CorruptSample& sample : corrupt) {
    EXPECT_TRUE(sample.file() == "set/a/3" || sample.file() == "set/b/5") << sample.file();
    EXPECT_THAT(sample.reason(), HasSubstr(sample.file() == "set/a/3" ? "neither" : "empty"));
    EXPECT_EQ(sample.samples(), 12);
  }
  EXPECT_EQ(recorder.evaluations().back().samples(), 10);
  EXPECT_EQ(recorder.steps().back().last_step(), 9);
}

TEST_F(ImageTrainingTest, AResumeAndCachesAndDecodingThreadsChangeNoBit) {
  Put("a/3", "no image");
  Recorder whole;
  ASSERT_TRUE(Train(Spec({kJob}), OptionsOf("whole"), &whole).ok());
  for (const std::string how : {"cache { kind: NONE }", "cache { kind: DISK } decode_threads: 3",
                                "cache { kind: MEMORY max_bytes: 2000 } decode_threads: 2"}) {
    const ResolvedJobSpec spec = Spec({kJob, "data { " + how + " }"});
    const std::string run = "run" + std::to_string(how.size());
    Recorder first, second;
    const auto stopped = Train(spec, OptionsOf(run), &first, /*stop_at=*/4);
    ASSERT_TRUE(stopped.ok()) << stopped.status();
    ASSERT_TRUE(Train(spec, OptionsOf(run), &second).ok());
    std::vector<double> losses = first.losses();
    for (double loss : second.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses()) << how;
  }
}

TEST_F(ImageTrainingTest, TooMuchDamageIsAFailureOfTheData) {
  for (const char* name : {"a/0", "a/1", "b/2"}) Put(name, "no image");
  Recorder recorder;
  const absl::Status status = Train(Spec({kJob}), OptionsOf("one"), &recorder).status();
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DATA);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 of 12 samples are damaged"));
  // The evaluation's set may have been looked at by then, and names them too.
  std::set<std::string> files;
  for (const v1::CorruptSample& sample : Corrupt(recorder)) files.insert(sample.file());
  EXPECT_THAT(files, ElementsAre("set/a/0", "set/a/1", "set/b/2"));
}

TEST_F(ImageTrainingTest, ACheckpointTellsNormalisationAndClasses) {
  Recorder recorder;
  const auto outcome = Train(Spec({kJob, "data { image { normalize: STANDARD } }"}), OptionsOf("one"), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  std::ifstream file(folder_.path() + "/one/" + CheckpointName(9) + "/state.json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto state = ParseJson(text);
  ASSERT_TRUE(state.ok()) << state.status() << text;
  const Json& input = *state->Find("input");
  ASSERT_EQ(input.Find("classes")->items().size(), 2u);
  EXPECT_EQ(*input.Find("classes")->items()[1].AsString(), "b");
  // Of bytes, measured here once more, over the images as evaluation sees them.
  v1::DataSpec data = Spec({kJob}).proto().data();
  const auto images = data::OpenDataset(data, {folder_.path()}, /*is_eval=*/true);
  ASSERT_TRUE(images.ok()) << images.status();
  std::vector<float> pixels(8 * 8 * 3);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 12; ++i) {
    (*images)->ReadInput(i, absl::MakeSpan(pixels));
    for (size_t p = 0; p < pixels.size(); p += 3) sum += pixels[p];
    for (size_t p = 0; p < pixels.size(); p += 3) squares += pixels[p] * pixels[p];
  }
  const double mean = sum / (12 * 64);
  ASSERT_EQ(input.Find("mean")->items().size(), 3u);
  EXPECT_NEAR(*input.Find("mean")->items()[0].AsFloat(), mean, 1e-3);
  EXPECT_NEAR(*input.Find("std")->items()[0].AsFloat(), std::sqrt(squares / (12 * 64) - mean * mean), 1e-3);
}

TEST_F(ImageTrainingTest, ClassesOfOtherNamesAreNotTakenForTheSame) {
  std::filesystem::copy(folder_.path() + "/set", folder_.path() + "/val", std::filesystem::copy_options::recursive);
  std::filesystem::rename(folder_.path() + "/val/a", folder_.path() + "/val/c");
  const std::string other = "data { eval { image_folder { path: 'val' } } }";
  const v1::PlanResponse plan = PlanJob(Spec({kJob, other}), {folder_.path()});
  ASSERT_EQ(plan.errors().size(), 1) << plan.ShortDebugString();
  EXPECT_THAT(plan.errors(0).description(), HasSubstr("class 0 is 'b' in val and 'a' in set"));
  Recorder recorder;
  EXPECT_THAT(std::string(Train(Spec({kJob, other}), OptionsOf("one"), &recorder).status().message()),
              HasSubstr("class 0 is 'b' in val"));
  // One more than the network learns; then the last one missing.
  std::filesystem::rename(folder_.path() + "/val/c", folder_.path() + "/val/a");
  std::filesystem::copy(folder_.path() + "/val/a", folder_.path() + "/val/d");
  EXPECT_THAT(PlanJob(Spec({kJob, other}), {folder_.path()}).ShortDebugString(), HasSubstr("none in set"));
  std::filesystem::remove_all(folder_.path() + "/val/d");
  std::filesystem::remove_all(folder_.path() + "/val/b");
  EXPECT_TRUE(PlanJob(Spec({kJob, other}), {folder_.path()}).errors().empty());
}

TEST_F(ImageTrainingTest, AResumeNoticesOtherData) {
  const ResolvedJobSpec spec = Spec({kJob});
  Recorder first, second;
  ASSERT_TRUE(Train(spec, OptionsOf("one"), &first, /*stop_at=*/4).ok());
  // 'b' would be class 0.
  std::filesystem::rename(folder_.path() + "/set/a", folder_.path() + "/set/z");
  const absl::Status status = Train(spec, OptionsOf("one"), &second).status();
  EXPECT_EQ(FailureOf(status).class_(), v1::Failure::DATA) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("class 0 was 'a' when the checkpoint was written and is 'b'"));
  // One image more is no mistake, but told.
  std::filesystem::rename(folder_.path() + "/set/z", folder_.path() + "/set/a");
  Put("b/6", data::JpegFileBytes(data::SmoothImage(12, 10, 3, 1)));
  Recorder third;
  ASSERT_TRUE(Train(spec, OptionsOf("one"), &third).ok());
  int warnings = 0;
  for (const v1::JobEvent& event : third.events) {
    warnings += event.has_log() && event.log().severity() == v1::LogLine::WARNING &&
                absl::StrContains(event.log().text(), "has 13 samples; it had 12");
  }
  EXPECT_EQ(warnings, 1);
}

TEST_F(ImageTrainingTest, APlanReadsNoImage) {
  for (int i = 0; i < 12; ++i) Put((i < 6 ? "a/" : "b/") + std::to_string(i % 6), "no image");
  const v1::PlanResponse plan = PlanJob(Spec({kJob}), {folder_.path()});
  EXPECT_EQ(plan.data_error(), "");
  EXPECT_TRUE(plan.errors().empty()) << plan.ShortDebugString();
  EXPECT_THAT(plan.plan().input_shape(), ::testing::ElementsAre(8, 8, 3));
}

}  // namespace
}  // namespace ampd::train
