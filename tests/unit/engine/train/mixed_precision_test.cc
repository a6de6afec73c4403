// Why half precision needs loss scaling and fp32 masters, and what happens when values overflow, on whole trainings.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/safetensors.h"
#include "engine/data/loader.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "engine/train/micro_batches.h"
#include "engine/train/training_data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kEveryStep = "report { every_steps: 1 }";

// A linear regression of 256 samples, 16 features: `scale` multiplies inputs and so targets.
void WriteRegression(const std::string& folder, double scale) {
  constexpr int kSamples = 256, kFeatures = 16;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<float> x, y, truth;
  for (int f = 0; f < kFeatures; ++f) truth.push_back(static_cast<float>(normal(random)));
  for (int n = 0; n < kSamples; ++n) {
    double sum = 0;
    for (int f = 0; f < kFeatures; ++f) {
      x.push_back(static_cast<float>(scale * normal(random)));
      sum += x.back() * truth[f];
    }
    y.push_back(static_cast<float>(sum));
  }
  WriteNpy(folder + "/x.npy", "<f4", {kSamples, 1, 1, kFeatures}, x);
  WriteNpy(folder + "/y.npy", "<f4", {kSamples}, y);
}

const std::string kRegression =
    "model { layers { flatten {} } layers { name: 'linear' dense { units: 1 bias: false } }"
    "        loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 64 }";
// The same by a convolution, whose filter's gradient is rounded to the mode's dtype, where a matrix' stays in fp32.
const std::string kConvolved =
    "model { layers { name: 'linear' conv2d { filters: 1 kernel: 1 bias: false } } layers { flatten {} }"
    "        loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 64 }";

Recorder TrainRegression(const std::string& folder, const std::vector<std::string>& parts,
                         const std::string& model = kRegression) {
  std::vector<std::string> all = {model, kEveryStep};
  all.insert(all.end(), parts.begin(), parts.end());
  Recorder recorder;
  TrainerOptions options = Options(folder);
  const ScratchFolder checkpoints;
  options.checkpoint_dir = checkpoints.path();
  const auto outcome = Train(Spec(all), options, &recorder);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return recorder;
}

// Inputs of 2^-15 and errors of 1e-4 make gradients of about 1e-9; fp16 holds nothing below 3e-8.
constexpr double kTinyScale = 0x1p-15;

TEST(LossScaling, SavesTinyGradients) {
  const ScratchFolder folder;
  WriteRegression(folder.path(), kTinyScale);
  const std::string common = "train { epochs: 60 } optimizer { adam { learning_rate: 0.02 epsilon: 1e-20 } }";
  const std::string once = "precision { mode: FP16 loss_scale { kind: STATIC init: 1 } }";
  const Recorder fp32 = TrainRegression(folder.path(), {common, "precision { mode: FP32 }"}, kConvolved);
  const Recorder dynamic = TrainRegression(folder.path(), {common, "precision { mode: FP16 }"}, kConvolved);
  const Recorder unscaled = TrainRegression(folder.path(), {common, once}, kConvolved);
  const double start = fp32.MeanLoss(0, 4);
  EXPECT_LT(fp32.MeanLoss(236, 4), 0.01 * start);
  EXPECT_NEAR(dynamic.MeanLoss(236, 4), fp32.MeanLoss(236, 4), 0.01 * start);
  EXPECT_GT(unscaled.MeanLoss(236, 4), 0.9 * start);
  EXPECT_THAT(unscaled.skips(), IsEmpty());
  // What a product adds up in fp32 stays there, and is not flushed.
  EXPECT_LT(TrainRegression(folder.path(), {common, once}).MeanLoss(236, 4), 0.01 * start);
}

TEST(LossScaling, FewerGradientsAreFlushedToZero) {
  const ScratchFolder folder;
  WriteRegression(folder.path(), kTinyScale);
  const auto zeros_at = [&](const std::string& model_text, const char* mode, float scale) {
    const auto spec = Spec({model_text, mode});
    const auto data = TrainingData::Open(spec, {folder.path()}, folder.path(), 1).value();
    const auto plan = PlanModel(spec, SampleInfoOf(data->train().info()), MakeBackend("cpu-0", 1).value(), 1).value();
    const std::unique_ptr<LoadedModel> loaded = LoadedModel::Create(*plan).value();
    LoadedModel& model = *loaded;
    EXPECT_TRUE(model.memory.Initialize(1).ok());
    EXPECT_TRUE(model.memory.PublishAll().ok());
    const auto loader = data->TrainLoader(plan->outputs, 0).value();
    const MicroBatches micro_batches(plan.get(), &model, 64, 64);
    EXPECT_TRUE(micro_batches.Run(**loader->Next(), {}, scale).ok());
    runtime::GradientCheck check;
    EXPECT_TRUE(plan->backend->CheckGradients(model.memory.gradients(), plan->layout.slots(), 1 / scale, &check).ok());
    EXPECT_TRUE(check.finite);
    return check.zeros;
  };
  EXPECT_EQ(zeros_at(kConvolved, "precision { mode: FP32 }", 1), 0);
  EXPECT_GT(zeros_at(kConvolved, "precision { mode: FP16 }", 1), 14);
  EXPECT_EQ(zeros_at(kConvolved, "precision { mode: FP16 }", 65536), 0);
  EXPECT_EQ(zeros_at(kRegression, "precision { mode: FP16 }", 1), 0);
}

struct MasterCase {
  const char* mode;
  // Below half a unit in the last place of most weights.
  double learning_rate;
  int epochs;
};

class Masters : public testing::TestWithParam<MasterCase> {};

TEST_P(Masters, KeepUpdatesThatWouldVanish) {
  const ScratchFolder folder;
  WriteRegression(folder.path(), 1);
  const std::string common =
      absl::StrCat("optimizer { adam { learning_rate: ", GetParam().learning_rate,
                   " } } precision { mode: ", GetParam().mode, " } train { epochs: ", GetParam().epochs, " }");
  const Recorder with = TrainRegression(folder.path(), {common});
  const Recorder without = TrainRegression(folder.path(), {common, "precision { master_weights: false }"});
  const size_t last = with.losses().size() - 4;
  const double fall = with.MeanLoss(0, 4) - with.MeanLoss(last, 4);
  EXPECT_GT(fall, 0.02 * with.MeanLoss(0, 4));
  EXPECT_LT(without.MeanLoss(0, 4) - without.MeanLoss(last, 4), 0.25 * fall);
}

INSTANTIATE_TEST_SUITE_P(Modes, Masters,
                         testing::Values(MasterCase{"BF16", 1e-4, 100}, MasterCase{"FP16", 1.25e-5, 800}),
                         [](const auto& info) { return std::string(info.param.mode); });

TEST(Calibration, AHugeFirstScaleIsHalvedUntilItFits) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec =
      Spec({kConvNet, kGlyphs, kEveryStep, "precision { mode: FP16 loss_scale { init: 1e30 } }",
            "train { batch_size: 32 epochs: 14 } optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto skips = recorder.skips();
  size_t calibrating = 0;
  for (; calibrating < skips.size() && skips[calibrating].calibration(); ++calibrating) {
    const v1::OverflowSkip& skip = skips[calibrating];
    const v1::PhaseReport report = recorder.steps()[calibrating].phases(0);
    EXPECT_EQ(skip.step(), static_cast<int64_t>(calibrating) + 1);
    EXPECT_EQ(skip.scale_after(), skip.scale_before() / 2);
    EXPECT_EQ(skip.stage(), v1::OverflowSkip::GRADIENT);
    EXPECT_THAT(skip.first_tensor(), HasSubstr(".grad"));
    EXPECT_EQ(report.steps_applied(), 0);
    EXPECT_EQ(report.steps_skipped(), skip.step());
    EXPECT_EQ(report.loss_scale(), skip.scale_after());
  }
  EXPECT_GT(calibrating, 60u);
  EXPECT_EQ(skips.front().scale_before(), static_cast<double>(1e30f));
  // Where it ends the scale is as large as it can be, so a few ordinary overflows may follow.
  EXPECT_LT(skips.size(), calibrating + 10);
  for (size_t i = calibrating; i < skips.size(); ++i) EXPECT_FALSE(skips[i].calibration());
  EXPECT_THAT(recorder.scale_changes(), SizeIs(skips.size()));
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), 140 - static_cast<int64_t>(skips.size()));
  EXPECT_GT(recorder.evaluations().back().accuracy(), 0.3);
}

// 8x8 images of two channels in four classes, told apart by which quadrant is bright.
void WriteQuadrants(const std::string& folder, int samples, int poisoned, float value) {
  std::mt19937 random(17);
  std::normal_distribution<float> noise(0, 0.5f);
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int n = 0; n < samples; ++n) {
    y.push_back(n % 4);
    for (int i = 0; i < 64; ++i) {
      const int quadrant = (i / 32) * 2 + (i % 8) / 4;
      x.push_back(noise(random) + (quadrant == y.back() ? 1.0f : 0.0f));
    }
  }
  if (poisoned >= 0) x[static_cast<size_t>(poisoned) * 64 + 27] = value;
  WriteNpy(folder + "/x.npy", "<f4", {samples, 8, 8}, x);
  WriteNpy(folder + "/y.npy", "<i8", {samples}, y);
}

const std::string kQuadrants =
    "model { layers { name: 'conv' conv2d { filters: 8 kernel: 3 activation: RELU } } layers { name: 'bn' batch_norm "
    "{} }"
    "        layers { flatten {} } layers { name: 'head' dense { units: 4 } } loss { softmax_cross_entropy {} } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } eval { npy { inputs: 'ex.npy' targets: 'ey.npy' } } }"
    "train { batch_size: 32 epochs: 5 } optimizer { adamw { learning_rate: 0.01 } }";

// The evaluation set is the same without the poison.
void WriteQuadrantSets(const std::string& folder, int poisoned, float value) {
  WriteQuadrants(folder, 200, -1, 0);
  for (const char* name : {"x.npy", "y.npy"}) {
    std::filesystem::rename(absl::StrCat(folder, "/", name), absl::StrCat(folder, "/e", name));
  }
  WriteQuadrants(folder, 320, poisoned, value);
}

void ExpectFiniteModel(const std::string& checkpoint) {
  const auto file = Safetensors::Parse(ReadFile(checkpoint + "/model.safetensors", 1 << 24).value());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->entries().count("bn.running_var"), 1u);
  for (const auto& [name, entry] : file->entries()) {
    if (entry.dtype != DType::kF32) continue;
    const absl::string_view bytes = file->Bytes(entry);
    for (size_t i = 0; i < bytes.size(); i += 4) {
      float value;
      std::memcpy(&value, bytes.data() + i, 4);
      ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

TEST(Overflow, OneSampleBeyondFp16CostsOneSkipAnEpoch) {
  const ScratchFolder folder;
  // Not in the first batch, which calibrates.
  const std::vector<int64_t> order = data::EpochOrder(320, 0, 1);
  const int poisoned = static_cast<int>(order[100]);
  WriteQuadrantSets(folder.path(), poisoned, 1e6f);
  Recorder recorder;
  const auto spec = Spec({kQuadrants, kEveryStep, "precision { mode: FP16 }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto skips = recorder.skips();
  ASSERT_THAT(skips, SizeIs(5));
  for (int64_t epoch = 1; epoch <= 5; ++epoch) {
    const v1::OverflowSkip& skip = skips[static_cast<size_t>(epoch - 1)];
    const std::vector<int64_t> drawn = data::EpochOrder(320, 0, epoch);
    const int64_t batch = (std::find(drawn.begin(), drawn.end(), poisoned) - drawn.begin()) / 32;
    EXPECT_EQ(skip.epoch(), epoch);
    EXPECT_EQ(skip.batch(), batch);
    EXPECT_THAT(skip.stage(), AnyOf(v1::OverflowSkip::INPUT, v1::OverflowSkip::FORWARD)) << skip.DebugString();
    EXPECT_EQ(skip.kind(), v1::OverflowSkip::KIND_INF);
    EXPECT_NE(skip.first_tensor(), "");
    EXPECT_FALSE(skip.calibration());
    EXPECT_EQ(skip.scale_after(), skip.scale_before());
  }
  EXPECT_THAT(recorder.scale_changes(), IsEmpty());
  EXPECT_GT(recorder.evaluations().back().accuracy(), 0.9);
  ExpectFiniteModel(folder.path() + "/checkpoints/step-000000050");
}

TEST(Overflow, TheSameSampleIsHarmlessInBf16) {
  const ScratchFolder folder;
  WriteQuadrantSets(folder.path(), 50, 1e6f);
  Recorder recorder;
  ASSERT_TRUE(Train(Spec({kQuadrants, "precision { mode: BF16 }"}), Options(folder.path()), &recorder).ok());
  EXPECT_THAT(recorder.skips(), IsEmpty());
}

TEST(Overflow, AnEvaluationWithoutANumberIsTold) {
  const ScratchFolder folder;
  WriteQuadrantSets(folder.path(), 50, 1e6f);
  // What trains without the poison, and what evaluates with it.
  for (const char* name : {"x.npy", "y.npy"}) {
    const std::string train = absl::StrCat(folder.path(), "/", name), eval = absl::StrCat(folder.path(), "/e", name);
    std::filesystem::rename(train, train + ".old");
    std::filesystem::rename(eval, train);
    std::filesystem::rename(train + ".old", eval);
  }
  Recorder recorder;
  const auto outcome = Train(Spec({kQuadrants, "precision { mode: FP16 }"}), Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(std::isnan(recorder.evaluations().back().loss()));
  std::vector<std::string> lines;
  for (const v1::LogLine& line : recorder.logs()) lines.push_back(line.text());
  EXPECT_THAT(lines, testing::Contains(HasSubstr("the loss of the evaluation after step ")));
}

TEST(Overflow, ANanInTheDataFailsTheJobAndNamesTheSample) {
  const ScratchFolder folder;
  WriteQuadrantSets(folder.path(), 123, std::nanf(""));
  Recorder recorder;
  const auto outcome = Train(Spec({kQuadrants, "precision { mode: FP16 }"}), Options(folder.path()), &recorder);
  ASSERT_FALSE(outcome.ok());
  const v1::Failure failure = FailureOf(outcome.status());
  EXPECT_EQ(failure.class_(), v1::Failure::DATA);
  EXPECT_THAT(failure.message(), HasSubstr("sample 123"));
  EXPECT_THAT(failure.message(), HasSubstr("x.npy"));
}

TEST(Divergence, WeightsThatOverflowEndTheJob) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec =
      Spec({kConvNet, kGlyphs, kEveryStep, "train { epochs: 50 } optimizer { sgd { learning_rate: 1e30 } }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  ASSERT_THAT(recorder.skips(), SizeIs(100));
  EXPECT_EQ(recorder.steps().size(), 101u);
  EXPECT_FALSE(recorder.skips()[0].calibration());
}

TEST(Divergence, OverflowAtTheSmallestScaleEndsTheJob) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, "precision { mode: FP16 loss_scale { init: 1e30 min: 2.6e29 } }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  EXPECT_THAT(recorder.skips(), SizeIs(3));
}

TEST(Divergence, AStaticScaleThatNeverFitsEndsTheJob) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec(
      {kConvNet, kGlyphs, "train { epochs: 50 }", "precision { mode: FP16 loss_scale { kind: STATIC init: 1e30 } }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  EXPECT_THAT(recorder.skips(), SizeIs(101));
}

TEST(Limits, TooManySkipsEndTheJob) {
  const ScratchFolder folder;
  const int poisoned = static_cast<int>(data::EpochOrder(320, 0, 1)[100]);
  WriteQuadrantSets(folder.path(), poisoned, 1e6f);
  Recorder recorder;
  const auto spec =
      Spec({kQuadrants, "precision { mode: FP16 }", "limits { max_skip_ratio: 0.05 skip_window_steps: 30 }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::LIMIT) << outcome.status();
  EXPECT_THAT(recorder.skips(), SizeIs(2));
}

}  // namespace
}  // namespace ampd::train
