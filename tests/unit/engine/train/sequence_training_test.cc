// Training on samples of different lengths: buckets, masks, and label sequences.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "engine/train/files.h"
#include "engine/train/label_errors.h"
#include "engine/train/micro_batches.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBatch = 6, kFeatures = 4, kClasses = 5, kLabels = 3;

const std::string kTag =
    "layers { name: 'rnn' lstm { units: 6 layers: 2 bidirectional: true dropout: 0.3 } }"
    "layers { name: 'head' dense { units: 5 } }";
const std::string kLast =
    "layers { name: 'rnn' gru { units: 6 bidirectional: true bias: false output: LAST_STEP } }"
    "layers { name: 'head' dense { units: 5 } }";
const std::string kAttend =
    "layers { name: 'in' dense { units: 8 } } layers { name: 'where' positional_embedding { positions: 24 } }"
    "layers { name: 'attend' multi_head_attention { heads: 2 } } layers { name: 'drop' dropout { rate: 0.2 } }"
    "layers { name: 'sum' add {} inputs: 'where' inputs: 'drop' } layers { name: 'ln' layer_norm {} }"
    "layers { name: 'rnn' gru { units: 6 } } layers { name: 'head' dense { units: 5 } }";

// What pads the samples is not zero and, behind a bias, no convolution's result there is.
const std::string kConvolve =
    "layers { name: 'c1' conv2d { filters: 4 kernel: [ 5, 3 ] stride: [ 2, 1 ] padding: SAME activation: RELU } }"
    "layers { name: 'ln' layer_norm {} }"
    "layers { name: 'c2' conv2d { filters: 6 kernel: 3 pads: 1 stride: [ 1, 2 ] activation: GELU } }"
    "layers { name: 'side' conv2d { filters: 6 kernel: 1 stride: [ 1, 2 ] } inputs: 'ln' }"
    "layers { name: 'sum' add {} inputs: 'c2' inputs: 'side' }"
    "layers { name: 'rnn' gru { units: 6 bidirectional: true } } layers { name: 'head' dense { units: 5 } }";
// A stride that does not divide the buckets, and windows within the samples alone.
const std::string kStrides =
    "layers { name: 'c1' conv2d { filters: 6 kernel: [ 4, 2 ] stride: [ 3, 1 ] padding: SAME } }"
    "layers { name: 'pool' max_pool { size: [ 1, 2 ] stride: [ 1, 1 ] padding: SAME } }"
    "layers { name: 'rnn' lstm { units: 6 bidirectional: true output: LAST_STEP } } layers { name: 'head' dense { "
    "units: 5 } }";
const std::string kWindows =
    "layers { name: 'c1' conv2d { filters: 6 kernel: [ 2, 4 ] } }"
    "layers { name: 'pool' avg_pool { size: [ 2, 1 ] stride: [ 1, 1 ] } }"
    "layers { name: 'rnn' lstm { units: 6 output: LAST_STEP } } layers { name: 'head' dense { units: 5 } }";

struct Job {
  std::string layers, loss;
  bool a_label_each_step = false, spelled = false;
};

const std::vector<Job> kJobs = {{kTag, "softmax_cross_entropy { label_smoothing: 0.1 }", true, false},
                                {kLast, "softmax_cross_entropy {}", false, false},
                                {kAttend, "softmax_cross_entropy {}", true, false},
                                {kAttend, "ctc { blank: 4 }", false, true},
                                {kConvolve, "ctc { blank: 4 }", false, true},
                                {kStrides, "softmax_cross_entropy {}", false, false},
                                {kWindows, "softmax_cross_entropy {}", false, false}};

models::SampleInfo SampleOf(const Job& job) {
  models::SampleInfo sample{.input_shape = {24, kFeatures}, .classes = kClasses};
  if (job.a_label_each_step) sample.label_shape = {24};
  if (job.spelled) sample.label_shape = {kLabels};
  sample.label_lengths = job.spelled;
  sample.lengths = true;
  sample.buckets = {8, 16, 24};
  return sample;
}

// Samples of 3 to 8 steps; what pads them to `time` is not zero.
data::Batch MakeBatch(const Job& job, size_t bucket, int64_t time) {
  data::Batch batch;
  batch.bucket = bucket;
  batch.valid = kBatch;
  batch.inputs = Tensor(DType::kF32, {kBatch, time, kFeatures});
  batch.lengths = Tensor(DType::kI32, {kBatch});
  batch.label_lengths = Tensor(DType::kI32, {kBatch});
  const int64_t labels = job.a_label_each_step ? time : job.spelled ? kLabels : 1;
  batch.labels = Tensor(DType::kI32, labels == 1 ? Shape{kBatch} : Shape{kBatch, labels});
  for (int64_t i = 0; i < kBatch; ++i) {
    const int64_t length = 3 + i;
    batch.lengths.as<int32_t>()[i] = static_cast<int32_t>(length);
    batch.label_lengths.as<int32_t>()[i] = static_cast<int32_t>(1 + i % 2);
    for (int64_t t = 0; t < time; ++t) {
      for (int64_t f = 0; f < kFeatures; ++f) {
        const float value = static_cast<float>((i * 31 + t * 7 + f * 3) % 13) / 6 - 1;
        batch.inputs.as<float>()[(i * time + t) * kFeatures + f] = t < length ? value : 7.0f;
      }
    }
    for (int64_t p = 0; p < labels; ++p) {
      const bool counts = !job.a_label_each_step || p < length;
      batch.labels.as<int32_t>()[i * labels + p] = counts ? static_cast<int32_t>((i + 2 * p) % 4) : -1;
    }
  }
  return batch;
}

std::string SpecText(const Job& job, const std::string& mode) {
  return absl::StrCat("model { ", job.layers, " loss { ", job.loss, " } } precision { mode: ", mode,
                      " } data { train { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' } } } train { "
                      "batch_size: 6 micro_batch_size: 3 }");
}

class SequenceModes : public testing::TestWithParam<const char*> {};

TEST_P(SequenceModes, AShortBucketComputesWhatTheLongestDoes) {
  const bool fp32 = std::string(GetParam()) == "FP32";
  for (const Job& job : kJobs) {
    SCOPED_TRACE(job.layers + job.loss);
    auto plan = PlanModel(Spec({SpecText(job, GetParam())}), SampleOf(job), MakeBackend("cpu-0", 1).value(), 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ((*plan)->phases[0].plans.size(), 3u);
    EXPECT_LT((*plan)->phases[0].plans[0].arena_bytes, (*plan)->phases[0].plans[2].arena_bytes);
    const std::unique_ptr<LoadedModel> loaded = LoadedModel::Create(**plan).value();
    LoadedModel& model = *loaded;
    EXPECT_TRUE(model.memory.Initialize(3).ok());
    ASSERT_TRUE(model.memory.PublishAll().ok());
    const MicroBatches step(plan->get(), &model, kBatch, 3);
    std::vector<double> losses;
    std::vector<std::vector<float>> gradients;
    for (size_t bucket : {0, 1, 2}) {
      const auto loss = step.Run(MakeBatch(job, bucket, SampleOf(job).buckets[bucket]), {.seed = 5}, 1);
      ASSERT_TRUE(loss.ok()) << loss.status();
      losses.push_back(*loss);
      gradients.emplace_back(model.memory.gradients(), model.memory.gradients() + (*plan)->layout.arena_elements());
    }
    double norm = 0;
    for (float g : gradients[2]) norm += static_cast<double>(g) * static_cast<double>(g);
    ASSERT_GT(norm, 1e-4);
    for (size_t bucket : {0, 1}) {
      EXPECT_NEAR(losses[bucket], losses[2], (fp32 ? 1e-6 : 1e-2) * std::fabs(losses[2]));
      for (size_t i = 0; i < gradients[2].size(); ++i) {
        EXPECT_NEAR(gradients[bucket][i], gradients[2][i], (fp32 ? 2e-6 : 2e-2) * std::sqrt(norm))
            << bucket << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SequenceModes, testing::Values("FP32", "BF16", "FP8"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SequencePlan, RefusesParametersThatDependOnTime) {
  Job job{"layers { name: 'where' positional_embedding { positions: 20 } } " + kTag, "softmax_cross_entropy {}", true};
  const auto plan = PlanModel(Spec({SpecText(job, "FP32")}), SampleOf(job), MakeBackend("cpu-0", 1).value(), 1);
  EXPECT_FALSE(plan.ok());
}

// 75 samples of 1 to 40 steps: noise and, from the second step to the last but one, the marks of one to three labels.
void WriteData(const std::string& folder, const std::string& prefix, uint64_t seed) {
  constexpr int64_t kSamples = 75, kTime = 43;
  RngSequence rng(seed, "test");
  std::vector<float> x(kSamples * kTime * kFeatures, 0);
  std::vector<int32_t> n, y(kSamples * kLabels, -1), m, steps(kSamples * kTime, -1);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t length = 6 + static_cast<int64_t>(rng.NextBelow(35)),
                  labels = 1 + static_cast<int64_t>(rng.NextBelow(3));
    n.push_back(static_cast<int32_t>(length));
    m.push_back(static_cast<int32_t>(labels));
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t f = 0; f < kFeatures; ++f) {
        x[(i * kTime + t) * kFeatures + f] = 0.2f * (rng.NextUniform() - 0.5f);
      }
      steps[i * kTime + t] = static_cast<int32_t>(kFeatures);
    }
    for (int64_t p = 0; p < labels; ++p) {
      const int32_t label = static_cast<int32_t>(rng.NextBelow(kFeatures));
      const int64_t t = 1 + p * 2;
      y[i * kLabels + p] = label;
      x[(i * kTime + t) * kFeatures + label] = 2;
      steps[i * kTime + t] = label;
    }
  }
  WriteNpy(folder + "/" + prefix + "x.npy", "<f4", {kSamples, kTime, kFeatures}, x);
  WriteNpy(folder + "/" + prefix + "n.npy", "<i4", {kSamples}, n);
  WriteNpy(folder + "/" + prefix + "y.npy", "<i4", {kSamples, kLabels}, y);
  WriteNpy(folder + "/" + prefix + "m.npy", "<i4", {kSamples}, m);
  WriteNpy(folder + "/" + prefix + "steps.npy", "<i4", {kSamples, kTime}, steps);
}

const std::string kCtcData =
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' target_lengths: 'm.npy' } }"
    "       eval { npy { inputs: 'ex.npy' targets: 'ey.npy' lengths: 'en.npy' target_lengths: 'em.npy' } } }";
const std::string kStepData =
    "data { train { npy { inputs: 'x.npy' targets: 'steps.npy' lengths: 'n.npy' } }"
    "       eval { npy { inputs: 'ex.npy' targets: 'esteps.npy' lengths: 'en.npy' } } }";
const std::string kSmall =
    "model { layers { name: 'rnn' gru { units: 16 bidirectional: true } } layers { name: 'drop' dropout { rate: 0.1 } }"
    "        layers { name: 'head' dense { units: 5 } } ";
const std::string kTraining =
    "train { batch_size: 8 micro_batch_size: 4 epochs: 8 } report { every_steps: 1 }"
    "optimizer { adam { learning_rate: 0.01 } }";

TEST(SequenceTraining, LearnsToSpell) {
  const ScratchFolder folder;
  WriteData(folder.path(), "", 1);
  WriteData(folder.path(), "e", 2);
  Recorder recorder;
  const auto outcome = Train(
      Spec({kSmall + "loss { ctc { blank: 4 } } }", kCtcData, kTraining, "train { epochs: 60 eval_every_epochs: 30 }"}),
      Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  // Nine whole batches an epoch, as without buckets.
  ASSERT_EQ(recorder.losses().size(), 540u);
  EXPECT_EQ(recorder.evaluations().back().samples(), 75);
  EXPECT_LT(recorder.evaluations().back().loss(), 0.5 * recorder.evaluations().front().loss());
  EXPECT_LT(recorder.evaluations().back().metrics().at("label_error_rate"), 0.3);
  EXPECT_EQ(recorder.evaluations().back().metrics().count("accuracy"), 0u);
}

// The evaluation decodes the steps that the strides leave: more would add labels, fewer would lose some.
TEST(SequenceTraining, DecodesTheStepsThatConvolutionsLeave) {
  const std::string model =
      "model { layers { name: 'conv' conv2d { filters: 8 kernel: 3 pads: 1 stride: [ 2, 1 ] activation: RELU } }"
      "        layers { name: 'rnn' gru { units: 16 bidirectional: true } } layers { name: 'head' dense { units: 5 } "
      "} ";
  const ScratchFolder folder;
  WriteData(folder.path(), "", 1);
  WriteData(folder.path(), "e", 2);
  Recorder recorder;
  const auto outcome = Train(Spec({model + "loss { ctc { blank: 4 zero_infinity: true beam_width: 8 } } }", kCtcData,
                                   kTraining, "train { epochs: 60 eval_every_epochs: 30 }"}),
                             Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto metrics = recorder.evaluations().back().metrics();
  EXPECT_LT(metrics.at("label_error_rate"), 0.4);
  EXPECT_GT(metrics.at("exact_match"), 0.3);
  EXPECT_LE(metrics.at("beam_label_error_rate"), metrics.at("label_error_rate") + 0.1);
  EXPECT_GE(metrics.at("beam_exact_match"), metrics.at("exact_match") - 0.1);
}

TEST(SequenceTraining, CountsLabelsOfRealStepsOnly) {
  const ScratchFolder folder;
  WriteData(folder.path(), "", 1);
  WriteData(folder.path(), "e", 2);
  Recorder recorder;
  const auto outcome = Train(Spec({kSmall + "loss { softmax_cross_entropy {} } }", kStepData, kTraining}),
                             Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GT(recorder.evaluations().back().accuracy(), 0.95);
  EXPECT_LT(recorder.evaluations().back().loss(), 0.2);
}

TEST(SequenceTraining, ResumesBitForBit) {
  const auto spec = Spec({kSmall + "loss { ctc { blank: 4 } } }", kCtcData, kTraining, "train { epochs: 2 }"});
  const ScratchFolder folder;
  WriteData(folder.path(), "", 1);
  WriteData(folder.path(), "e", 2);
  Recorder whole;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  for (int64_t stop : {1, 8, 9, 14}) {
    const ScratchFolder parts;
    WriteData(parts.path(), "", 1);
    WriteData(parts.path(), "e", 2);
    Recorder recorder;
    ASSERT_TRUE(Train(spec, Options(parts.path()), &recorder, stop).ok());
    ASSERT_TRUE(Train(spec, Options(parts.path()), &recorder).ok());
    EXPECT_EQ(recorder.losses(), whole.losses());
    const std::string manifest = "/checkpoints/step-000000018/MANIFEST";
    EXPECT_EQ(*ReadFile(parts.path() + manifest, 1 << 16), *ReadFile(folder.path() + manifest, 1 << 16)) << stop;
  }
}

TEST(SequenceTraining, RefusesWhatDoesNotFit) {
  const ScratchFolder folder;
  WriteData(folder.path(), "", 1);
  const auto refused = [&](const std::string& loss, const std::string& data) {
    Recorder recorder;
    const auto outcome =
        Train(Spec({kSmall + "loss { " + loss + " } }", data, kTraining}), Options(folder.path()), &recorder);
    return std::string(outcome.status().message());
  };
  const std::string npy = "inputs: 'x.npy' lengths: 'n.npy' ";
  EXPECT_THAT(refused("ctc { blank: 4 }", "data { train { npy { " + npy +
                                              "targets: 'y.npy' target_lengths: 'm.npy' } } "
                                              "length_buckets: [ 16, 24 ] }"),
              HasSubstr("data.length_buckets end at 24, the longest sample has"));
  EXPECT_THAT(refused("softmax_cross_entropy {}", "data { train { npy { " + npy + "targets: 'y.npy' } } }"),
              HasSubstr("has 3 labels a sample of 43 steps"));
  EXPECT_THAT(refused("ctc { blank: 4 }", "data { train { npy { " + npy + "targets: 'y.npy' } } }"),
              HasSubstr("has no label at place"));
}

TEST(LabelErrors, BestPathAndDistance) {
  // Classes over seven steps: 1 1 blank 1 2 2 blank.
  const std::vector<int> path = {1, 1, 0, 1, 2, 2, 0};
  std::vector<float> logits(path.size() * 3, 0);
  for (size_t t = 0; t < path.size(); ++t) logits[t * 3 + path[t]] = 1;
  EXPECT_THAT(BestPathLabels(logits, 3, 0), ElementsAre(1, 1, 2));
  const std::vector<int32_t> kitten = {1, 2, 3, 3, 4, 5}, sitting = {6, 2, 3, 3, 2, 5, 7}, none;
  EXPECT_EQ(EditDistance(kitten, sitting), 3);
  EXPECT_EQ(EditDistance(none, sitting), 7);
  EXPECT_EQ(EditDistance(sitting, none), 7);
}

void WriteNumber(std::ofstream& file, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) file.put(static_cast<char>(value >> (8 * i)));
}

// PCM of 16 bits at 8 kHz, a tone that rises.
void WriteSound(const std::string& path, int samples, double rise) {
  std::ofstream file(path, std::ios::binary);
  file << "RIFF";
  WriteNumber(file, static_cast<uint64_t>(36 + 2 * samples), 4);
  file << "WAVEfmt ";
  for (const auto& [value, bytes] :
       {std::pair<uint64_t, int>{16, 4}, {1, 2}, {1, 2}, {8000, 4}, {16000, 4}, {2, 2}, {16, 2}}) {
    WriteNumber(file, value, bytes);
  }
  file << "data";
  WriteNumber(file, static_cast<uint64_t>(2 * samples), 4);
  for (int t = 0; t < samples; ++t) {
    WriteNumber(file, static_cast<uint64_t>(static_cast<int64_t>(9000 * std::sin(t * (0.2 + rise * t)))), 2);
  }
}

TEST(SoundTraining, AResumeAndCachesAndDecodingThreadsChangeNoBit) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() + "/set");
  for (int i = 0; i < 12; ++i) {
    WriteSound(folder.path() + "/set/" + (i % 2 == 0 ? "a_" : "b_") + std::to_string(i) + ".wav", 500 + 97 * i,
               1e-5 * i);
  }
  std::ofstream(folder.path() + "/set/a_4.wav") << "no sound";
  const std::string source =
      "{ wav_folder { path: 'set' log_mel { mels: 6 } transcript_by_prefix { key: 'a' value: 'ab' }"
      "               transcript_by_prefix { key: 'b' value: 'c' } } }";
  const std::string job =
      "model { layers { gru { units: 6 } } layers { dense { units: 29 } } loss { ctc {} } } data { train " + source +
      " eval " + source +
      " max_corrupt_ratio: 0.2 } train { batch_size: 4 epochs: 3 } report { every_steps: 1 } seed: 5";
  const auto options = [&](const std::string& run) {
    TrainerOptions options = Options(folder.path());
    options.checkpoint_dir = folder.path() + "/" + run;
    return options;
  };
  Recorder whole;
  const auto outcome = Train(Spec({job}), options("whole"), &whole);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(whole.evaluations().back().samples(), 11);
  for (const std::string how : {"cache { kind: NONE }", "cache { kind: DISK } decode_threads: 3",
                                "cache { kind: MEMORY max_bytes: 1000 } decode_threads: 2"}) {
    const ResolvedJobSpec spec = Spec({job, "data { " + how + " }"});
    const std::string run = "run" + std::to_string(how.size());
    Recorder first, second;
    const auto stopped = Train(spec, options(run), &first, /*stop_at=*/4);
    ASSERT_TRUE(stopped.ok()) << stopped.status();
    ASSERT_TRUE(Train(spec, options(run), &second).ok());
    std::vector<double> losses = first.losses();
    for (double loss : second.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses()) << how;
    EXPECT_EQ(second.evaluations().back().loss(), whole.evaluations().back().loss()) << how;
  }
}

}  // namespace
}  // namespace ampd::train
