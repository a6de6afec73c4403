// start_from.continue_training: a job that goes on with another's training.
#include "engine/train/continuation.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint.h"
#include "engine/train/checkpoint_weights.h"
#include "engine/train/failure.h"
#include "engine/train/spec_configs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/floor_job.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Ten steps an epoch, each of two micro-batches.
constexpr int64_t kEpoch = 10;
const std::string kRun =
    "data { train { glyphs { samples: 320 } } image { random_flip: true random_crop_padding: 2 } }"
    "train { batch_size: 32 micro_batch_size: 16 epochs: 1 } report { every_steps: 1 } seed: 5";
const std::string kTwoEpochs = "train { epochs: 2 }";
// Overflows at first, then grows, and overflows again.
const std::string kScaled = "precision { mode: FP16 loss_scale { init: 3e7 growth_interval: 3 hysteresis: 2 } }";
const std::string kTwoPhases =
    "model { networks { name: 'body' layers { flatten {} } layers { dense { units: 8 activation: RELU } } }"
    "        networks { name: 'head' layers { dense { units: 10 } } } }"
    "phases { name: 'head' trains: 'head' calls { network: 'body' inputs: 'data' }"
    "         calls { network: 'head' inputs: 'body' }"
    "         losses { input: 'head' loss { softmax_cross_entropy {} } target_from: 'labels' } }"
    "phases { name: 'body' every: 3 trains: 'body' optimizer { sgd { learning_rate: 0.1 momentum: 0.9 } }"
    "         calls { network: 'body' inputs: 'data' } calls { network: 'head' inputs: 'body' }"
    "         losses { input: 'head' loss { softmax_cross_entropy {} } target_from: 'labels' } }";

struct Job {
  std::string name;
  std::vector<std::string> parts;
};

std::vector<Job> Jobs() {
  return {
      {"Fp16", {kConvNet, kRun, kScaled, "optimizer { sgd { learning_rate: 0.1 momentum: 0.9 } ema {} }"}},
      {"Fp8", {kConvNet, kRun, "precision { mode: FP8 } optimizer { adamw {} clip_global_norm: 1 }"}},
      {"Bf16", {kConvNet, kRun, "precision { mode: BF16 } optimizer { rmsprop { centered: true } }"}},
      {"Phases", {kTwoPhases, kRun, kScaled, "optimizer { adam {} }"}},
  };
}

std::string From(const std::string& checkpoint) {
  return absl::StrCat("start_from { job_id: '01hq3v7m' checkpoint: '", checkpoint, "' continue_training: true }");
}

std::vector<std::string> With(std::vector<std::string> parts, const std::vector<std::string>& more) {
  parts.insert(parts.end(), more.begin(), more.end());
  return parts;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// A job of one epoch was trained in `folder_`/first.
class ContinuationTest : public testing::Test {
 protected:
  TrainerOptions First() { return Options(folder_.path() + "/first"); }
  TrainerOptions Continuing(const std::string& name, int64_t step = kEpoch) {
    TrainerOptions options = Options(absl::StrCat(folder_.path(), "/", name));
    options.start_checkpoint_dir = absl::StrCat(First().checkpoint_dir, "/", CheckpointName(step));
    return options;
  }
  std::string LogOf(const Recorder& recorder) {
    std::string text;
    for (const v1::LogLine& line : recorder.logs()) absl::StrAppend(&text, line.text(), "\n");
    return text;
  }

  const ScratchFolder folder_;
};

class ContinuationOf : public ContinuationTest, public testing::WithParamInterface<Job> {};

TEST_P(ContinuationOf, IsTheTrainingThatWasNeverInterrupted) {
  Recorder whole, first, second;
  const TrainerOptions uninterrupted = Options(folder_.path() + "/whole");
  ASSERT_TRUE(Train(Spec(With(GetParam().parts, {kTwoEpochs})), uninterrupted, &whole).ok());
  ASSERT_TRUE(Train(Spec(GetParam().parts), First(), &first).ok());
  const TrainerOptions options = Continuing("second");
  const auto outcome =
      Train(Spec(With(GetParam().parts, {kTwoEpochs, From(CheckpointName(kEpoch))})), options, &second);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(second.steps().front().first_step(), kEpoch + 1);
  std::vector<double> losses = first.losses();
  for (const double loss : second.losses()) losses.push_back(loss);
  EXPECT_EQ(losses, whole.losses());
  EXPECT_TRUE(second.rewound().empty());
  EXPECT_THAT(LogOf(second), HasSubstr("continues the training of checkpoint step-000000010 of job 01hq3v7m: 10 of 20 "
                                       "steps are done"));
  const std::string last = absl::StrCat("/", CheckpointName(2 * kEpoch));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/ema.safetensors"}) {
    const std::string expected = Bytes(uninterrupted.checkpoint_dir + last + file);
    EXPECT_TRUE(Bytes(options.checkpoint_dir + last + file) == expected) << file;
    EXPECT_TRUE(!expected.empty() || std::string(file) == "/ema.safetensors") << file;
  }
  const auto state = ReadTrainState(options.checkpoint_dir + last);
  const auto expected = ReadTrainState(uninterrupted.checkpoint_dir + last);
  ASSERT_TRUE(state.ok() && expected.ok()) << state.status() << expected.status();
  ASSERT_EQ(state->phases.size(), expected->phases.size());
  for (size_t i = 0; i < state->phases.size(); ++i) {
    EXPECT_EQ(state->phases[i].scaler, expected->phases[i].scaler);
    EXPECT_EQ(state->phases[i].loss, expected->phases[i].loss);
  }
  // The steps that are told are its own: those of both jobs make up the whole.
  for (int i = 0; i < whole.steps().back().phases_size(); ++i) {
    const v1::PhaseReport all = whole.steps().back().phases(i), a = first.steps().back().phases(i),
                          b = second.steps().back().phases(i);
    EXPECT_EQ(a.steps_applied() + b.steps_applied(), all.steps_applied()) << all.name();
    EXPECT_EQ(a.steps_skipped() + b.steps_skipped(), all.steps_skipped()) << all.name();
    const v1::CheckpointSaved::Phase kept = second.checkpoints().back().phases(i);
    EXPECT_EQ(kept.steps_applied(), b.steps_applied());
    EXPECT_EQ(kept.steps_skipped(), b.steps_skipped());
  }
  // Of a job that continues this one, too.
  const auto next = ReadTrainState(options.checkpoint_dir + last);
  EXPECT_EQ(next->phases[0].inherited_applied, first.steps().back().phases(0).steps_applied());
}

INSTANTIATE_TEST_SUITE_P(Jobs, ContinuationOf, testing::ValuesIn(Jobs()),
                         [](const auto& info) { return info.param.name; });

// Until it has a checkpoint of its own it begins there again, and behind it no more.
TEST_F(ContinuationTest, AWorkerThatDiesBeginsThereAgain) {
  const Job job = Jobs()[0];
  Recorder whole, first;
  ASSERT_TRUE(Train(Spec(With(job.parts, {kTwoEpochs})), Options(folder_.path() + "/whole"), &whole).ok());
  ASSERT_TRUE(Train(Spec(job.parts), First(), &first).ok());
  const auto spec = Spec(With(job.parts, {kTwoEpochs, From(CheckpointName(kEpoch)), "checkpoint { every_steps: 5 }"}));
  TrainerOptions options = Continuing("second");
  std::vector<int64_t> began;
  // By every attempt alike.
  int64_t applied = 0;
  for (const int64_t dies_at : {13, 17, 0}) {
    Recorder recorder;
    recorder.on_event = [&](const v1::JobEvent& event) {
      return dies_at > 0 && event.has_step() && event.step().last_step() == dies_at ? absl::UnavailableError("killed")
                                                                                    : absl::OkStatus();
    };
    const auto trainer = Trainer::Create(spec, options, &recorder);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_EQ((*trainer)->Run().ok(), dies_at == 0);
    began.push_back(recorder.steps().front().first_step());
    const std::vector<double> losses = recorder.losses(), all = whole.losses();
    EXPECT_EQ(losses,
              std::vector<double>(all.begin() + began.back() - 1, all.begin() + recorder.steps().back().last_step()));
    if (began.size() > 1) {
      ASSERT_THAT(recorder.rewound(), SizeIs(1));
      EXPECT_EQ(recorder.rewound()[0].to_step(), began.back() - 1);
    }
    options.last_reported_step = dies_at;
    applied = recorder.steps().back().phases(0).steps_applied() + recorder.steps().back().phases(0).steps_skipped();
  }
  EXPECT_EQ(applied, kEpoch);
  EXPECT_THAT(began, ElementsAre(11, 11, 16));
}

TEST_F(ContinuationTest, ARollbackWithoutACheckpointReturnsThere) {
  std::filesystem::create_directories(folder_.path() + "/data");
  WriteFloorData(folder_.path() + "/data");
  const std::vector<std::string> parts = {kFloorNetwork, FloorScale("ROLLBACK"),
                                          "precision { loss_scale { max_rollbacks: 1 } } train { epochs: 1 }"};
  TrainerOptions first = First();
  first.data_roots = {folder_.path() + "/data"};
  Recorder recorder, second;
  // Before the batches that overflow.
  constexpr int64_t kStop = kFirstBad - 2;
  ASSERT_TRUE(Train(Spec(parts), first, &recorder, kStop).ok());
  TrainerOptions options = Continuing("second", kStop);
  options.data_roots = first.data_roots;
  const auto outcome = Train(Spec(With(parts, {"train { epochs: 5 }", From(CheckpointName(kStop))})), options, &second);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  ASSERT_THAT(second.rewound(), SizeIs(1));
  EXPECT_EQ(second.rewound()[0].to_step(), kStop);
  EXPECT_THAT(second.rewound()[0].reason(), HasSubstr("to checkpoint step-000000002 of job 01hq3v7m"));
  EXPECT_EQ(second.steps().front().first_step(), kStop + 1);
}

// What early stopping counted, and which evaluation was the best, were that job's.
TEST_F(ContinuationTest, JudgesEvaluationsAnew) {
  const std::vector<std::string> parts = {
      kConvNet, kRun,
      "data { eval { glyphs { samples: 64 } } } train { epochs: 50 early_stopping { patience: 1 min_delta: 100 } }"
      "checkpoint { keep_best: 'loss' }"};
  Recorder first, second;
  ASSERT_TRUE(Train(Spec(parts), First(), &first).ok());
  ASSERT_EQ(first.steps().back().last_step(), 2 * kEpoch) << "its second evaluation was no better by 100";
  const auto outcome =
      Train(Spec(With(parts, {From(CheckpointName(2 * kEpoch))})), Continuing("second", 2 * kEpoch), &second);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(second.steps().back().last_step(), 4 * kEpoch);
  EXPECT_THAT(second.evaluations(), SizeIs(2));
  EXPECT_EQ(second.checkpoints().front().step(), 3 * kEpoch);
  EXPECT_TRUE(second.checkpoints().front().best());
}

// The rate that the new length gives holds from there on; nothing of it is written in the checkpoint.
TEST_F(ContinuationTest, SteersTheStepsToComeAnew) {
  const std::vector<std::string> parts = {kConvNet, kRun, "optimizer { adamw { learning_rate: 0.01 } }"};
  Recorder first;
  ASSERT_TRUE(Train(Spec(parts), First(), &first).ok());
  const std::vector<std::string> changes = {
      "optimizer { adamw { learning_rate: 0.002 weight_decay: 0.3 } schedule { cosine {} } clip_global_norm: 2 }",
      "train { micro_batch_size: 32 eval_every_steps: 7 } data { eval { glyphs { samples: 64 } } decode_threads: 1 }",
      "optimizer { groups { match: '*.bias' learning_rate_scale: 0.5 } } checkpoint { every_steps: 4 }",
  };
  int run = 0;
  std::vector<std::vector<double>> losses;
  for (const std::string& change : changes) {
    Recorder second;
    const auto outcome = Train(Spec(With(parts, {kTwoEpochs, change, From(CheckpointName(kEpoch))})),
                               Continuing(absl::StrCat("second", ++run)), &second);
    EXPECT_TRUE(outcome.ok()) << change << outcome.status();
    EXPECT_EQ(second.steps().back().last_step(), 2 * kEpoch);
    losses.push_back(second.losses());
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(losses[i], losses[j]) << changes[i] << " as " << changes[j];
  }
  Recorder second;
  ASSERT_TRUE(
      Train(Spec(With(parts, {kTwoEpochs, changes[0], From(CheckpointName(kEpoch))})), Continuing("rate"), &second)
          .ok());
  // Half of the cosine's way, at the eleventh step.
  EXPECT_NEAR(second.steps().front().phases(0).learning_rate(), 0.001, 1e-4);
  EXPECT_THAT(LogOf(second), HasSubstr("goes on at learning rate 0.001"));
}

TEST_F(ContinuationTest, AnotherTrainingIsRefused) {
  const std::vector<std::string> parts = {kConvNet, kRun, "optimizer { sgd { learning_rate: 0.1 momentum: 0.9 } }"};
  Recorder first;
  ASSERT_TRUE(Train(Spec(parts), First(), &first).ok());
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"seed: 6",
       "start_from.continue_training: checkpoint step-000000010 of job 01hq3v7m is of another training: "
       "seed was 5, is 6"},
      {"train { batch_size: 64 }", "train.batch_size was 32, is 64"},
      {"data { train { glyphs { samples: 640 } } }", "data.train.glyphs.samples was 320, is 640"},
      {"data { image { random_flip: false } }", "data.image.random_flip was true, is false"},
      {"precision { mode: BF16 }", "precision.mode was "},
      {"optimizer { adamw {} }", "optimizer.sgd was "},
      {"optimizer { sgd { momentum: 0 } }", "optimizer.sgd.momentum was 0.9, is 0"},
      {"optimizer { sgd { dampening: 0.5 } }", "optimizer.sgd.dampening was 0, is 0.5"},
      {"precision { rules { match: 'head' dtype: FP32 } }", "precision.rules[0] was -, is "},
      {"optimizer { ema {} }", "optimizer.ema was -, is {}"},
      {"model { layers { relu {} } }", "model.layers[5] was -, is "},
      {"train { epochs: 1 }",
       "train.epochs: ends the training at step 10, and checkpoint step-000000010 of job "
       "01hq3v7m stands at step 10 already: its steps count"},
      {"train { steps: 3 }", "train.steps: ends the training at step 3, and "},
  };
  for (const auto& [change, message] : refused) {
    v1::JobSpec spec = Spec(With(parts, {kTwoEpochs, From(CheckpointName(kEpoch))})).proto();
    if (change == "train { steps: 3 }") spec.mutable_train()->clear_epochs();
    if (change == "train { batch_size: 64 }") spec.mutable_train()->clear_micro_batch_size();
    if (change == "precision { mode: BF16 }") spec.clear_precision();
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(change, &spec)) << change;
    const auto resolved = ResolveJobSpec(spec);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    Recorder second;
    const auto trainer = Trainer::Create(*resolved, Continuing("second"), &second);
    ASSERT_FALSE(trainer.ok()) << change;
    EXPECT_EQ(FailureOf(trainer.status()).class_(), v1::Failure::INVALID_SPEC) << trainer.status();
    EXPECT_THAT(std::string(trainer.status().message()), HasSubstr(message));
    // At submit already.
    const v1::PlanResponse plan =
        PlanJob(*resolved, {folder_.path()}, "", nullptr, {}, Continuing("second").start_checkpoint_dir);
    ASSERT_GE(plan.errors_size(), 1) << change << plan.data_error();
    EXPECT_THAT(absl::StrCat(plan.errors(0).field(), ": ", plan.errors(0).description()), HasSubstr(message));
  }
}

// What moments are made by is a part of what they mean.
TEST_F(ContinuationTest, MomentsOfAnotherMakingAreRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"adam", "beta1: 0.5"},        {"adam", "beta2: 0.5"},
      {"adamw", "beta1: 0.5"},       {"adamw", "beta2: 0.5"},
      {"lamb", "beta1: 0.5"},        {"lamb", "beta2: 0.5"},
      {"rmsprop", "smoothing: 0.5"}, {"rmsprop", "momentum: 0.5"},
      {"rmsprop", "centered: true"}, {"adagrad", "initial_accumulator: 100"},
  };
  const auto spec = [](const std::string& kind, const std::string& setting, bool continues) {
    return Spec({kConvNet, kRun, absl::StrCat("optimizer { ", kind, " { ", setting, " } }"),
                 continues ? kTwoEpochs : "", continues ? From(CheckpointName(kEpoch)) : ""});
  };
  for (const auto& [kind, setting] : refused) {
    TrainState state;
    state.step = kEpoch;
    state.spec = HashedSpec(spec(kind, "", false));
    EXPECT_TRUE(CheckContinues(state, spec(kind, "weight_decay: 0.25", true), {.steps = 20, .samples = 320}).ok());
    const absl::Status status = CheckContinues(state, spec(kind, setting, true), {.steps = 20, .samples = 320});
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("optimizer.", kind, ".", setting.substr(0, setting.find(':')), " was ")));
  }
}

TEST_F(ContinuationTest, AnotherNumberOfSamplesIsRefused) {
  TrainState state;
  state.step = kEpoch;
  state.input.samples = 320;
  state.spec = HashedSpec(Spec({kConvNet, kRun}));
  const auto spec = Spec({kConvNet, kRun, kTwoEpochs, From(CheckpointName(kEpoch))});
  EXPECT_TRUE(CheckContinues(state, spec, {.steps = 20, .samples = 320}).ok());
  EXPECT_EQ(CheckContinues(state, spec, {.steps = 20, .samples = 640}).message(),
            "data.train: has 640 samples, and had 320 in the training of checkpoint step-000000010 of job 01hq3v7m");
}

// Without buckets of the file's they follow from data.eval's samples too, which may be others.
TEST_F(ContinuationTest, OtherLengthBucketsAreRefused) {
  TrainState state;
  state.step = kEpoch;
  state.input.samples = 320;
  state.input.length_buckets = {8, 24};
  state.spec = HashedSpec(Spec({kConvNet, kRun}));
  const auto spec = Spec({kConvNet, kRun, kTwoEpochs, From(CheckpointName(kEpoch))});
  EXPECT_TRUE(CheckContinues(state, spec, {.steps = 20, .samples = 320, .length_buckets = {{8, 24}}}).ok());
  EXPECT_THAT(
      std::string(CheckContinues(state, spec, {.steps = 20, .samples = 320, .length_buckets = {{32}}}).message()),
      HasSubstr("data.length_buckets: sequences would be padded to 32 steps, and were to 8, 24 in the training of"));
  EXPECT_TRUE(CheckContinues(state, spec, {.steps = 20, .samples = 320, .length_buckets = std::nullopt}).ok())
      << "data.eval cannot be read yet";
  state.input.length_buckets = {};
  EXPECT_TRUE(CheckContinues(state, spec, {.steps = 20, .samples = 320, .length_buckets = {{32}}}).ok())
      << "an earlier build's";
}

// JSON's -0 is read as 0.
TEST_F(ContinuationTest, TheSameFileIsTheSameTraining) {
  const std::string odd = "model { loss { softmax_cross_entropy { label_smoothing: -0.0 } } }";
  TrainState state;
  state.step = kEpoch;
  state.spec = HashedSpec(Spec({kConvNet, kRun, odd}));
  const auto spec = Spec({kConvNet, kRun, odd, kTwoEpochs, From(CheckpointName(kEpoch))});
  EXPECT_EQ(CheckContinues(state, spec, {.steps = 20, .samples = 320}), absl::OkStatus());
}

// They are of the whole job, and that one was another.
TEST_F(ContinuationTest, RollbacksAndSkipsCountAnew) {
  const std::vector<std::string> parts = {kConvNet, kRun, kScaled};
  Recorder first;
  ASSERT_TRUE(Train(Spec(parts), First(), &first).ok());
  auto state = ReadTrainState(Continuing("second").start_checkpoint_dir);
  ASSERT_TRUE(state.ok());
  ASSERT_FALSE(state->phases[0].skips.recent.empty() && state->phases[0].scaler.steps_skipped == 0);
  const auto loaded =
      LoadContinued(Continuing("second").start_checkpoint_dir,
                    Spec(With(parts, {kTwoEpochs, From(CheckpointName(kEpoch)),
                                      "precision { loss_scale { on_floor: ROLLBACK max_rollbacks: 7 } }"})),
                    {.steps = 20, .samples = 320});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->state.phases[0].scaler.rollbacks, 0);
  EXPECT_EQ(loaded->state.phases[0].skips, SkipHistory());
  EXPECT_EQ(loaded->state.phases[0].inherited_skipped, state->phases[0].scaler.steps_skipped);
}

// Applied steps of the first job are no sign that this one trains.
TEST_F(ContinuationTest, EndsDivergedByItsOwnSteps) {
  const std::vector<std::string> parts = {kConvNet, kRun, "optimizer { sgd { learning_rate: 0.1 } }"};
  Recorder first;
  ASSERT_TRUE(Train(Spec(With(parts, {"train { epochs: 3 }"})), First(), &first).ok());
  // The first step leaves weights whose outputs are infinite, and are finite themselves.
  const auto ruined = [&](const std::string& name, const std::string& limits) {
    Recorder second;
    const auto outcome = Train(Spec(With(parts, {"train { epochs: 5 } optimizer { sgd { learning_rate: 1e30 } }",
                                                 limits, From(CheckpointName(3 * kEpoch))})),
                               Continuing(name, 3 * kEpoch), &second);
    return outcome.ok() ? v1::Failure() : FailureOf(outcome.status());
  };
  EXPECT_EQ(ruined("second", "").class_(), v1::Failure::DIVERGED);
  EXPECT_THAT(ruined("third", "").message(), HasSubstr("the last 19 of 20 steps were skipped"));
  // A window is cut to the job's own steps.
  const v1::Failure limit = ruined("fourth", "limits { max_skip_ratio: 0.25 }");
  EXPECT_EQ(limit.class_(), v1::Failure::LIMIT);
  EXPECT_THAT(limit.message(), HasSubstr("6 of 20 steps were skipped"));
}

TEST_F(ContinuationTest, WhatIsDamagedIsNotRetried) {
  const std::vector<std::string> parts = {kConvNet, kRun};
  Recorder first;
  ASSERT_TRUE(Train(Spec(parts), First(), &first).ok());
  const TrainerOptions options = Continuing("second");
  const auto spec = Spec(With(parts, {kTwoEpochs, From(CheckpointName(kEpoch))}));
  for (const char* file : {"optimizer.safetensors", "state.json", "MANIFEST", "model.safetensors"}) {
    const std::string path = absl::StrCat(options.start_checkpoint_dir, "/", file);
    std::string bytes = Bytes(path);
    std::string damaged = bytes;
    damaged[damaged.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << damaged;
    Recorder second;
    const auto trainer = Trainer::Create(spec, options, &second);
    ASSERT_FALSE(trainer.ok()) << file;
    EXPECT_EQ(FailureOf(trainer.status()).class_(), v1::Failure::DATA) << trainer.status();
    EXPECT_THAT(std::string(trainer.status().message()), HasSubstr("checkpoint step-000000010 of job 01hq3v7m"));
    std::ofstream(path, std::ios::binary) << bytes;
  }
}

}  // namespace
}  // namespace ampd::train
