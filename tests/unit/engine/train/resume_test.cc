// The same bits: from run to run at equal threads, and across a stop and a resume after any step.
#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "engine/train/checkpoint.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/models/onnx/build_model.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

// Two epochs of ten steps, each of two micro-batches, with an evaluation behind each epoch.
const std::string kTwentySteps =
    "data { train { glyphs { samples: 320 } } eval { glyphs { samples: 50 } }"
    "       image { random_flip: true random_crop_padding: 2 } }"
    "train { batch_size: 32 micro_batch_size: 16 epochs: 2 } report { every_steps: 1 } seed: 5";
constexpr int64_t kSteps = 20;

const std::string kMlp =
    "model { layers { flatten {} } layers { dense { units: 12 activation: GELU } }"
    "        layers { dense { units: 16 activation: RELU } } layers { dropout { rate: 0.2 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kConvNet =
    "model { layers { conv2d { filters: 4 kernel: 3 stride: 3 } } layers { name: 'bn' batch_norm {} } layers { relu {} "
    "}"
    "        layers { conv2d { filters: 6 kernel: 3 stride: 2 } } layers { batch_norm {} } layers { dropout { rate: "
    "0.1 } }"
    "        layers { global_avg_pool {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kLstm =
    "model { layers { max_pool { size: 4 } } layers { lstm { units: 6 layers: 2 dropout: 0.2 output: LAST_STEP } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";

// Overflows at first, then grows, and overflows again.
const std::string kScaled = "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 3 hysteresis: 2 } }";

struct Job {
  std::string name;
  std::vector<std::string> parts;
  bool skips = false;
};

std::vector<Job> Jobs() {
  return {
      {"MlpFp16", {kMlp, kScaled, "optimizer { sgd { learning_rate: 0.1 momentum: 0.9 } ema {} }"}, true},
      {"MlpFp8", {kMlp, "precision { mode: FP8 } optimizer { adamw {} schedule { cosine { warmup_steps: 4 } } }"}},
      {"ConvNetFp32", {kConvNet, "optimizer { rmsprop { momentum: 0.5 } ema { decay: 0.5 evaluate: true } }"}},
      {"ConvNetFp16", {kConvNet, kScaled, "optimizer { lamb { learning_rate: 0.01 } clip_global_norm: 1 }"}, true},
      {"ConvNetBf16", {kConvNet, "precision { mode: BF16 } optimizer { adam {} schedule { one_cycle {} } }"}},
      {"LstmTf32", {kLstm, "precision { mode: TF32 } optimizer { adagrad {} }"}},
      {"LstmBf16", {kLstm, "precision { mode: BF16 master_weights: false } optimizer { adamw {} ema {} }"}},
      {"LstmFp16", {kLstm, kScaled, "optimizer { adamw { learning_rate: 0.01 } }"}, true},
  };
}

// Another file at the path may be another network with tensors of the same names.
TEST(Resume, OfAnOnnxFileNeedsTheFileThatWasTrained) {
  const auto write = [](const std::string& folder, const std::string& activation) {
    ::onnx::ModelProto m = models::onnx::EmptyModel();
    models::onnx::AddInput(&m, "x", {-1, 4});
    *m.mutable_graph()->add_initializer() = models::onnx::Floats("w", {4, 2});
    models::onnx::AddNode(&m, activation, {"x"}, {"a"});
    models::onnx::AddNode(&m, "MatMul", {"a", "w"}, {"y"});
    models::onnx::AddOutput(&m, "y");
    std::ofstream(folder + "/net.onnx", std::ios::binary) << m.SerializeAsString();
  };
  const ScratchFolder folder;
  WriteNpy<float>(folder.path() + "/x.npy", "<f4", {64, 4}, std::vector<float>(256, 0.5f));
  WriteNpy<int32_t>(folder.path() + "/y.npy", "<i4", {64}, std::vector<int32_t>(64, 1));
  const ResolvedJobSpec spec =
      Spec({"data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 epochs: 2 }"
            "model { onnx { path: 'net.onnx' } loss { softmax_cross_entropy {} } } report { every_steps: 1 }"});
  const TrainerOptions options = Options(folder.path());
  write(folder.path(), "Relu");
  Recorder first, second, third;
  ASSERT_TRUE(Train(spec, options, &first, 4).ok());
  write(folder.path(), "Tanh");
  const auto other = Train(spec, options, &second);
  EXPECT_EQ(FailureOf(other.status()).class_(), v1::Failure::DATA) << other.status();
  EXPECT_THAT(std::string(other.status().message()), testing::HasSubstr("net.onnx is another file than the one that"));
  write(folder.path(), "Relu");
  const auto same = Train(spec, options, &third);
  EXPECT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(third.steps().empty());
}

// A weight that the file begins with finite and an update leaves infinite; one that was infinite in the file may stay
// so.
TEST(Training, OfAnOnnxFileEndsWhereAnUpdateLeavesWeightsInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto train = [&](float unused, const std::string& rate) {
    ::onnx::ModelProto m = models::onnx::EmptyModel();
    models::onnx::AddInput(&m, "x", {-1, 4});
    *m.mutable_graph()->add_initializer() = models::onnx::Floats("w", {4, 2});
    ::onnx::TensorProto low = models::onnx::Floats("low", {1, 2});
    for (float& value : *low.mutable_float_data()) value = unused;
    *m.mutable_graph()->add_initializer() = low;
    models::onnx::AddNode(&m, "MatMul", {"x", "w"}, {"a"});
    models::onnx::AddNode(&m, "Max", {"a", "low"}, {"y"});
    models::onnx::AddOutput(&m, "y");
    const ScratchFolder folder;
    std::ofstream(folder.path() + "/net.onnx", std::ios::binary) << m.SerializeAsString();
    WriteNpy<float>(folder.path() + "/x.npy", "<f4", {8, 4}, std::vector<float>(32, 1e10f));
    WriteNpy<int32_t>(folder.path() + "/y.npy", "<i4", {8}, std::vector<int32_t>(8, 0));
    Recorder recorder;
    return Train(Spec({"data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } train { batch_size: 8 steps: 1 }"
                       "model { onnx { path: 'net.onnx' } loss { softmax_cross_entropy {} } }"
                       "precision { mode: FP32 } optimizer { sgd { learning_rate: " +
                       rate + " } }"}),
                 Options(folder.path()), &recorder);
  };
  const auto outcome = train(-1, "1e30");
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), testing::HasSubstr("w is not finite"));
  const auto masked = train(-kInfinity, "1e-20");
  EXPECT_TRUE(masked.ok()) << masked.status();
}

class SameBits : public testing::TestWithParam<Job> {
 protected:
  static ResolvedJobSpec JobSpec() {
    std::vector<std::string> parts = GetParam().parts;
    parts.push_back(kTwentySteps);
    return Spec(parts);
  }

  // The checksums of weights, moments, average, statistics, amax histories, scaler and counters.
  static std::string Manifest(const std::string& folder) {
    return ReadFile(folder + "/checkpoints/" + CheckpointName(kSteps) + "/MANIFEST", 1 << 16).value_or("none");
  }

  // What was told, but for times.
  static std::vector<std::string> Told(const Recorder& recorder) {
    std::vector<std::string> told;
    for (const v1::StepReport& step : recorder.steps()) told.push_back(step.phases(0).SerializeAsString());
    for (const v1::OverflowSkip& skip : recorder.skips()) told.push_back(skip.ShortDebugString());
    for (const v1::LossScaleChange& change : recorder.scale_changes()) told.push_back(change.ShortDebugString());
    for (const v1::Evaluation& evaluation : recorder.evaluations()) told.push_back(evaluation.ShortDebugString());
    return told;
  }
};

TEST_P(SameBits, FromRunToRun) {
  for (int threads : {1, 2}) {
    const ScratchFolder first, second;
    Recorder a, b;
    for (const auto& [folder, recorder] : {std::pair{&first, &a}, std::pair{&second, &b}}) {
      TrainerOptions options = Options(folder->path());
      options.threads = threads;
      const auto outcome = Train(JobSpec(), options, recorder);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
    }
    EXPECT_EQ(Told(a), Told(b)) << threads << " threads";
    EXPECT_EQ(Manifest(first.path()), Manifest(second.path())) << threads << " threads";
  }
}

TEST_P(SameBits, AcrossAResumeAfterAnyStep) {
  const ScratchFolder folder;
  Recorder whole;
  ASSERT_TRUE(Train(JobSpec(), Options(folder.path()), &whole).ok());
  ASSERT_EQ(whole.steps().size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(whole.evaluations().size(), 2u);
  if (GetParam().skips) {
    const auto grows = [](const v1::LossScaleChange& c) { return c.scale_after() > c.scale_before(); };
    const auto changes = whole.scale_changes();
    EXPECT_GE(whole.skips().size(), 3u);
    EXPECT_GE(std::count_if(changes.begin(), changes.end(), grows), 2);
  }
  for (int64_t stop = 1; stop < kSteps; ++stop) {
    SCOPED_TRACE(stop);
    const ScratchFolder parts;
    Recorder recorder;
    auto outcome = Train(JobSpec(), Options(parts.path()), &recorder, stop);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(*outcome, Outcome::kStopped);
    ASSERT_EQ(recorder.steps().size(), static_cast<size_t>(stop));
    TrainerOptions options = Options(parts.path());
    options.last_reported_step = stop;
    outcome = Train(JobSpec(), options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(Told(recorder), Told(whole));
    EXPECT_EQ(Manifest(parts.path()), Manifest(folder.path()));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, SameBits, testing::ValuesIn(Jobs()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::train
