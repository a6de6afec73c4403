// Training on a folder of images, some of them damaged.
#include <filesystem>
#include <string>
#include <vector>

#include "engine/train/failure.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/data/image_files.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

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
  EXPECT_EQ(Corrupt(recorder).size(), 3u);
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
