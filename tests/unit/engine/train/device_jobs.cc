#include "tests/unit/engine/train/device_jobs.h"

#include "engine/train/checkpoint.h"
#include "engine/train/files.h"

namespace ampd::train {
namespace {

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
// Its first product is joined with bias and relu where a library can.
const std::string kJoined =
    "model { layers { conv2d { filters: 32 kernel: 3 activation: RELU } } layers { max_pool { size: 4 } }"
    "        layers { flatten {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
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

// The critic falls back in a step of both phases; from then on its parameters have copies in either dtype.
const std::string kMixedPair =
    "model { networks { name: 'g' layers { dense { units: 6 } } layers { dense { units: 784 } } }"
    "        networks { name: 'd' layers { flatten {} } layers { dense { units: 6 } } layers { dense { units: 1 } } }"
    "        noise { name: 'z' shape: 3 } }"
    "phases { name: 'critic' trains: 'd' optimizer { adam {} }"
    "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'on_real' network: 'd' inputs: 'data' }"
    "  calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 0 } }"
    "phases { name: 'artist' trains: 'g' every: 2 optimizer { adam {} }"
    "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 weight: 1e-6 } }"
    "precision { mode: FP16 loss_scale { init: 1e9 min: 5e8 on_floor: FALLBACK_BF16 } }"
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

}  // namespace

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

const std::string& AutotuneFolder() {
  static const ScratchFolder folder;
  return folder.path();
}

void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

std::vector<Job> Jobs() {
  return {
      {.name = "Mlp",
       .parts = {kMlp, "optimizer { adamw {} ema { decay: 0.5 evaluate: true } clip_global_norm: 1 }", kTwelveSteps}},
      {.name = "Adagrad", .parts = {kMlp, "optimizer { adagrad { initial_accumulator: 0.1 } }", kTwelveSteps}},
      {.name = "Normed", .parts = {kNormed, "optimizer { sgd { momentum: 0.9 } }", kTwelveSteps}},
      {.name = "Fp16", .parts = {kNormed, kScaled, "optimizer { adam {} }", kTwelveSteps}, .replays = 1},
      {.name = "Joined", .parts = {kJoined, "precision { mode: FP16 } optimizer { adam {} }", kTwelveSteps}},
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
      {.name = "PhaseFallsBack", .parts = {kMixedPair}, .fall_backs = 1},
      {.name = "OneHot", .parts = {kOneHot, "optimizer { rmsprop {} }", kTwelveSteps}},
      {.name = "Spelling", .parts = {kSpelling, "optimizer { adam {} }"}, .fed = true},
      // A micro-batch's part of the mean follows from its labels.
      {.name = "Weighted",
       .parts = {kMlp, kTwelveSteps,
                 "model { loss { softmax_cross_entropy { class_weights: [1, 2, 1, 1, 3, 1, 1, 1, "
                 "0.5, 1] } } } optimizer { adam {} }"}},
      // Its share of either loss is an input, which the host computes.
      {.name = "Shares",
       .parts = {"model { networks { name: 'a' layers { flatten {} } layers { dense { units: 10 } } } }"
                 "phases { name: 'one' trains: 'a' calls { name: 'a' network: 'a' inputs: 'data' }"
                 "  losses { input: 'a' loss { softmax_cross_entropy { ignore_index: 2 } } weight: 3 }"
                 "  losses { input: 'a' loss { softmax_cross_entropy {} } } } optimizer { sgd {} }",
                 "data { train { glyphs { samples: 96 } } }"
                 "train { batch_size: 16 micro_batch_size: 8 epochs: 2 } report { every_steps: 1 } seed: 5"},
       .fed = true},
      {.name = "Windows",
       .parts = {kMlp, "optimizer { sgd {} }", kTwelveSteps, "data { image { size: 12 random_resized_crop {} } }"},
       .fed = true},
      {.name = "Moved",
       .parts = {kNormed, "optimizer { sgd { momentum: 0.9 } }", kTwelveSteps,
                 "data { image { normalize: STANDARD random_flip: true random_crop_padding: 3 } }"}},
      // Batches of more than 8 MiB, which go to the device in chunks while they are copied.
      {.name = "Large",
       .parts = {"model { layers { max_pool { size: 32 } } layers { flatten {} } layers { dense { units: 10 } }"
                 "        loss { softmax_cross_entropy {} } } optimizer { sgd {} }",
                 kTwelveSteps, "data { image { size: 390 random_flip: true } } train { micro_batch_size: 8 }"}},
      {.name = "Diagnostics",
       .parts = {kNormed, "precision { mode: FP16 } report { diagnostics_every_steps: 4 }", kTwelveSteps},
       .diagnostics = 3},
  };
}

std::vector<std::string> MlpParts() { return {kMlp, "optimizer { adamw {} ema {} }", kTwelveSteps}; }

bool LieOnDevice(const Recorder& recorder) {
  for (const v1::LogLine& line : recorder.logs()) {
    if (line.text() == "training samples lie on the device") return true;
    if (line.text().find("training samples are fed by the host: ") == 0) return false;
  }
  ADD_FAILURE() << "nobody said where the samples lie";
  return false;
}

std::vector<std::string> Told(const Recorder& recorder) {
  std::vector<std::string> told;
  for (const v1::JobEvent& event : recorder.events) {
    // Only a device that takes steps by itself has samples to lie on it, and ways to compute.
    if (event.has_log() && event.log().text().find("training samples") == 0) continue;
    if (event.has_log() && event.log().text().find("attention runs on") == 0) continue;
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

std::string ManifestOf(const ScratchFolder& folder) {
  return ReadFile(folder.path() + "/checkpoints/" + CheckpointName(kSteps) + "/MANIFEST", 1 << 16).value_or("none");
}

}  // namespace ampd::train
