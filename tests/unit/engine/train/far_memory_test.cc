// Whole trainings on a backend whose memory the host cannot touch: the same bits as on the CPU's own, and what is said
// when it has too little.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/train/checkpoint.h"
#include "engine/train/files.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/far_memory.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 12;
// Six steps of two micro-batches an epoch, with an evaluation behind each epoch.
const std::string kTwelveSteps =
    "data { train { glyphs { samples: 96 } } eval { glyphs { samples: 40 } } }"
    "train { batch_size: 16 micro_batch_size: 8 epochs: 2 } report { every_steps: 1 } seed: 5";

const std::string kMlp =
    "model { layers { flatten {} } layers { dense { units: 12 activation: GELU } } layers { dropout { rate: 0.2 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kNormed =
    "model { layers { conv2d { filters: 5 kernel: 3 stride: 3 } } layers { batch_norm {} } layers { relu {} }"
    "        layers { conv2d { filters: 6 kernel: 3 stride: 2 } } layers { batch_norm {} }"
    "        layers { global_avg_pool {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kLstm =
    "model { layers { max_pool { size: 4 } } layers { lstm { units: 6 output: LAST_STEP } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
// Overflows at first, then grows, and overflows again: the second time the step is replayed.
const std::string kScaled = "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } }";
const std::string kPair =
    "model { networks { name: 'g' layers { name: 'fc' dense { units: 784 } } }"
    "        networks { name: 'd' layers { flatten {} } layers { name: 'fc' dense { units: 1 } } }"
    "        noise { name: 'z' shape: 3 } }"
    "phases { name: 'critic' trains: 'd' optimizer { adam {} }"
    "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'on_real' network: 'd' inputs: 'data' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 weight: 0.5 } }"
    "phases { name: 'artist' trains: 'g' every: 2 optimizer { sgd { momentum: 0.9 } }"
    "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 } }"
    "data { train { glyphs { samples: 96 } } }"
    "train { batch_size: 16 micro_batch_size: 8 epochs: 2 } report { every_steps: 1 } seed: 5";

// Against one-hot targets; the evaluation makes labels of its own.
const std::string kOneHot =
    "model { layers { flatten {} } layers { dense { units: 10 } } loss { sigmoid_cross_entropy {} } }";
// Plans for buckets of 8 to 24 steps, and best paths that the host reads.
const std::string kSpelling =
    "model { layers { gru { units: 5 bidirectional: true } } layers { positional_embedding { positions: 24 } }"
    "        layers { multi_head_attention { heads: 2 } } layers { dense { units: 5 } } loss { ctc { blank: 4 } } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' target_lengths: 'm.npy' } }"
    "       eval { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' target_lengths: 'm.npy' } } }"
    "train { batch_size: 16 micro_batch_size: 8 epochs: 2 } report { every_steps: 1 } seed: 5";

// For kSpelling.
void WriteSequences(const std::string& folder) {
  constexpr int64_t kSamples = 96, kTime = 20, kFeatures = 4, kLabels = 3;
  std::vector<float> x(kSamples * kTime * kFeatures);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 23) / 12 - 1;
  std::vector<int32_t> y(kSamples * kLabels), n(kSamples), m(kSamples);
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int32_t>(i * 5 % 4);
  for (size_t i = 0; i < n.size(); ++i) {
    n[i] = 6 + static_cast<int32_t>(i * 11 % 15);
    m[i] = 1 + static_cast<int32_t>(i % 3);
  }
  WriteNpy(folder + "/x.npy", "<f4", {kSamples, kTime, kFeatures}, x);
  WriteNpy(folder + "/y.npy", "<i4", {kSamples, kLabels}, y);
  WriteNpy(folder + "/n.npy", "<i4", {kSamples}, n);
  WriteNpy(folder + "/m.npy", "<i4", {kSamples}, m);
}

struct Job {
  std::string name;
  std::vector<std::string> parts;
  passes::PaddingPolicy padding = {};
  // Events without which the job would not test what it is for: skips that were replayed, and others.
  int replays = 0;
  int diagnostics = 0;
  int fall_backs = 0;
};

void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

std::vector<Job> Jobs() {
  return {
      {.name = "Mlp",
       .parts = {kMlp, "optimizer { adamw {} ema { decay: 0.5 evaluate: true } clip_global_norm: 1 }", kTwelveSteps}},
      {.name = "Adagrad", .parts = {kMlp, "optimizer { adagrad { initial_accumulator: 0.1 } }", kTwelveSteps}},
      {.name = "Normed", .parts = {kNormed, "optimizer { sgd { momentum: 0.9 } }", kTwelveSteps}},
      {.name = "Fp16", .parts = {kNormed, kScaled, "optimizer { adam {} }", kTwelveSteps}, .replays = 1},
      {.name = "Fp8", .parts = {kMlp, "precision { mode: FP8 } optimizer { adamw {} }", kTwelveSteps}},
      {.name = "NoMasters",
       .parts = {kLstm, "precision { mode: BF16 master_weights: false } optimizer { lamb {} }", kTwelveSteps}},
      {.name = "Padded",
       .parts = {kNormed, "precision { mode: FP16 } optimizer { adam {} }", kTwelveSteps},
       .padding = passes::kTensorCorePadding},
      {.name = "FallsBack",
       .parts = {kMlp, "precision { mode: FP16 loss_scale { init: 1e9 min: 5e8 on_floor: FALLBACK_BF16 } }",
                 "optimizer { adam {} ema {} }", kTwelveSteps},
       .fall_backs = 1},
      {.name = "Phases", .parts = {kPair}},
      {.name = "OneHot", .parts = {kOneHot, "optimizer { rmsprop {} }", kTwelveSteps}},
      {.name = "Spelling", .parts = {kSpelling, "optimizer { adam {} }"}},
      {.name = "Diagnostics",
       .parts = {kNormed, "precision { mode: FP16 } report { diagnostics_every_steps: 4 }", kTwelveSteps},
       .diagnostics = 3},
  };
}

class FarMemory : public ::testing::TestWithParam<Job> {
 protected:
  // What was told, but for times.
  static std::vector<std::string> Told(const Recorder& recorder) {
    std::vector<std::string> told;
    for (const v1::JobEvent& event : recorder.events) {
      if (event.has_step()) {
        for (const v1::PhaseReport& phase : event.step().phases()) told.push_back(phase.SerializeAsString());
      } else if (event.has_checkpoint()) {
        told.push_back(event.checkpoint().checkpoint());
      } else {
        v1::JobEvent without_time = event;
        without_time.clear_time();
        told.push_back(without_time.ShortDebugString());
      }
    }
    return told;
  }
  // The checksums of weights, moments, average, statistics, histories, scaler and counters.
  static std::string Manifest(const ScratchFolder& folder) {
    return ReadFile(folder.path() + "/checkpoints/" + CheckpointName(kSteps) + "/MANIFEST", 1 << 16).value_or("none");
  }
  static TrainerOptions Near(const ScratchFolder& folder) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.make_backend = [padding = GetParam().padding] { return MakeCpuBackend(1, padding); };
    return options;
  }
  static TrainerOptions Far(const ScratchFolder& folder) {
    WriteSequences(folder.path());
    TrainerOptions options = Options(folder.path());
    options.make_backend = [padding = GetParam().padding] {
      return testing::MakeFarMemoryBackend(1, {.padding = padding});
    };
    return options;
  }
};

TEST_P(FarMemory, GivesTheBitsOfTheHosts) {
  const ScratchFolder near_folder, far_folder;
  Recorder near, far;
  const auto on_host = Train(Spec(GetParam().parts), Near(near_folder), &near);
  ASSERT_TRUE(on_host.ok()) << on_host.status();
  const auto on_device = Train(Spec(GetParam().parts), Far(far_folder), &far);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  EXPECT_EQ(Told(far), Told(near));
  EXPECT_EQ(Manifest(far_folder), Manifest(near_folder));
  EXPECT_NE(Manifest(far_folder), "none");
  const auto count = [&near](const auto& is) { return std::count_if(near.events.begin(), near.events.end(), is); };
  using Event = v1::JobEvent;
  EXPECT_GE(count([](const Event& e) { return e.has_overflow_skip() && !e.overflow_skip().calibration(); }),
            GetParam().replays);
  EXPECT_GE(count([](const Event& e) { return e.has_gradient_diagnostics(); }), GetParam().diagnostics);
  EXPECT_GE(count([](const Event& e) { return e.has_precision_change(); }), GetParam().fall_backs);
}

TEST_P(FarMemory, ResumesFromTheCheckpointOfTheHosts) {
  const ScratchFolder whole_folder, parts_folder;
  Recorder whole, parts;
  ASSERT_TRUE(Train(Spec(GetParam().parts), Near(whole_folder), &whole).ok());
  auto outcome = Train(Spec(GetParam().parts), Near(parts_folder), &parts, 7);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  outcome = Train(Spec(GetParam().parts), Far(parts_folder), &parts);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Manifest(parts_folder), Manifest(whole_folder));
}

INSTANTIATE_TEST_SUITE_P(Jobs, FarMemory, ::testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

ResolvedJobSpec MlpSpec() { return Spec({kMlp, "optimizer { adamw {} ema {} }", kTwelveSteps}); }

std::unique_ptr<PlannedModel> PlanMlp(testing::FarMemoryOptions options) {
  return PlanModel(MlpSpec(), {.input_shape = {28, 28, 1}, .classes = 10}, testing::MakeFarMemoryBackend(1, options), 1)
      .value();
}

TEST(FarMemoryDeathTest, TheHostCannotReadIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto plan = PlanMlp({});
  const auto model = LoadedModel::Create(*plan);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_DEATH(
      {
        volatile float sink = *(*model)->memory.masters();
        (void)sink;
      },
      "");
}

TEST(TooLittleMemory, WhatFailsIsToldWithWhatThePlanPredicted) {
  int failures = 0;
  for (int nth = 1;; ++nth) {
    const auto plan = PlanMlp({.fail_allocation = nth});
    const auto model = LoadedModel::Create(*plan);
    if (model.ok()) break;
    ++failures;
    EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
    const std::string message(model.status().message());
    EXPECT_THAT(message,
                HasSubstr(absl::StrCat("(", plan->parameter_bytes(), " for parameters, ", plan->activation_bytes(),
                                       " for activations, ", plan->input_bytes(), " for batches and constants)")));
    EXPECT_THAT(message, HasSubstr(": asked for "));
    EXPECT_THAT(message, HasSubstr(", 0 are free"));
  }
  // Masters, gradients, copies, state twice, moments, average, arena and more.
  EXPECT_GE(failures, 10);
}

TEST(TooLittleMemory, APlanBeyondTheDeviceIsRefusedWithBothFigures) {
  const auto plan = PlanMlp({.total_bytes = 4096});
  const auto model = LoadedModel::Create(*plan);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("the cpu device has 4096"));
}

TEST(TooLittleMemory, EndsATrainingWithItsStatus) {
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = [] { return testing::MakeFarMemoryBackend(1, {.fail_allocation = 2}); };
  Recorder recorder;
  const auto outcome = Train(MlpSpec(), options, &recorder);
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kResourceExhausted) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("gradients: asked for "));
}

TEST(MakeBackendOption, ItsErrorsAreTheTrainers) {
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  options.make_backend = []() -> absl::StatusOr<std::unique_ptr<runtime::Backend>> {
    return absl::UnavailableError("no such device");
  };
  Recorder recorder;
  EXPECT_EQ(Train(MlpSpec(), options, &recorder).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ampd::train
