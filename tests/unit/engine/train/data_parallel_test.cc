// Whole trainings on several devices: what they tell and what they leave behind is what one device would.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/core/status.h"
#include "engine/runtime/collective.h"
#include "engine/train/checkpoint.h"
#include "engine/train/files.h"
#include "engine/train/replicas.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/far_memory.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 12;
// Six steps an epoch, with an evaluation behind each epoch.
std::string TwelveSteps(int micro_batch) {
  return absl::StrCat(
      "data { train { glyphs { samples: 96 } } eval { glyphs { samples: 40 } } }"
      "train { batch_size: 16 epochs: 2 micro_batch_size: ",
      micro_batch, " } report { every_steps: 1 } seed: 5");
}

const std::string kMlp =
    "model { layers { flatten {} } layers { dense { units: 12 activation: GELU } } layers { dropout { rate: 0.2 } }"
    "        layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
const std::string kConv =
    "model { layers { conv2d { filters: 5 kernel: 3 stride: 3 activation: RELU } } layers { dropout { rate: 0.1 } }"
    "        layers { conv2d { filters: 6 kernel: 3 stride: 2 } } layers { global_avg_pool {} }"
    "        layers { dense { units: 10 } }"
    "        loss { softmax_cross_entropy { ignore_index: 3 class_weights: [ 1, 2, 3, 1, 0.5, 1, 1, 1, 1, 4 ] } } }";
const std::string kNormed =
    "model { layers { conv2d { filters: 5 kernel: 3 stride: 3 } } layers { name: 'bn' batch_norm {} } layers { relu {} "
    "}"
    "        layers { global_avg_pool {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }";
// Overflows at first, then grows, and overflows again: the second time the step is replayed.
const std::string kScaled = "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 2 } }";
// Each phase uses the parameters that it trains once: a sum of two uses is rounded in another order.
const std::string kPair =
    "model { networks { name: 'g' layers { name: 'fc' dense { units: 784 } } }"
    "        networks { name: 'd' layers { flatten {} } layers { name: 'fc' dense { units: 1 } } }"
    "        noise { name: 'z' shape: 3 } }"
    "phases { name: 'critic' trains: 'd' optimizer { adam {} }"
    "  calls { name: 'on_real' network: 'd' inputs: 'data' }"
    "  losses { input: 'on_real' loss { sigmoid_cross_entropy {} } target: 1 } }"
    "phases { name: 'artist' trains: 'g' every: 2 optimizer { sgd { momentum: 0.9 } }"
    "  calls { name: 'fake' network: 'g' inputs: 'z' } calls { name: 'on_fake' network: 'd' inputs: 'fake' }"
    "  losses { input: 'on_fake' loss { sigmoid_cross_entropy {} } target: 1 } }"
    "data { train { glyphs { samples: 96 } } } report { every_steps: 1 } seed: 5 ";
// Plans for buckets of 8 to 24 steps.
const std::string kSpelling =
    "model { layers { gru { units: 5 bidirectional: true } } layers { positional_embedding { positions: 24 } }"
    "        layers { multi_head_attention { heads: 2 } } layers { dense { units: 5 } } loss { ctc { blank: 4 } } }"
    "data { train { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' target_lengths: 'm.npy' } }"
    "       eval { npy { inputs: 'x.npy' targets: 'y.npy' lengths: 'n.npy' target_lengths: 'm.npy' } } }"
    "report { every_steps: 1 } seed: 5 ";

std::string Batches(int micro_batch) {
  return absl::StrCat("train { batch_size: 16 epochs: 2 micro_batch_size: ", micro_batch, " }");
}

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

TrainerOptions On(const ScratchFolder& folder, int devices) {
  WriteSequences(folder.path());
  TrainerOptions options = Options(folder.path());
  for (int i = 0; i < devices; ++i) options.devices.push_back(absl::StrCat("cpu-", i));
  options.threads = devices;
  options.gradient_bucket_bytes = 512;
  options.compare_replicas = true;
  return options;
}

// What was told, but for times.
std::vector<std::string> Told(const Recorder& recorder) {
  std::vector<std::string> told;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_step()) {
      for (const v1::PhaseReport& phase : event.step().phases()) told.push_back(phase.ShortDebugString());
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
std::string Manifest(const ScratchFolder& folder) {
  return ReadFile(folder.path() + "/checkpoints/" + CheckpointName(kSteps) + "/MANIFEST", 1 << 16).value_or("none");
}

struct Job {
  std::string name;
  // With micro-batches of `micro_batch` samples of 16.
  std::function<std::vector<std::string>(int micro_batch)> parts;
  // Events without which the job would not test what it is for: skips that were replayed, and others.
  int replays = 0;
  int fall_backs = 0;
  int diagnostics = 0;
};

void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

Job Glyphs(const std::string& name, std::vector<std::string> parts) {
  return {.name = name, .parts = [parts](int micro_batch) {
            std::vector<std::string> all = parts;
            all.push_back(TwelveSteps(micro_batch));
            return all;
          }};
}

std::vector<Job> Jobs() {
  std::vector<Job> jobs = {
      Glyphs("Mlp", {kMlp, "optimizer { adamw {} ema { decay: 0.5 evaluate: true } clip_global_norm: 1 }"}),
      Glyphs("Conv", {kConv, "optimizer { sgd { momentum: 0.9 } }"}),
      Glyphs("Fp16", {kConv, kScaled, "optimizer { adam {} clip_global_norm: 0.5 }"}),
      Glyphs("NoMasters", {kMlp, "precision { mode: BF16 master_weights: false } optimizer { lamb {} }"}),
      Glyphs("FallsBack", {kMlp, "precision { mode: FP16 loss_scale { init: 1e9 min: 5e8 on_floor: FALLBACK_BF16 } }",
                           "optimizer { adam {} ema {} }"}),
      Glyphs("Diagnostics", {kMlp, "precision { mode: FP16 } report { diagnostics_every_steps: 4 }"}),
      {.name = "Phases",
       .parts =
           [](int m) {
             return std::vector<std::string>{kPair, Batches(m)};
           }},
      {.name = "Spelling", .parts = [](int m) {
         return std::vector<std::string>{kSpelling, "optimizer { adam {} }", Batches(m)};
       }}};
  jobs[2].replays = 1;
  jobs[4].fall_backs = 1;
  jobs[5].diagnostics = 3;
  return jobs;
}

class DataParallel : public ::testing::TestWithParam<Job> {};

// With one micro-batch a replica nothing differs, not even the order of sums.
TEST_P(DataParallel, GivesTheBitsOfOneDevice) {
  for (const int devices : {2, 4}) {
    const ScratchFolder one_folder, all_folder;
    Recorder one, all;
    const ResolvedJobSpec spec = Spec(GetParam().parts(16 / devices));
    const auto alone = Train(spec, On(one_folder, 1), &one);
    ASSERT_TRUE(alone.ok()) << alone.status();
    const auto together = Train(spec, On(all_folder, devices), &all);
    ASSERT_TRUE(together.ok()) << together.status();
    EXPECT_EQ(Told(all), Told(one)) << devices;
    EXPECT_EQ(Manifest(all_folder), Manifest(one_folder)) << devices;
    EXPECT_NE(Manifest(all_folder), "none");
    const auto count = [&all](const auto& is) { return std::count_if(all.events.begin(), all.events.end(), is); };
    using Event = v1::JobEvent;
    EXPECT_GE(count([](const Event& e) { return e.has_overflow_skip() && !e.overflow_skip().calibration(); }),
              GetParam().replays);
    EXPECT_GE(count([](const Event& e) { return e.has_precision_change(); }), GetParam().fall_backs);
    EXPECT_GE(count([](const Event& e) { return e.has_gradient_diagnostics(); }), GetParam().diagnostics);
  }
}

TEST_P(DataParallel, GivesTheSameBitsAgainAndAcrossAResume) {
  const ResolvedJobSpec spec = Spec(GetParam().parts(4));
  const ScratchFolder first_folder, second_folder, parts_folder;
  Recorder first, second, parts;
  ASSERT_TRUE(Train(spec, On(first_folder, 2), &first).ok());
  ASSERT_TRUE(Train(spec, On(second_folder, 2), &second).ok());
  EXPECT_EQ(Told(first), Told(second));
  EXPECT_EQ(Manifest(first_folder), Manifest(second_folder));
  auto outcome = Train(spec, On(parts_folder, 2), &parts, 7);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(*outcome, Outcome::kStopped);
  outcome = Train(spec, On(parts_folder, 2), &parts);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Manifest(parts_folder), Manifest(first_folder));
}

INSTANTIATE_TEST_SUITE_P(Jobs, DataParallel, ::testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

// FP8's histories are those of all replicas, and the running statistics of the first are in the checkpoint: both go on
// as they were, though the other replicas' statistics start anew.
TEST(DataParallelState, ResumesWithTheBitsOfTheUninterrupted) {
  const std::vector<Job> jobs = {Glyphs("Fp8", {kMlp, "precision { mode: FP8 } optimizer { adamw {} }"}),
                                 Glyphs("Normed", {kNormed, kScaled, "optimizer { adam {} }"})};
  for (const Job& job : jobs) {
    const ResolvedJobSpec spec = Spec(job.parts(4));
    const ScratchFolder whole_folder, parts_folder;
    Recorder whole, parts;
    auto outcome = Train(spec, On(whole_folder, 4), &whole);
    ASSERT_TRUE(outcome.ok()) << job.name << outcome.status();
    ASSERT_TRUE(Train(spec, On(parts_folder, 4), &parts, 7).ok());
    ASSERT_TRUE(Train(spec, On(parts_folder, 4), &parts).ok());
    EXPECT_EQ(Manifest(parts_folder), Manifest(whole_folder)) << job.name;
  }
}

// Micro-batches see the same parts of a batch whoever runs them, so batch norm does too: all but the running statistics
// is one device's.
TEST(DataParallelState, RunningStatisticsAreTheFirstReplicas) {
  const ResolvedJobSpec spec = Spec({kNormed, "optimizer { adam {} }", TwelveSteps(8)});
  const ScratchFolder one_folder, all_folder;
  Recorder one, all;
  ASSERT_TRUE(Train(spec, On(one_folder, 1), &one).ok());
  ASSERT_TRUE(Train(spec, On(all_folder, 2), &all).ok());
  EXPECT_EQ(one.losses(), all.losses());
  const auto read = [](const ScratchFolder& folder, const std::string& file) {
    return ReadFile(folder.path() + "/checkpoints/" + CheckpointName(kSteps) + "/" + file, 1 << 20).value_or("none");
  };
  EXPECT_EQ(read(one_folder, "optimizer.safetensors"), read(all_folder, "optimizer.safetensors"));
  EXPECT_NE(read(one_folder, "model.safetensors"), read(all_folder, "model.safetensors"));
}

TEST(DataParallelState, ResumesOnMoreOrFewerDevices) {
  const ResolvedJobSpec spec = Spec({kConv, kScaled, "optimizer { adam {} ema {} }", TwelveSteps(4)});
  const ScratchFolder one_folder;
  Recorder one;
  ASSERT_TRUE(Train(spec, On(one_folder, 1), &one).ok());
  for (const auto& [before, after] : {std::pair{1, 4}, std::pair{4, 1}}) {
    const ScratchFolder folder;
    Recorder recorder;
    ASSERT_TRUE(Train(spec, On(folder, before), &recorder, 5).ok());
    ASSERT_TRUE(Train(spec, On(folder, after), &recorder).ok());
    EXPECT_EQ(recorder.losses(), one.losses()) << before << " to " << after;
    EXPECT_EQ(Manifest(folder), Manifest(one_folder)) << before << " to " << after;
  }
}

// A sample in the last replica's share is beyond fp16; every replica skips, and tells what one device does.
TEST(DataParallelSkips, NameWhatOneReplicaFound) {
  const std::string model =
      "model { layers { dense { units: 3 } } loss { mean_squared_error {} } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } shuffle: false } precision { mode: FP16 }"
      "train { batch_size: 8 micro_batch_size: 2 steps: 12 } report { every_steps: 1 }";
  std::vector<std::vector<std::string>> told;
  for (const int devices : {1, 4}) {
    const ScratchFolder folder;
    TrainerOptions options = On(folder, devices);
    std::vector<float> x(32 * 4, 0.5f), y(32 * 3, 1.0f);
    x[(16 + 7) * 4 + 1] = 1e6f;  // the eighth sample of every third batch
    y[(24 + 4) * 3] = 1e25f;     // the loss of the fifth of every fourth
    WriteNpy(folder.path() + "/x.npy", "<f4", {32, 4}, x);
    WriteNpy(folder.path() + "/y.npy", "<f4", {32, 3}, y);
    Recorder recorder;
    const auto outcome = Train(Spec({model}), options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    told.push_back(Told(recorder));
    const std::vector<v1::OverflowSkip> skips = recorder.skips();
    ASSERT_EQ(skips.size(), 6u);
    EXPECT_EQ(skips[0].stage(), v1::OverflowSkip::INPUT);
    EXPECT_EQ(skips[1].stage(), v1::OverflowSkip::LOSS) << skips[1].ShortDebugString();
  }
  EXPECT_EQ(told[0], told[1]);
}

// Each replica's gradient is in range, their sum is not.
TEST(DataParallelSkips, ASumOverReplicasBeyondFp32IsReduce) {
  const std::string model =
      "model { layers { dense { units: 1 } } loss { mean_squared_error {} } }"
      "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } shuffle: false }"
      "train { batch_size: 8 micro_batch_size: 4 steps: 2 } report { every_steps: 1 }"
      "optimizer { sgd { learning_rate: 0.0001 } } precision { loss_scale { kind: STATIC init: 8.5e37 } }";
  const ScratchFolder folder;
  TrainerOptions options = On(folder, 2);
  // The first step is not calibration's any more at the second.
  std::vector<float> x(16 * 2, 0.0f), y(16, 0.0f);
  for (size_t i = 8; i < 16; ++i) y[i] = 2.5f;
  WriteNpy(folder.path() + "/x.npy", "<f4", {16, 2}, x);
  WriteNpy(folder.path() + "/y.npy", "<f4", {16, 1}, y);
  Recorder recorder;
  const auto outcome = Train(Spec({model}), options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::vector<v1::OverflowSkip> skips = recorder.skips();
  ASSERT_EQ(skips.size(), 1u);
  EXPECT_EQ(skips[0].step(), 2);
  EXPECT_EQ(skips[0].stage(), v1::OverflowSkip::REDUCE) << skips[0].ShortDebugString();
  EXPECT_THAT(skips[0].first_tensor(), HasSubstr("bias"));
}

using Watch = std::function<absl::Status(const std::string& what)>;

class WatchedKernel : public runtime::Kernel {
 public:
  WatchedKernel(std::unique_ptr<runtime::Kernel> kernel, std::string node, const Watch* watch)
      : kernel_(std::move(kernel)), node_(std::move(node)), watch_(watch) {}
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  absl::optional<runtime::PublishedLayout> published_layout(int input) const override {
    return kernel_->published_layout(input);
  }
  int overwrites(int output) const override { return kernel_->overwrites(output); }
  absl::Status Launch(const runtime::KernelArgs& args) override {
    AMPD_RETURN_IF_ERROR((*watch_)(node_));
    return kernel_->Launch(args);
  }

 private:
  std::unique_ptr<runtime::Kernel> kernel_;
  std::string node_;
  const Watch* watch_;
};

// The CPU's, but `watch` sees every launch, and "update" before each update, and may fail it.
class WatchedBackend : public runtime::Backend {
 public:
  explicit WatchedBackend(Watch watch) : cpu_(MakeCpuBackend(1)), watch_(std::move(watch)) {
    const auto prepare = [this](const runtime::NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
      AMPD_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Kernel> kernel, cpu_->kernels().Prepare(desc));
      return std::make_unique<WatchedKernel>(std::move(kernel), desc.name, &watch_);
    };
    for (ir::OpKind op : ir::kAllOpKinds) table_.AddForAnyDTypes(op, prepare);
  }
  absl::string_view name() const override { return "watched"; }
  const runtime::KernelTable& kernels() const override { return table_; }
  absl::Status CheckGradients(const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                              runtime::GradientCheck* check) override {
    return cpu_->CheckGradients(gradients, slots, factor, check);
  }
  absl::Status Update(const runtime::UpdateArgs& args) override {
    AMPD_RETURN_IF_ERROR(watch_("update"));
    AMPD_RETURN_IF_ERROR(cpu_->Update(args));
    if (watch_("after").ok()) return absl::OkStatus();
    args.masters[args.ranges[0].slot.offset] += 0.5f;
    return absl::OkStatus();
  }
  absl::Status Publish(const float* masters, int64_t size, DType dtype, void* copy) override {
    return cpu_->Publish(masters, size, dtype, copy);
  }
  absl::Status PadInto(const float* from, const Shape& shape, const Shape& padded, float* to) override {
    return cpu_->PadInto(from, shape, padded, to);
  }
  absl::Status FindNonFinite(const TensorView& tensor, bool* found, bool* is_nan) override {
    return cpu_->FindNonFinite(tensor, found, is_nan);
  }

 private:
  std::unique_ptr<runtime::Backend> cpu_;
  Watch watch_;
  runtime::KernelTable table_;
};

// A training on three devices in which the `count`-th thing named `what` fails on device `bad`.
absl::Status TrainAndFail(size_t bad, const std::string& what, int count) {
  const ScratchFolder folder;
  TrainerOptions options = On(folder, 3);
  size_t made = 0;
  options.make_backend = [&]() -> absl::StatusOr<std::unique_ptr<runtime::Backend>> {
    if (made++ != bad) return MakeCpuBackend(1);
    return std::make_unique<WatchedBackend>([&what, left = count](const std::string& seen) mutable {
      return absl::StrContains(seen, what) && --left == 0 ? absl::UnavailableError("the device fell off")
                                                          : absl::OkStatus();
    });
  };
  // A replica that waits for the one that failed would do so for ever.
  auto outcome = std::async(std::launch::async, [&] {
    Recorder recorder;
    return Train(Spec({kMlp, "train { batch_size: 12 micro_batch_size: 2 steps: 9 } data { train { glyphs {} } }"}),
                 options, &recorder)
        .status();
  });
  if (outcome.wait_for(std::chrono::seconds(120)) == std::future_status::ready) return outcome.get();
  ADD_FAILURE() << "the training hangs";
  std::abort();
}

TEST(DataParallelFailures, EndTheJobWithTheirError) {
  // Before the first step, amid a backward pass, and behind everything that the replicas wait for.
  for (const size_t bad : {0, 1, 2}) {
    for (const auto& [what, count] : {std::pair{"grad", 3}, {"grad", 60}, {"update", 3}}) {
      const absl::Status status = TrainAndFail(bad, what, count);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("device cpu-", bad)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("the device fell off"));
    }
  }
}

TEST(DataParallelFailures, AReplicaWithOtherBitsIsFound) {
  const absl::Status status = TrainAndFail(1, "after", 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the parameters on device cpu-1 are no longer those on device"));
}

TEST(DataParallelFailures, ABatchThatCannotBeSharedIsRefused) {
  const ScratchFolder folder;
  Recorder recorder;
  const ResolvedJobSpec spec = Spec({kMlp, TwelveSteps(8)});
  EXPECT_THAT(std::string(Train(spec, On(folder, 3), &recorder).status().message()), HasSubstr("train.batch_size"));
  EXPECT_THAT(std::string(Train(spec, On(folder, 4), &recorder).status().message()),
              HasSubstr("train.micro_batch_size"));
}

// Sums through the host, for memory that it cannot read.
class StagedCollective : public runtime::Collective {
 public:
  StagedCollective(int rank, std::shared_ptr<runtime::ReplicaGroup> group, runtime::Memory* memory)
      : Collective(rank, std::move(group)), memory_(memory) {}
  absl::Status AllReduceSum(float* arena, absl::Span<const runtime::ArenaSlot> ranges) override {
    for (const runtime::ArenaSlot& range : ranges) {
      std::vector<float> own(static_cast<size_t>(range.size));
      const int64_t bytes = range.size * static_cast<int64_t>(sizeof(float));
      AMPD_RETURN_IF_ERROR(memory_->Download(arena + range.offset, bytes, own.data()));
      std::vector<std::vector<float>> all;
      AMPD_RETURN_IF_ERROR(group()->AllGather(rank(), own, &all));
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = all[0][i];
        for (size_t r = 1; r < all.size(); ++r) own[i] += all[r][i];
      }
      AMPD_RETURN_IF_ERROR(memory_->Upload(own.data(), bytes, arena + range.offset));
    }
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  bool Done() override { return true; }

 private:
  runtime::Memory* memory_;
};

// All that goes between replicas but the gradients goes through Memory.
TEST(DataParallelInFarMemory, GivesTheBitsOfOneDevice) {
  const std::vector<Job> jobs = {Glyphs("Mlp", {kMlp, kScaled, "optimizer { adamw {} ema { evaluate: true } }"}),
                                 Glyphs("Fp8", {kMlp, "precision { mode: FP8 } optimizer { adamw {} }"})};
  for (const Job& job : jobs) {
    const ResolvedJobSpec spec = Spec(job.parts(8));
    const ScratchFolder near_folder, far_folder;
    Recorder near, far;
    ASSERT_TRUE(Train(spec, On(near_folder, 2), &near).ok());
    TrainerOptions options = On(far_folder, 2);
    options.make_backend = [] { return testing::MakeFarMemoryBackend(1, {}); };
    EXPECT_EQ(Train(spec, options, &far).status().code(), absl::StatusCode::kUnimplemented);
    options.make_collectives = [](absl::Span<runtime::Backend* const> backends) {
      const auto group = std::make_shared<runtime::ReplicaGroup>(static_cast<int>(backends.size()));
      std::vector<std::unique_ptr<runtime::Collective>> collectives;
      for (size_t i = 0; i < backends.size(); ++i) {
        collectives.push_back(std::make_unique<StagedCollective>(static_cast<int>(i), group, backends[i]->memory()));
      }
      return collectives;
    };
    auto outcome = Train(spec, options, &far, 5);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    outcome = Train(spec, options, &far);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(Manifest(far_folder), Manifest(near_folder)) << job.name;
  }
}

}  // namespace
}  // namespace ampd::train
