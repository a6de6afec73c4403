// Pictures of what a network gives: against the network computed by hand, and the same after a resume.
#include "engine/train/samples.h"

#include <png.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/core/safetensors.h"
#include "engine/models/model.h"
#include "engine/train/files.h"
#include "engine/train/image_grid.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A generator with everything that differs between training and evaluation, and a class.
const std::string kJob =
    "data { train { glyphs { samples: 64 } } } "
    "model { networks { name: 'g' inputs: 'z' inputs: 'label'"
    "    layers { name: 'table' embedding { vocabulary: 10 features: 5 } inputs: 'label' }"
    "    layers { name: 'both' mul {} inputs: 'z' inputs: 'table' }"
    "    layers { name: 'fc' dense { units: 784 } } layers { name: 'drop' dropout { rate: 0.5 } }"
    "    layers { name: 'image' reshape { shape: [ 28, 28, 1 ] } } layers { name: 'bn' batch_norm {} } }"
    "  networks { name: 'd' layers { name: 'flat' flatten {} } layers { name: 'fc' dense { units: 1 } } }"
    "  noise { name: 'z' shape: 5 } }"
    "phases { name: 'd' trains: 'd' calls { name: 'fake' network: 'g' inputs: 'z' inputs: 'labels' }"
    "  calls { name: 'a' network: 'd' inputs: 'data' } calls { name: 'b' network: 'd' inputs: 'fake' }"
    "  losses { input: 'a' loss { sigmoid_cross_entropy {} } target: 1 }"
    "  losses { input: 'b' loss { sigmoid_cross_entropy {} } target: 0 } }"
    "phases { name: 'g' trains: 'g' calls { name: 'fake' network: 'g' inputs: 'z' inputs: 'labels' }"
    "  calls { name: 'b' network: 'd' inputs: 'fake' }"
    "  losses { input: 'b' loss { sigmoid_cross_entropy {} } target: 1 } }"
    "optimizer { sgd { learning_rate: 0.05 } } checkpoint { every_seconds: 0 } report { every_steps: 1 } "
    "seed: 11 train { steps: 5 batch_size: 16 } ";
const std::string kSamples = "report { samples { every_steps: 2 images { network: 'g' columns: 3 } } } ";

TrainerOptions WithArtifacts(const std::string& folder) {
  TrainerOptions options = Options(folder);
  options.artifact_dir = folder + "/artifacts";
  return options;
}

std::vector<std::string> Told(const Recorder& recorder) {
  std::vector<std::string> told;
  for (const v1::JobEvent& event : recorder.events) {
    if (!event.has_artifact()) continue;
    told.push_back(
        absl::StrCat(event.artifact().step(), " ", event.artifact().name(), " ", event.artifact().content_type()));
  }
  return told;
}

std::string Picture(const std::string& folder, int step) {
  return ReadFile(absl::StrCat(folder, "/artifacts/samples-00000000", step, ".png"), 1 << 20).value();
}

TEST(SamplesTest, AreDrawnEverySoManyStepsAndAtTheEnd) {
  const ScratchFolder plain, sampled;
  Recorder without, with;
  ASSERT_TRUE(Train(Spec({kJob}), WithArtifacts(plain.path()), &without).ok());
  ASSERT_TRUE(Train(Spec({kJob, kSamples}), WithArtifacts(sampled.path()), &with).ok());
  EXPECT_THAT(Told(without), ElementsAre());
  EXPECT_THAT(Told(with), ElementsAre("2 samples-000000002.png image/png", "4 samples-000000004.png image/png",
                                      "5 samples-000000005.png image/png"));
  // Looking on changes nothing.
  EXPECT_EQ(with.losses(), without.losses());
  const auto model = [](const ScratchFolder& folder) {
    return ReadFile(folder.path() + "/checkpoints/step-000000005/model.safetensors", 1 << 20).value();
  };
  EXPECT_TRUE(model(plain) == model(sampled));
  EXPECT_NE(Picture(sampled.path(), 2), Picture(sampled.path(), 5));
}

TEST(SamplesTest, AreTheSameAfterAResume) {
  const ScratchFolder whole, halves;
  const ResolvedJobSpec spec = Spec({kJob, kSamples});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, WithArtifacts(whole.path()), &recorder).ok());
  ASSERT_EQ(Train(spec, WithArtifacts(halves.path()), &recorder, 3).value(), Outcome::kStopped);
  std::filesystem::remove_all(halves.path() + "/artifacts");
  ASSERT_TRUE(Train(spec, WithArtifacts(halves.path()), &recorder).ok());
  for (int step : {4, 5}) EXPECT_TRUE(Picture(halves.path(), step) == Picture(whole.path(), step)) << step;
  // Once more from the end, where the first try's events may have been lost.
  std::filesystem::remove_all(halves.path() + "/artifacts");
  ASSERT_TRUE(Train(spec, WithArtifacts(halves.path()), &recorder).ok());
  EXPECT_TRUE(Picture(halves.path(), 5) == Picture(whole.path(), 5));
}

TEST(SamplesTest, OfTheAverageAreTheSameAfterAResume) {
  const ScratchFolder whole, halves;
  const ResolvedJobSpec spec = Spec({kJob, kSamples, "optimizer { ema { decay: 0.5 samples: true } }"});
  Recorder recorder;
  ASSERT_TRUE(Train(spec, WithArtifacts(whole.path()), &recorder).ok());
  ASSERT_EQ(Train(spec, WithArtifacts(halves.path()), &recorder, 3).value(), Outcome::kStopped);
  const auto resumed = Train(spec, WithArtifacts(halves.path()), &recorder);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  for (int step : {4, 5}) EXPECT_TRUE(Picture(halves.path(), step) == Picture(whole.path(), step)) << step;
}

TEST(SamplesTest, TrainInEveryMode) {
  for (const char* mode : {"FP16", "BF16", "FP8", "TF32"}) {
    const ScratchFolder folder;
    Recorder recorder;
    const auto outcome = Train(Spec({kJob, kSamples, std::string("precision { mode: ") + mode + " }"}),
                               WithArtifacts(folder.path()), &recorder);
    ASSERT_TRUE(outcome.ok()) << mode << outcome.status();
    EXPECT_EQ(Told(recorder).size(), 3u) << mode;
  }
}

TEST(SamplesTest, AFullDiskDoesNotEndTheTraining) {
  const ScratchFolder folder;
  Recorder recorder;
  TrainerOptions options = WithArtifacts(folder.path());
  // A folder cannot be made in a file: any other error of the disk takes the same way.
  options.artifact_dir = "/proc/version/artifacts";
  ASSERT_EQ(Train(Spec({kJob, kSamples}), options, &recorder).value(), Outcome::kCompleted);
  EXPECT_THAT(Told(recorder), ElementsAre());
  ASSERT_EQ(recorder.logs().size(), 3u);
  EXPECT_EQ(recorder.logs()[0].severity(), v1::LogLine::WARNING);
  EXPECT_THAT(recorder.logs()[0].text(), HasSubstr("/proc/version/artifacts"));
}

// The arrays of a checkpoint.
std::vector<float> Values(const Safetensors& file, const std::string& name) {
  const absl::string_view bytes = file.Bytes(file.entries().at(name));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Without noise in it a picture is known: rows are classes, batch norm uses its running statistics, nothing is dropped.
// `weights`: the file of the checkpoint whose values the picture of a job with `more` is to show.
void ExpectPictureOf(const std::string& weights, const std::string& more) {
  const ScratchFolder folder;
  std::string job = kJob;
  const std::string both = "mul {} inputs: 'z' inputs: 'table'";
  job.replace(job.find(both), both.size(), "concat {} inputs: 'table' inputs: 'table'");
  Recorder recorder;
  const auto spec = Spec({job, "report { samples { every_steps: 5 images { network: 'g' columns: 2 } } } " + more});
  ASSERT_TRUE(Train(spec, WithArtifacts(folder.path()), &recorder).ok());
  const Safetensors file =
      Safetensors::Parse(ReadFile(folder.path() + "/checkpoints/step-000000005/" + weights, 1 << 20).value()).value();
  const std::vector<float> table = Values(file, "g.table.weight"), weight = Values(file, "g.fc.weight"),
                           bias = Values(file, "g.fc.bias");
  const float mean = Values(file, "g.bn.running_mean")[0], variance = Values(file, "g.bn.running_var")[0],
              scale = Values(file, "g.bn.weight")[0], shift = Values(file, "g.bn.bias")[0];
  Tensor images(DType::kF32, {20, 28, 28, 1});
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t u = 0; u < 784; ++u) {
      double y = bias[u];
      for (int64_t k = 0; k < 10; ++k) y += double{weight[u * 10 + k]} * table[i / 2 * 5 + k % 5];
      images.as<float>()[i * 784 + u] = static_cast<float>((y - mean) / std::sqrt(variance + 1e-5) * scale + shift);
    }
  }
  const Image expected = ImageGrid(images.view(), {.rows = 10, .columns = 2, .low = -1, .high = 1});
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  const std::string bytes = Picture(folder.path(), 5);
  ASSERT_NE(png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()), 0) << png.message;
  std::vector<unsigned char> pixels(PNG_IMAGE_SIZE(png));
  ASSERT_NE(png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr), 0) << png.message;
  ASSERT_EQ(pixels.size(), expected.pixels.size());
  int unlike = 0;
  for (size_t i = 0; i < pixels.size(); ++i) {
    const int difference = pixels[i] - static_cast<unsigned char>(expected.pixels[i]);
    EXPECT_LE(std::abs(difference), 1) << i;
    unlike += difference != 0;
  }
  EXPECT_LT(unlike, 20) << "between shades";
}

TEST(SamplesTest, ShowTheNetworkInEvaluation) { ExpectPictureOf("model.safetensors", ""); }

TEST(SamplesTest, ShowTheAverageWhereAsked) {
  const std::string kept = "optimizer { ema { decay: 0.5 ";
  ExpectPictureOf("model.safetensors", kept + "} }");
  ExpectPictureOf("ema.safetensors", kept + "samples: true } }");
}

TEST(SamplesTest, OfTheAverageChangeNoTraining) {
  const ScratchFolder plain, sampled;
  Recorder without, with;
  ASSERT_TRUE(Train(Spec({kJob, "optimizer { ema {} }"}), WithArtifacts(plain.path()), &without).ok());
  ASSERT_TRUE(
      Train(Spec({kJob, kSamples, "optimizer { ema { samples: true } }"}), WithArtifacts(sampled.path()), &with).ok());
  EXPECT_EQ(with.losses(), without.losses());
  for (const char* file : {"model.safetensors", "ema.safetensors", "optimizer.safetensors"}) {
    const std::string path = std::string("/checkpoints/step-000000005/") + file;
    EXPECT_TRUE(ReadFile(plain.path() + path, 1 << 20).value() == ReadFile(sampled.path() + path, 1 << 20).value())
        << file;
  }
}

std::string Refusal(const std::vector<std::string>& parts,
                    const models::SampleInfo& sample = {.input_shape = {28, 28, 1}, .classes = 10}) {
  v1::JobSpec spec;
  for (const std::string& part : parts) {
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(part, &spec)) << part;
  }
  auto resolved = ResolveJobSpec(spec);
  if (!resolved.ok()) return std::string(resolved.status().message());
  return std::string(models::BuildModel(*resolved, sample, 8, 8).status().message());
}

TEST(SamplesTest, RefuseWhatIsNoPicture) {
  const auto of = [](const std::string& images) {
    return std::vector<std::string>{kJob, "report { samples { images { " + images + " } } } "};
  };
  EXPECT_EQ(Refusal(of("network: 'g'")), "");
  EXPECT_THAT(Refusal(of("network: 'gg'")), HasSubstr("no network is named 'gg'; did you mean g?"));
  EXPECT_THAT(Refusal(of("network: 'd'")), HasSubstr("no phase calls 'd' on noise and labels alone"));
  EXPECT_THAT(Refusal(of("network: 'g' rows: 11")), HasSubstr("a row a class, but the data has 10 classes"));
  EXPECT_THAT(Refusal(of("network: 'g' rows: 0")), HasSubstr("rows: must be at least 1, is 0"));
  EXPECT_THAT(Refusal(of("network: 'g' columns: 1000000000000")), HasSubstr("columns: must be at most 100"));
  EXPECT_THAT(Refusal(of("network: 'g' low: 1")), HasSubstr("must be above low, 1, is 1"));
  EXPECT_THAT(Refusal(of("network: 'g' low: 1 high: 1.00000000001")), HasSubstr("must be above low"));
  EXPECT_THAT(Refusal({kJob, "report { samples { } }"}), HasSubstr("report.samples: required: images, or text"));
  EXPECT_THAT(Refusal({"model { layers { dense { units: 1 } } loss { softmax_cross_entropy {} } } "
                       "data { train { glyphs {} } } report { samples { images { network: 'g' } } }"}),
              HasSubstr("needs model.networks"));
  std::vector<std::string> flat = of("network: 'g'");
  const std::string shape = "shape: [ 28, 28, 1 ]";
  flat[0].replace(flat[0].find(shape), shape.size(), "shape: [ 14, 28, 2 ]");
  EXPECT_THAT(Refusal(flat, {.input_shape = {14, 28, 2}, .classes = 10}), HasSubstr("no images"));
}

}  // namespace
}  // namespace ampd::train
