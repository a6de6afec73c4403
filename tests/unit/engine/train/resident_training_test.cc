// Trainings of small networks whose steps a CUDA device takes many in one kernel: near those that the host decides step
// by step with every other kernel, decision for decision, and the same bits whether they were interrupted or not.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "engine/backend/cuda/autotune_cache.h"
#include "engine/backend/cuda_backend.h"
#include "engine/core/status.h"
#include "engine/train/captured_steps.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"
#include "engine/train/step_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/device_jobs.h"

namespace ampd::train {
namespace {

constexpr int64_t kSide = 12;
const std::string kTwelveSteps =
    "data { train { glyphs { samples: 96 } } eval { glyphs { samples: 40 } } image { size: 12 } }"
    "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } checkpoint { every_steps: 5 } seed: 5";
const std::string kClassifier =
    "model { layers { flatten {} } layers { dense { units: 12 activation: GELU } } layers { dropout { rate: 0.2 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kSmoothed =
    "model { layers { flatten {} } layers { dense { units: 9 activation: TANH } } layers { dense { units: 10 } }"
    "        loss { softmax_cross_entropy { label_smoothing: 0.1 class_weights: [1, 2, 1, 1, 3, 1, 1, 1, 0.5, 1] } } }";
// With a layer between the first and the last, which alone take 8-bit operands.
const std::string kWide =
    "model { layers { flatten {} } layers { dense { units: 32 activation: RELU } } layers { dense { units: 32 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kMultiLabel =
    "model { layers { flatten {} } layers { dense { units: 10 } } loss { sigmoid_cross_entropy {} } }";

// Every gradient overflows to an infinity, and nothing to a NaN.
const std::string kOneWay =
    "model { layers { dense { units: 1 } } loss { mean_squared_error {} } }"
    "data { train { npy { inputs: 'in.npy' targets: 'far.npy' } } eval { npy { inputs: 'in.npy' targets: 'far.npy' } } "
    "}"
    "precision { mode: FP16 loss_scale { init: 65536 } } optimizer { sgd { learning_rate: 1e-6 } }"
    "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } checkpoint { every_steps: 5 } seed: 5";

// Of 40 outputs, each 1 or -1.
std::string Wide(const std::string& loss, const std::string& rest) {
  return "model { layers { dense { units: 37 activation: TANH bias: false } } layers { dense { units: 40 } } loss { " +
         loss +
         " {} } }"
         "data { train { npy { inputs: 'in.npy' targets: 'wide.npy' } } eval { npy { inputs: 'in.npy' targets: "
         "'wide.npy' } "
         "} }"
         "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } checkpoint { every_steps: 5 } seed: 5 " +
         rest;
}
const std::string kGroups =
    "optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } clip_value: 0.01"
    "            groups { match: '*.weight' weight_decay: 0.3 learning_rate_scale: 0.5 }"
    "            groups { match: '*.bias' weight_decay: 0.1 learning_rate_scale: 3 } }";

std::string Regression(const std::string& loss) {
  return "model { layers { dense { units: 16 activation: RELU } } layers { dense { units: 16 activation: RELU } }"
         "        layers { dense { units: 1 } } loss { " +
         loss +
         " {} } }"
         "data { train { npy { inputs: 'in.npy' targets: 'out.npy' } } eval { npy { inputs: 'in.npy' targets: "
         "'out.npy' } "
         "} }"
         "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } checkpoint { every_steps: 5 } seed: 5";
}

// So many layers that the list of what to do has no room in shared memory.
std::string Deep() {
  std::string layers;
  for (int i = 0; i < 60; ++i) layers += "layers { dense { units: 4 activation: TANH } } ";
  return "model { " + layers +
         "layers { dense { units: 1 } } loss { mean_squared_error {} } }"
         "data { train { npy { inputs: 'in.npy' targets: 'out.npy' } } eval { npy { inputs: 'in.npy' targets: "
         "'out.npy' } } }"
         "train { batch_size: 16 epochs: 2 } report { every_steps: 1 } checkpoint { every_steps: 5 } seed: 5";
}

struct ResidentJob {
  std::string name;
  std::vector<std::string> parts;
  int replays = 0;
  int64_t features = 1;  // of a target that is no label
  // kResident: its dense layers are taken together.
  runtime::StepLaunch launch = runtime::StepLaunch::kResident;
};

void PrintTo(const ResidentJob& job, std::ostream* out) { *out << job.name; }

std::vector<ResidentJob> Jobs() {
  using Launch = runtime::StepLaunch;
  return {
      {.name = "Fp32",
       .parts = {kClassifier, "optimizer { sgd { momentum: 0.9 nesterov: true } }", kTwelveSteps},
       .launch = Launch::kInterpreted},
      {.name = "Bf16",
       .parts = {kClassifier, "precision { mode: BF16 } optimizer { rmsprop { momentum: 0.5 centered: true } }",
                 kTwelveSteps},
       .launch = Launch::kInterpreted},
      {.name = "Fp16",
       .parts = {kClassifier, "precision { mode: FP16 }",
                 "optimizer { adamw { learning_rate: 0.02 weight_decay: 2 } ema { decay: 0.5 evaluate: true } "
                 "clip_global_norm: 1 }",
                 kTwelveSteps},
       .launch = Launch::kInterpreted},
      // Overflows at first, then grows, and overflows again: the second time the device halts, and the host replays.
      {.name = "Overflows",
       .parts = {kClassifier,
                 "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } } optimizer { adam {} }",
                 kTwelveSteps},
       .replays = 1,
       .launch = Launch::kInterpreted},
      {.name = "NoMasters",
       .parts = {kClassifier, "precision { mode: BF16 master_weights: false } optimizer { adam {} }", kTwelveSteps},
       .launch = Launch::kInterpreted},
      {.name = "Smoothed", .parts = {kSmoothed, "optimizer { adagrad {} } precision { mode: FP16 }", kTwelveSteps}},
      {.name = "MultiLabel", .parts = {kMultiLabel, "optimizer { sgd {} } precision { mode: FP16 }", kTwelveSteps}},
      {.name = "Squared",
       .parts = {Regression("mean_squared_error"), "optimizer { adam {} } precision { mode: FP16 }"}},
      {.name = "OneWay", .parts = {kOneWay}},
      {.name = "Absolute", .parts = {Regression("l1"), "optimizer { adam {} } precision { mode: BF16 }"}},
      {.name = "Huber", .parts = {Regression("smooth_l1"), "optimizer { adam {} }"}, .launch = Launch::kInterpreted},
      {.name = "Deep", .parts = {Deep(), "optimizer { sgd { learning_rate: 0.01 } }"}, .launch = Launch::kInterpreted},
      {.name = "GroupsFp32",
       .parts = {Wide("mean_squared_error", kGroups)},
       .features = 40,
       .launch = Launch::kInterpreted},
      {.name = "GroupsFp16",
       .parts = {Wide("mean_squared_error", kGroups), "precision { mode: FP16 }"},
       .features = 40},
      {.name = "Hinge", .parts = {Wide("hinge", "precision { mode: BF16 } optimizer { adam {} }")}, .features = 40},
      {.name = "Ignores",
       .parts = {"model { layers { flatten {} } layers { dense { units: 10 bias: false } }"
                 "        loss { softmax_cross_entropy { ignore_index: 3 } } }",
                 "precision { mode: FP16 } optimizer { adamw {} }", kTwelveSteps}},
      {.name = "Stack",
       .parts = {"model { layers { flatten {} } layers { dense { units: 13 activation: SIGMOID } }"
                 "        layers { dense { units: 40 activation: GELU } } layers { dense { units: 20 bias: false } }"
                 "        layers { dense { units: 9 activation: TANH } } layers { dense { units: 10 } }"
                 "        loss { softmax_cross_entropy {} } }",
                 "precision { mode: BF16 } optimizer { adamw { learning_rate: 0.02 } clip_global_norm: 1 }",
                 kTwelveSteps}},
      {.name = "Activations",
       .parts =
           {"model { layers { flatten {} } layers { dense { units: 13 activation: GELU } }"
            "        layers { dense { units: 40 activation: SILU } } layers { dense { units: 20 activation: GELU_TANH "
            "} }"
            "        layers { dense { units: 16 } } layers { leaky_relu { negative_slope: 0.3 } } layers { dense { "
            "units: 10 } }"
            "        loss { softmax_cross_entropy {} } }",
            "precision { mode: FP16 } optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } }", kTwelveSteps,
            // No whole number of rows' fragments.
            "train { batch_size: 21 epochs: 3 }"}},
      // Its gradients overflow, once again behind a growth of the scale.
      {.name = "StackOverflows",
       .parts = {"model { layers { flatten {} } layers { dense { units: 12 activation: RELU } }"
                 "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }",
                 "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } } optimizer { adam {} }",
                 kTwelveSteps},
       .replays = 1},
      // What has no such kernel, or does not fit, is captured.
      {.name = "MicroBatches",
       .parts = {kClassifier, kTwelveSteps, "train { micro_batch_size: 8 }"},
       .launch = Launch::kCaptured},
      {.name = "Lamb", .parts = {kClassifier, "optimizer { lamb {} }", kTwelveSteps}, .launch = Launch::kCaptured},
      {.name = "Fp8", .parts = {kWide, "precision { mode: FP8 }", kTwelveSteps}, .launch = Launch::kCaptured},
      {.name = "Tf32", .parts = {kClassifier, "precision { mode: TF32 }", kTwelveSteps}, .launch = Launch::kCaptured},
      {.name = "Large",
       .parts = {"model { layers { flatten {} } layers { dense { units: 700 } } layers { dense { units: 10 } }"
                 "        loss { softmax_cross_entropy {} } }",
                 kTwelveSteps},
       .launch = Launch::kCaptured},
      {.name = "Normed",
       .parts = {"model { layers { flatten {} } layers { dense { units: 10 } } layers { batch_norm {} }"
                 "        loss { softmax_cross_entropy {} } }",
                 kTwelveSteps},
       .launch = Launch::kCaptured},
  };
}

class OnCudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto backend = MakeCudaBackend("");
    if (!backend.ok()) GTEST_SKIP() << backend.status();
  }
  static TrainerOptions On(const ScratchFolder& folder, StepMode steps) {
    constexpr int64_t kSamples = 96, kFeatures = 8;
    std::vector<float> x(kSamples * kFeatures), y(kSamples);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1 + i * 7 % 23) / 12;
    for (size_t i = 0; i < y.size(); ++i) y[i] = x[i * kFeatures] * x[i * kFeatures + 1] - x[i * kFeatures + 2];
    WriteNpy(folder.path() + "/in.npy", "<f4", {kSamples, kFeatures}, x);
    WriteNpy(folder.path() + "/out.npy", "<f4", {kSamples, 1}, y);
    std::vector<float> wide(kSamples * 40);
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = x[i % x.size()] > x[(i * 3 + 1) % x.size()] ? 1.0f : -1.0f;
    WriteNpy(folder.path() + "/wide.npy", "<f4", {kSamples, 40}, wide);
    WriteNpy(folder.path() + "/far.npy", "<f4", {kSamples, 1}, std::vector<float>(kSamples, 100.0f));
    TrainerOptions options = Options(folder.path());
    options.steps = steps;
    options.make_backend = [] { return MakeCudaBackend("", AutotuneFolder()); };
    return options;
  }
};

class ResidentTraining : public OnCudaDevice, public ::testing::WithParamInterface<ResidentJob> {};

// How the job's steps are launched that are asked to be launched as `asked`.
absl::StatusOr<runtime::StepLaunch> LaunchOf(const ResidentJob& job, runtime::StepLaunch asked,
                                             const std::string& autotune_dir) {
  const ResolvedJobSpec spec = Spec(job.parts);
  const bool images = spec.proto().data().train().has_glyphs();
  const models::SampleInfo sample = images ? models::SampleInfo{.input_shape = {kSide, kSide, 1}, .classes = 10}
                                           : models::SampleInfo{.input_shape = {8}, .target_features = job.features};
  AMPD_ASSIGN_OR_RETURN(auto backend, MakeCudaBackend("", autotune_dir));
  AMPD_ASSIGN_OR_RETURN(const auto plan, PlanModel(spec, sample, std::move(backend), 1));
  AMPD_ASSIGN_OR_RETURN(const auto model, LoadedModel::Create(*plan));
  std::vector<std::unique_ptr<StepRunner>> runners;
  runners.push_back(std::make_unique<StepRunner>(kSteps, plan.get(), model.get(), 0));
  AMPD_RETURN_IF_ERROR(model->memory.Initialize(1));
  AMPD_RETURN_IF_ERROR(runners[0]->Prepare());
  AMPD_ASSIGN_OR_RETURN(const auto steps, CapturedSteps::Create(*plan, model.get(), &runners, asked));
  return steps->launch();
}

TEST_P(ResidentTraining, IsTakenByOneKernelWhereItFits) {
  const auto launch = LaunchOf(GetParam(), runtime::StepLaunch::kResident, "");
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(*launch, GetParam().launch);
}

TEST_P(ResidentTraining, IsNearTheHosts) {
  const ScratchFolder host_folder, folder;
  Recorder host, device;
  ASSERT_TRUE(Train(Spec(GetParam().parts), On(host_folder, StepMode::kHost), &host).ok());
  const auto outcome = Train(Spec(GetParam().parts), On(folder, StepMode::kResident), &device);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::StepReport> expected = host.steps(), found = device.steps();
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_EQ(found.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < found.size(); ++i) {
    const v1::PhaseReport &f = found[i].phases(0), &e = expected[i].phases(0);
    EXPECT_NEAR(f.loss(), e.loss(), 4e-3 * std::max(1.0, std::abs(e.loss()))) << "step " << i;
    EXPECT_EQ(f.loss_scale(), e.loss_scale()) << "step " << i;
    EXPECT_EQ(f.steps_applied(), e.steps_applied()) << "step " << i;
    EXPECT_EQ(f.learning_rate(), e.learning_rate()) << "step " << i;
    ASSERT_EQ(std::isnan(f.gradient_norm()), std::isnan(e.gradient_norm())) << "step " << i;
    if (std::isnan(e.gradient_norm())) continue;
    EXPECT_NEAR(f.gradient_norm(), e.gradient_norm(), 2e-2 * std::max(0.1, e.gradient_norm())) << "step " << i;
  }
  const auto replayed = [](const Recorder& recorder) {
    const std::vector<v1::OverflowSkip> skips = recorder.skips();
    return std::count_if(skips.begin(), skips.end(),
                         [](const auto& skip) { return skip.stage() != v1::OverflowSkip::STAGE_UNSPECIFIED; });
  };
  EXPECT_EQ(replayed(device), replayed(host));
  EXPECT_GE(replayed(device), GetParam().replays);
  ASSERT_EQ(device.evaluations().size(), host.evaluations().size());
  EXPECT_NEAR(device.evaluations().back().loss(), host.evaluations().back().loss(), 2e-2);
}

// Dense layers that are taken together have the roundings of the plan's steps: what is left is the order of sums, and
// roundings that fall the other way for that.
TEST_P(ResidentTraining, IsNearTheInterpreted) {
  if (GetParam().launch != runtime::StepLaunch::kResident) GTEST_SKIP() << "no dense layers are taken together";
  const ScratchFolder together_folder, each_folder;
  Recorder together, each;
  const ResolvedJobSpec spec = Spec(GetParam().parts);
  ASSERT_TRUE(Train(spec, On(together_folder, StepMode::kResident), &together).ok());
  ASSERT_TRUE(Train(spec, On(each_folder, StepMode::kInterpreted), &each).ok());
  const double bound = spec.proto().precision().mode() == v1::PrecisionSpec::BF16 ? 8e-3 : 1e-3;
  const std::vector<v1::StepReport> expected = each.steps(), found = together.steps();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const v1::PhaseReport &f = found[i].phases(0), &e = expected[i].phases(0);
    EXPECT_EQ(f.loss_scale(), e.loss_scale()) << "step " << i;
    EXPECT_NEAR(f.loss(), e.loss(), bound * std::max(1.0, std::abs(e.loss()))) << "step " << i;
    ASSERT_EQ(std::isnan(f.gradient_norm()), std::isnan(e.gradient_norm())) << "step " << i;
    if (std::isnan(e.gradient_norm())) continue;
    EXPECT_NEAR(f.gradient_norm(), e.gradient_norm(), bound * std::max(0.1, e.gradient_norm())) << "step " << i;
  }
}

TEST_P(ResidentTraining, HasTheSameBitsAfterAStop) {
  const ScratchFolder whole_folder, parts_folder;
  Recorder whole, parts;
  ASSERT_TRUE(Train(Spec(GetParam().parts), On(whole_folder, StepMode::kResident), &whole).ok());
  auto outcome = Train(Spec(GetParam().parts), On(parts_folder, StepMode::kResident), &parts, 5);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  outcome = Train(Spec(GetParam().parts), On(parts_folder, StepMode::kResident), &parts);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_NE(ManifestOf(whole_folder), "none");
  EXPECT_EQ(ManifestOf(parts_folder), ManifestOf(whole_folder));
}

TEST_P(ResidentTraining, HasTheSameBitsWhereverTheSamplesLie) {
  const ScratchFolder device_folder, fed_folder;
  Recorder device, fed;
  ASSERT_TRUE(Train(Spec(GetParam().parts), On(device_folder, StepMode::kResident), &device).ok());
  std::vector<std::string> job = GetParam().parts;
  job.push_back(kFed);
  const auto outcome = Train(Spec(job), On(fed_folder, StepMode::kResident), &fed);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(LieOnDevice(device));
  EXPECT_FALSE(LieOnDevice(fed));
  EXPECT_EQ(Told(fed), Told(device));
  EXPECT_NE(ManifestOf(fed_folder), "none");
  EXPECT_EQ(ManifestOf(fed_folder), ManifestOf(device_folder));
}

class ResidentSteps : public OnCudaDevice {};

// What was chosen between resident and captured steps, by what it is kept under.
std::map<std::string, std::string> ChoicesIn(const std::string& autotune_dir) {
  std::ifstream file(autotune_dir + "/" + cuda::AutotuneCache::kFileName);
  std::map<std::string, std::string> choices;
  std::string line, key;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() != 3 || (parts[2] != "resident" && parts[2] != "captured")) continue;
    EXPECT_TRUE(absl::CUnescape(parts[1], &key));
    choices[key] = parts[2];
  }
  return choices;
}

// Which is faster is left to chance; that it is remembered, that the other can be told, and what comes of either is
// not.
TEST_F(ResidentSteps, AreTakenWhereTheyAreFaster) {
  const ResidentJob job = {.name = "Measured",
                           .parts = {kClassifier, "precision { mode: FP16 } optimizer { adam {} }", kTwelveSteps}};
  const ScratchFolder autotune;
  const auto trained = [&](StepMode mode) {
    const ScratchFolder folder;
    Recorder recorder;
    TrainerOptions options = On(folder, mode);
    options.make_backend = [&] { return MakeCudaBackend("", autotune.path()); };
    const auto outcome = Train(Spec(job.parts), options, &recorder);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return ManifestOf(folder);
  };
  const std::string resident = trained(StepMode::kResident), captured = trained(StepMode::kCaptured);
  EXPECT_NE(resident, "none");
  EXPECT_NE(resident, captured);
  std::set<runtime::StepLaunch> taken;
  for (int turn = 0; turn < 2; ++turn) {
    for (int again = 0; again < 2; ++again) {
      const auto launch = LaunchOf(job, runtime::StepLaunch::kFastest, autotune.path());
      ASSERT_TRUE(launch.ok()) << launch.status();
      taken.insert(*launch);
      EXPECT_EQ(taken.size(), static_cast<size_t>(turn) + 1);
      EXPECT_EQ(trained(StepMode::kFastest), *launch == runtime::StepLaunch::kCaptured ? captured : resident);
    }
    const std::map<std::string, std::string> choices = ChoicesIn(autotune.path());
    ASSERT_EQ(choices.size(), 1u);
    const auto& [key, choice] = *choices.begin();
    cuda::AutotuneCache(autotune.path()).Put(key, choice == "resident" ? "captured" : "resident");
  }
  EXPECT_EQ(taken, (std::set{runtime::StepLaunch::kInterpreted, runtime::StepLaunch::kCaptured}));
}

TEST_F(ResidentSteps, AreNotMeasuredOfWhatDoesNotFit) {
  const ScratchFolder autotune;
  for (const ResidentJob& job : Jobs()) {
    if (job.name != "Normed" && job.name != "Tf32") continue;
    const auto launch = LaunchOf(job, runtime::StepLaunch::kFastest, autotune.path());
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_EQ(*launch, runtime::StepLaunch::kCaptured) << job.name;
  }
  EXPECT_TRUE(ChoicesIn(autotune.path()).empty());
}

// Loops of several modes at once share the kernel, each with a size of its own.
TEST_F(ResidentSteps, OfSeveralModesAreComparedByAuto) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = Train(Spec({Regression("mean_squared_error"), "train { batch_size: 96 }",
                                   "precision { mode: AUTO auto { modes: BF16 modes: FP16 steps: 10 } }"}),
                             On(folder, StepMode::kResident), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(std::any_of(recorder.events.begin(), recorder.events.end(),
                          [](const v1::JobEvent& event) { return event.has_mode_chosen(); }));
}

TEST_F(ResidentSteps, AreTheSameWhereTheirGradientsAreLookedAt) {
  std::vector<double> losses[2];
  std::string manifests[2];
  for (int looks : {0, 1}) {
    const ScratchFolder folder;
    Recorder recorder;
    std::vector<std::string> parts = {kClassifier, kTwelveSteps};
    if (looks != 0) parts.push_back("report { diagnostics_every_steps: 3 }");
    const auto outcome = Train(Spec(parts), On(folder, StepMode::kResident), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    losses[looks] = recorder.losses();
    manifests[looks] = ManifestOf(folder);
    const auto looked = std::count_if(recorder.events.begin(), recorder.events.end(),
                                      [](const v1::JobEvent& event) { return event.has_gradient_diagnostics(); });
    EXPECT_EQ(looked, looks != 0 ? 4 : 0);
  }
  EXPECT_NE(manifests[0], "none");
  EXPECT_EQ(manifests[1], manifests[0]);
  EXPECT_EQ(losses[1], losses[0]);
}

TEST_F(ResidentSteps, RunRoundTheFeedRing) {
  const std::vector<std::string> job = {Regression("mean_squared_error"),
                                        "train { epochs: 120 } checkpoint { every_steps: 0 }"};
  const auto losses = [&](StepMode mode, const std::string& more) {
    const ScratchFolder folder;
    Recorder recorder;
    std::vector<std::string> parts = job;
    parts.push_back(more);
    const auto outcome = Train(Spec(parts), On(folder, mode), &recorder);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return recorder.losses();
  };
  const std::vector<double> host = losses(StepMode::kHost, ""), device = losses(StepMode::kResident, "");
  ASSERT_EQ(device.size(), host.size());
  EXPECT_EQ(device.size(), 720u);
  for (size_t i = 0; i < host.size(); ++i) ASSERT_NEAR(device[i], host[i], 1e-3) << "step " << i;
  EXPECT_EQ(losses(StepMode::kResident, kFed), device);
}

// Which mode is the fastest is left to chance; what its steps come to is not.
TEST_F(ResidentSteps, AreMeasuredByAutoWithTheSameLossesWhereverTheSamplesLie) {
  std::vector<double> losses[2];
  for (int fed : {0, 1}) {
    const ScratchFolder folder;
    Recorder recorder;
    std::vector<std::string> parts = {Regression("mean_squared_error"),
                                      "precision { mode: AUTO auto { modes: FP16 steps: 10 } }"};
    if (fed != 0) parts.push_back(kFed);
    const auto outcome = Train(Spec(parts), On(folder, StepMode::kResident), &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(LieOnDevice(recorder), fed == 0);
    for (const v1::JobEvent& event : recorder.events) {
      for (const v1::BenchCell& cell : event.mode_chosen().cells()) losses[fed].push_back(cell.loss());
    }
  }
  EXPECT_EQ(losses[0].size(), 2u);
  EXPECT_EQ(losses[1], losses[0]);
}

// More rows than the block has threads, several features of each, in FP32, where losses and gradients are the host's
// but for the order of sums.
TEST_F(ResidentSteps, OfManyRowsAreTheHosts) {
  constexpr int64_t kSamples = 1400, kFeatures = 8, kTargets = 3;
  std::vector<float> x(kSamples * kFeatures), y(kSamples * kTargets);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1 + i * 7 % 23) / 12;
  for (size_t i = 0; i < y.size(); ++i) y[i] = x[i * 5 % x.size()] > 1 ? 1.0f : 0.0f;
  for (const char* loss : {"mean_squared_error {}", "l1 {}", "smooth_l1 { beta: 0.3 }", "hinge { margin: 0.7 }",
                           "sigmoid_cross_entropy { pos_weight: [2, 0.5, 3] }"}) {
    std::vector<v1::StepReport> reports[2];
    for (StepMode mode : {StepMode::kHost, StepMode::kResident}) {
      const ScratchFolder folder;
      const TrainerOptions options = On(folder, mode);
      WriteNpy(folder.path() + "/in.npy", "<f4", {kSamples, kFeatures}, x);
      WriteNpy(folder.path() + "/out.npy", "<f4", {kSamples, kTargets}, y);
      Recorder recorder;
      const auto outcome = Train(
          Spec({std::string(
                    "model { layers { dense { units: 5 activation: TANH } } layers { dense { units: 3 } } loss { ") +
                    loss + " } }",
                "data { train { npy { inputs: 'in.npy' targets: 'out.npy' } } }"
                "train { batch_size: 700 epochs: 3 } report { every_steps: 1 } optimizer { sgd {} } seed: 5"}),
          options, &recorder);
      ASSERT_TRUE(outcome.ok()) << loss << ": " << outcome.status();
      reports[mode == StepMode::kResident] = recorder.steps();
    }
    ASSERT_EQ(reports[0].size(), 6u);
    ASSERT_EQ(reports[1].size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const v1::PhaseReport &host = reports[0][i].phases(0), &device = reports[1][i].phases(0);
      EXPECT_NEAR(device.loss(), host.loss(), 1e-6 * host.loss()) << loss << ", step " << i;
      EXPECT_NEAR(device.gradient_norm(), host.gradient_norm(), 1e-5 * host.gradient_norm()) << loss << ", step " << i;
    }
  }
}

// It is found when the data are opened, as on the host.
TEST_F(ResidentSteps, OfASampleThatIsNotFiniteFailAsTheHosts) {
  std::string messages[2];
  std::vector<double> losses[2];
  for (StepMode mode : {StepMode::kHost, StepMode::kResident}) {
    const ScratchFolder folder;
    const TrainerOptions options = On(folder, mode);
    std::vector<float> x(96 * 8, 0.5f);
    x[70 * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
    WriteNpy(folder.path() + "/in.npy", "<f4", {96, 8}, x);
    Recorder recorder;
    const auto outcome = Train(Spec({Regression("mean_squared_error"), "data { shuffle: false }"}), options, &recorder);
    ASSERT_FALSE(outcome.ok());
    const v1::Failure failure = FailureOf(outcome.status());
    EXPECT_EQ(failure.class_(), v1::Failure::DATA) << outcome.status();
    EXPECT_THAT(std::string(outcome.status().message()), ::testing::HasSubstr("in.npy: sample 70 holds a NaN"));
    messages[mode == StepMode::kResident] = failure.ShortDebugString();
    losses[mode == StepMode::kResident] = recorder.losses();
  }
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(losses[0].size() + losses[1].size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Jobs, ResidentTraining, ::testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ampd::train
