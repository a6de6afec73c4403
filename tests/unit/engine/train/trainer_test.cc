#include "engine/train/trainer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/train/checkpoint.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kEveryStep = "report { every_steps: 1 }";
const std::string kBatches = "train { batch_size: 32 micro_batch_size: 16 epochs: 4 }";
const std::string kMomentum = "optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } schedule { cosine {} } }";

class TrainerModes : public testing::TestWithParam<const char*> {};

TEST_P(TrainerModes, TheLossFalls) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep, GetParam()});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_THAT(recorder.steps(), SizeIs(40));
  EXPECT_LT(recorder.MeanLoss(35, 5), 0.7 * recorder.MeanLoss(0, 5));
  ASSERT_THAT(recorder.evaluations(), SizeIs(4));
  EXPECT_GT(recorder.evaluations()[3].accuracy(), 0.3);
  EXPECT_EQ(recorder.evaluations()[3].samples(), 100);
  EXPECT_EQ(recorder.evaluations()[3].epoch(), 4);
  EXPECT_EQ(recorder.evaluations()[3].metrics().at("accuracy"), recorder.evaluations()[3].accuracy());
  ASSERT_THAT(recorder.checkpoints(), SizeIs(1));
  EXPECT_EQ(recorder.checkpoints()[0].checkpoint(), "step-000000040");
}

INSTANTIATE_TEST_SUITE_P(Modes, TrainerModes,
                         testing::Values("precision { mode: FP32 }", "precision { mode: FP16 }",
                                         "precision { mode: BF16 }"),
                         [](const auto& info) { return std::string(info.param).substr(18, 4); });

// Everything a training carries: momentum or Adam's moments, the scaler (which both grows and falls), batch norm,
// dropout, the order of the samples.
class TrainerResumes : public testing::TestWithParam<const char*> {};

TEST_P(TrainerResumes, BitForBitFromEveryStep) {
  const auto spec = Spec({kConvNet, kGlyphs, kBatches, kEveryStep, "train { epochs: 2 }",
                          "data { image { random_flip: true random_crop_padding: 2 } }", GetParam()});
  Recorder whole;
  const ScratchFolder folder;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  ASSERT_THAT(whole.losses(), SizeIs(20));
  if (spec.proto().precision().mode() == v1::PrecisionSpec::FP16) {
    // The stops below fall between skips and growths.
    EXPECT_GE(whole.skips().size(), 3u);
    EXPECT_GE(whole.scale_changes().size(), whole.skips().size() + 2);
    EXPECT_GE(whole.steps()[8].phases(0).steps_applied(), 3);
  }
  for (int64_t stop : {1, 9, 10, 13}) {
    SCOPED_TRACE(stop);
    const ScratchFolder parts;
    Recorder recorder;
    auto outcome = Train(spec, Options(parts.path()), &recorder, stop);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(*outcome, Outcome::kStopped);
    EXPECT_EQ(recorder.checkpoints().back().step(), stop);
    TrainerOptions options = Options(parts.path());
    options.last_reported_step = stop;
    outcome = Train(spec, options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(recorder.losses(), whole.losses());
    EXPECT_THAT(recorder.rewound(), IsEmpty());
    ASSERT_EQ(recorder.steps().size(), whole.steps().size());
    for (size_t i = 0; i < whole.steps().size(); ++i) {
      const v1::PhaseReport a = recorder.steps()[i].phases(0), b = whole.steps()[i].phases(0);
      EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString()) << a.DebugString() << b.DebugString();
    }
    ASSERT_EQ(recorder.evaluations().size(), whole.evaluations().size());
    EXPECT_EQ(recorder.evaluations().back().loss(), whole.evaluations().back().loss());
    // Its checksums are those of every file: weights, moments, average and state.
    const std::string manifest = "/checkpoints/step-000000020/MANIFEST";
    EXPECT_EQ(*ReadFile(parts.path() + manifest, 1 << 16), *ReadFile(folder.path() + manifest, 1 << 16));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, TrainerResumes,
    testing::Values("precision { mode: FP16 loss_scale { init: 4e6 growth_interval: 3 } }"
                    "optimizer { sgd { learning_rate: 0.05 momentum: 0.9 } schedule { cosine { warmup_steps: 3 } } }",
                    "precision { mode: BF16 master_weights: false } optimizer { clip_global_norm: 0.5 }",
                    "optimizer { rmsprop { learning_rate: 0.001 momentum: 0.5 centered: true } clip_value: 0.01"
                    "  schedule { cosine_restarts { period_steps: 3 period_factor: 2 } } ema { evaluate: true } }",
                    "optimizer { adagrad { initial_accumulator: 0.1 learning_rate_decay: 0.01 }"
                    "  schedule { multi_step { milestones: 4 milestones: 12 } } }",
                    "precision { mode: FP16 loss_scale { init: 4e6 growth_interval: 3 } }"
                    "optimizer { lamb { learning_rate: 0.01 } decay_norms_and_biases: false ema { decay: 0.9 }"
                    "  groups { match: 'bn1.*' learning_rate_scale: 0.5 } schedule { one_cycle {} } }",
                    "optimizer { sgd { learning_rate: 0.05 momentum: 0.9 dampening: 0.5 }"
                    "  schedule { inverse_square_root { warmup_steps: 5 } } }"));

// What the average is, from the checkpoint of every step; and that evaluation uses it.
TEST(Trainer, TheAverageIsKeptAndEvaluated) {
  const ScratchFolder folder;
  const std::vector<std::string> parts = {
      kConvNet, kGlyphs,    kMomentum,
      kBatches, kEveryStep, "train { epochs: 1 } checkpoint { every_steps: 1 keep_last: 99 }"};
  std::vector<std::string> with = parts;
  with.push_back("optimizer { ema { decay: 0.5 evaluate: true } }");
  Recorder plain, averaged;
  ASSERT_TRUE(Train(Spec(parts), Options(folder.path() + "/plain"), &plain).ok());
  ASSERT_TRUE(Train(Spec(with), Options(folder.path() + "/ema"), &averaged).ok());
  EXPECT_EQ(plain.losses(), averaged.losses()) << "training does not see the average";
  EXPECT_NE(plain.evaluations().back().loss(), averaged.evaluations().back().loss());
  EXPECT_FALSE(std::ifstream(folder.path() + "/plain/checkpoints/step-000000010/ema.safetensors").good());
  std::vector<double> expected;
  for (int step = 1; step <= 10; ++step) {
    const std::string at = absl::StrCat(folder.path(), "/ema/checkpoints/", CheckpointName(step), "/");
    const Safetensors model = Safetensors::Parse(*ReadFile(at + "model.safetensors", 1 << 30)).value();
    const Safetensors ema = Safetensors::Parse(*ReadFile(at + "ema.safetensors", 1 << 30)).value();
    ASSERT_EQ(model.entries().size(), ema.entries().size());
    EXPECT_EQ(model.Bytes(model.entries().at("bn1.running_mean")), ema.Bytes(ema.entries().at("bn1.running_mean")));
    const auto values = [](const Safetensors& file) {
      const absl::string_view bytes = file.Bytes(file.entries().at("head.weight"));
      std::vector<float> floats(bytes.size() / 4);
      std::memcpy(floats.data(), bytes.data(), bytes.size());
      return floats;
    };
    const std::vector<float> w = values(model), a = values(ema);
    if (step == 1) expected.assign(a.begin(), a.end());
    for (size_t i = 0; i < w.size(); ++i) {
      if (step > 1) expected[i] = 0.5 * expected[i] + 0.5 * w[i];
      ASSERT_NEAR(a[i], expected[i], 1e-6) << step;
    }
  }
}

TEST(Trainer, RewindsToTheCheckpointBefore) {
  const ScratchFolder folder;
  const auto spec = Spec(
      {kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep, "train { epochs: 1 }", "checkpoint { every_steps: 4 }"});
  Recorder first;
  first.on_event = [](const v1::JobEvent& event) {
    return event.has_step() && event.step().last_step() == 7 ? absl::UnavailableError("observer gone")
                                                             : absl::OkStatus();
  };
  const auto failed = Trainer::Create(spec, Options(folder.path()), &first).value()->Run();
  EXPECT_EQ(failed.status(), absl::UnavailableError("observer gone"));
  TrainerOptions options = Options(folder.path());
  options.last_reported_step = 7;
  Recorder second;
  ASSERT_TRUE(Train(spec, options, &second).ok());
  ASSERT_TRUE(second.events.front().has_rewound());
  EXPECT_EQ(second.events.front().rewound().to_step(), 4);
  ASSERT_THAT(second.losses(), SizeIs(6));
  EXPECT_EQ(second.losses()[0], first.losses()[4]);
  EXPECT_EQ(second.losses()[2], first.losses()[6]);
}

TEST(Trainer, ResumesFromTheNewestCheckpointThatGotOut) {
  const ScratchFolder folder;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep,
                          "train { epochs: 2 eval_every_epochs: 1 }", "checkpoint { every_steps: 5 }"});
  Recorder whole;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  ASSERT_EQ(whole.checkpoints().back().step(), 20);
  // Steps up to 20 were told, but neither the last evaluation nor the checkpoint after it.
  TrainerOptions options = Options(folder.path());
  options.last_reported_step = 20;
  options.last_checkpoint = "step-000000015";
  Recorder again;
  ASSERT_TRUE(Train(spec, options, &again).ok());
  ASSERT_THAT(again.rewound(), SizeIs(1));
  EXPECT_EQ(again.rewound()[0].to_step(), 15);
  ASSERT_THAT(again.evaluations(), SizeIs(1));
  EXPECT_EQ(again.evaluations()[0].loss(), whole.evaluations().back().loss());
  // Nothing got out: from the start.
  options.last_checkpoint = "";
  options.last_reported_step = 0;
  Recorder anew;
  ASSERT_TRUE(Train(spec, options, &anew).ok());
  EXPECT_EQ(anew.losses(), whole.losses());
}

TEST(Trainer, ResumesFromTheMirrorWhereItsOwnCheckpointsAreLost) {
  const ScratchFolder folder, other;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep,
                          "train { epochs: 2 eval_every_epochs: 1 }", "checkpoint { every_steps: 5 keep_last: 2 }"});
  TrainerOptions options = Options(folder.path() + "/own");
  options.mirror_dir = other.path();
  Recorder whole;
  ASSERT_TRUE(Train(spec, options, &whole).ok());
  const std::vector<double> losses = whole.losses();
  std::filesystem::remove_all(options.checkpoint_dir);
  options.last_reported_step = 17;
  options.last_checkpoint = "step-000000015";
  Recorder again;
  ASSERT_TRUE(Train(spec, options, &again).ok());
  const auto rewound = std::find_if(again.events.begin(), again.events.end(),
                                    [](const v1::JobEvent& event) { return event.has_rewound(); });
  ASSERT_NE(rewound, again.events.end());
  EXPECT_EQ(rewound->rewound().to_step(), 15);
  EXPECT_EQ(rewound->rewound().reason(), "resumed from checkpoint step-000000015, the copy in the mirror");
  EXPECT_EQ(again.losses(), std::vector<double>(losses.begin() + 15, losses.end()));
}

// A worker that gave its daemon up: nothing after step 6 got out.
TEST(Trainer, ResumesFromWhatTheAttemptBeforeLeft) {
  const ScratchFolder folder, other;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep,
                          "train { epochs: 2 eval_every_epochs: 1 }", "checkpoint { every_steps: 5 }"});
  Recorder whole;
  ASSERT_TRUE(Train(spec, Options(other.path()), &whole).ok());
  const std::vector<double> losses = whole.losses();
  TrainerOptions options = Options(folder.path());
  options.last_checkpoint = "";
  options.attempt = 1;
  Recorder first;
  auto trainer = Trainer::Create(spec, options, &first);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  first.on_event = [&](const v1::JobEvent& event) {
    if (event.has_step() && event.step().last_step() == 12) (*trainer)->Request(Command::kCheckpointAndStop);
    return absl::OkStatus();
  };
  ASSERT_EQ(*(*trainer)->Run(), Outcome::kStopped);
  ASSERT_TRUE((*trainer)->LeaveCheckpoint().ok());
  options.last_checkpoint = "step-000000005";
  options.last_reported_step = 6;
  options.attempt = 2;
  Recorder second;
  ASSERT_TRUE(Train(spec, options, &second).ok());
  const int64_t left = 20 - static_cast<int64_t>(second.losses().size());
  EXPECT_GE(left, 12);
  EXPECT_EQ(second.losses(), std::vector<double>(losses.begin() + left, losses.end()));
  const auto& warning = second.events.front();
  EXPECT_EQ(warning.log().text(), absl::StrCat("resumed from checkpoint ", CheckpointName(left),
                                               ", as LEFT has it (of an attempt that had no daemon any more, or whose "
                                               "daemon had an older database); steps 7 to ",
                                               left, " have no reports"));
  // So that the daemon knows of it, and where the training stands.
  const v1::CheckpointSaved told = second.checkpoints().front();
  EXPECT_EQ(told.step(), left);
  EXPECT_TRUE(told.already_written());
  EXPECT_EQ(told.write_seconds(), 0);
  EXPECT_EQ(told.epoch(), (left - 1) / 10 + 1);
  EXPECT_EQ(told.total_steps(), 20);
  ASSERT_EQ(told.phases_size(), 1);
  EXPECT_EQ(told.phases(0).name(), "main");
  EXPECT_EQ(told.phases(0).loss(), losses[static_cast<size_t>(left) - 1]);
  EXPECT_EQ(told.phases(0).steps_applied() + told.phases(0).steps_skipped(), left);
  const v1::CheckpointSaved last = second.checkpoints().back();
  EXPECT_FALSE(last.already_written());
  EXPECT_EQ(last.epoch(), 2);
  EXPECT_EQ(last.phases(0).loss(), losses.back());
  EXPECT_EQ(last.phases(0).steps_applied(), 20);
  // The attempt ended before the daemon took its end.
  options.last_checkpoint = last.checkpoint();
  options.last_reported_step = 20;
  options.attempt = 3;
  Recorder third;
  ASSERT_TRUE(Train(spec, options, &third).ok());
  EXPECT_TRUE(third.checkpoints().at(0).already_written());
  EXPECT_EQ(third.checkpoints().at(0).phases(0).loss(), losses.back());
}

// Two epochs of ten steps; a checkpoint every other step replaces the one before.
ResolvedJobSpec OneCheckpointKept() {
  return Spec({kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep, "train { epochs: 2 eval_every_epochs: 1 }",
               "checkpoint { every_steps: 2 keep_last: 1 }"});
}

// Of a training that nothing interrupts.
std::vector<double> LossesOf(const ResolvedJobSpec& spec) {
  const ScratchFolder folder;
  Recorder whole;
  EXPECT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  return whole.losses();
}

// UNAVAILABLE as the checkpoint of `step` is told.
absl::Status KilledAt(int64_t step, const v1::JobEvent& event) {
  return event.has_checkpoint() && event.checkpoint().step() == step ? absl::UnavailableError("killed")
                                                                     : absl::OkStatus();
}

// A daemon that is away while the worker writes many checkpoints, until both die.
TEST(Trainer, TheCheckpointThatGotOutStaysUntilANewerOneDid) {
  const ScratchFolder folder;
  const ResolvedJobSpec spec = OneCheckpointKept();
  const std::vector<double> losses = LossesOf(spec);
  TrainerOptions options = Options(folder.path());
  options.last_checkpoint = "";
  std::string published;
  options.published_checkpoint = [&published] { return published; };
  Recorder first;
  first.on_event = [&](const v1::JobEvent& event) {
    // Nothing gets out after step 6.
    if (event.has_checkpoint() && event.checkpoint().step() <= 6) published = event.checkpoint().checkpoint();
    return KilledAt(16, event);
  };
  ASSERT_EQ(Train(spec, options, &first).status(), absl::UnavailableError("killed"));
  for (const std::string killed_again : {"yes", "no"}) {
    options.last_checkpoint = "step-000000006";
    options.last_reported_step = 6;
    published.clear();
    Recorder second;
    second.on_event = [&](const v1::JobEvent& event) {
      return killed_again == "yes" ? KilledAt(14, event) : absl::OkStatus();
    };
    EXPECT_EQ(Train(spec, options, &second).ok(), killed_again == "no");
    ASSERT_FALSE(second.losses().empty());
    EXPECT_EQ(second.losses()[0], losses[6]) << "killed again: " << killed_again;
    if (killed_again == "yes") continue;
    EXPECT_EQ(second.losses(), std::vector<double>(losses.begin() + 6, losses.end()));
    EXPECT_THAT(second.evaluations(), SizeIs(2));
  }
}

// The daemon made them durable, and died before it said so.
TEST(Trainer, TheFirstCheckpointStaysUntilOneGotOut) {
  const ScratchFolder folder;
  const ResolvedJobSpec spec = OneCheckpointKept();
  const std::vector<double> losses = LossesOf(spec);
  TrainerOptions options = Options(folder.path());
  options.last_checkpoint = "";
  options.published_checkpoint = [] { return ""; };
  Recorder first;
  first.on_event = [](const v1::JobEvent& event) { return KilledAt(10, event); };
  ASSERT_EQ(Train(spec, options, &first).status(), absl::UnavailableError("killed"));
  options.last_checkpoint = "step-000000004";
  options.last_reported_step = 5;
  Recorder second;
  ASSERT_TRUE(Train(spec, options, &second).ok());
  ASSERT_THAT(second.rewound(), SizeIs(1));
  EXPECT_EQ(second.rewound()[0].to_step(), 2);
  EXPECT_EQ(second.losses(), std::vector<double>(losses.begin() + 2, losses.end()));
}

// What the daemon knew of is gone: what is newer is sooner gone on from than begun anew, and it is told.
TEST(Trainer, StepsWithoutReportsAreTold) {
  const ScratchFolder folder;
  const auto spec = Spec(
      {kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep, "train { epochs: 1 }", "checkpoint { every_steps: 4 }"});
  TrainerOptions options = Options(folder.path());
  Recorder first, second;
  ASSERT_TRUE(Train(spec, options, &first, /*stop_at=*/8).ok());
  std::filesystem::remove_all(folder.path() + "/checkpoints/step-000000004");
  options.last_checkpoint = "step-000000004";
  options.last_reported_step = 5;
  ASSERT_TRUE(Train(spec, options, &second).ok());
  ASSERT_FALSE(second.logs().empty());
  EXPECT_EQ(second.logs()[0].severity(), v1::LogLine::WARNING);
  EXPECT_THAT(second.logs()[0].text(), HasSubstr("step-000000008; steps 6 to 8 have no reports"));
  EXPECT_EQ(second.steps()[0].first_step(), 9);
}

TEST(Trainer, ADamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  const ScratchFolder folder;
  const auto spec = Spec(
      {kConvNet, kGlyphs, kMomentum, kBatches, kEveryStep, "train { epochs: 1 }", "checkpoint { every_steps: 4 }"});
  Recorder whole;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &whole).ok());
  std::ofstream(folder.path() + "/checkpoints/step-000000010/model.safetensors", std::ios::app) << "x";
  TrainerOptions options = Options(folder.path());
  options.last_reported_step = 10;
  Recorder again;
  ASSERT_TRUE(Train(spec, options, &again).ok());
  ASSERT_THAT(again.logs(), SizeIs(1));
  EXPECT_EQ(again.logs()[0].severity(), v1::LogLine::WARNING);
  EXPECT_THAT(again.logs()[0].text(), HasSubstr("step-000000010"));
  ASSERT_THAT(again.rewound(), SizeIs(1));
  EXPECT_EQ(again.rewound()[0].to_step(), 8);
  const std::vector<double> losses = whole.losses();
  EXPECT_EQ(again.losses(), std::vector<double>(losses.begin() + 8, losses.end()));
}

TEST(Trainer, ACompletedJobTellsItsEndAgain) {
  const ScratchFolder folder;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, "train { epochs: 1 }"});
  Recorder first, second;
  ASSERT_TRUE(Train(spec, Options(folder.path()), &first).ok());
  TrainerOptions options = Options(folder.path());
  options.last_reported_step = 10;
  const auto outcome = Train(spec, options, &second);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_THAT(second.steps(), IsEmpty());
  ASSERT_THAT(second.evaluations(), SizeIs(1));
  EXPECT_EQ(second.evaluations()[0].loss(), first.evaluations().back().loss());
  ASSERT_THAT(second.checkpoints(), SizeIs(1));
  EXPECT_EQ(second.checkpoints()[0].size_bytes(), first.checkpoints()[0].size_bytes());
}

TEST(Trainer, ACheckpointOfAnotherSpecIsRefused) {
  const ScratchFolder folder;
  const std::vector<std::string> parts = {kConvNet, kGlyphs, kMomentum, kBatches, "train { epochs: 1 }"};
  Recorder recorder;
  ASSERT_TRUE(Train(Spec(parts), Options(folder.path()), &recorder).ok());
  std::vector<std::string> other = parts;
  other.push_back("seed: 5");
  const auto refused = Train(Spec(other), Options(folder.path()), &recorder);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FailureOf(refused.status()).class_(), v1::Failure::INVALID_SPEC);
}

TEST(Trainer, MicroBatchesAddUpToTheBatch) {
  const std::string mlp =
      "model { layers { flatten {} } layers { dense { units: 16 activation: RELU } } layers { dense { units: 10 } }"
      "        loss { softmax_cross_entropy {} } }";
  std::vector<std::vector<double>> losses;
  for (const char* micro : {"train { micro_batch_size: 32 }", "train { micro_batch_size: 4 }"}) {
    const ScratchFolder folder;
    Recorder recorder;
    ASSERT_TRUE(Train(Spec({mlp, kGlyphs, kMomentum, kBatches, kEveryStep, "train { epochs: 1 }", micro}),
                      Options(folder.path()), &recorder)
                    .ok());
    losses.push_back(recorder.losses());
  }
  ASSERT_EQ(losses[0].size(), losses[1].size());
  for (size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-5);
}

TEST(Trainer, EventsAreInStepOrder) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, kMomentum, kBatches, "report { max_per_second: 0.001 }",
                          "precision { mode: FP16 loss_scale { init: 1e30 } }", "checkpoint { every_steps: 7 }",
                          "train { epochs: 12 }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  int64_t at = 0, reported = 0;
  for (const v1::JobEvent& event : recorder.events) {
    // That more was skipped than applied.
    if (event.has_log()) continue;
    if (event.has_step()) {
      EXPECT_EQ(event.step().first_step(), reported + 1);
      reported = event.step().last_step();
    }
    const int64_t step = event.has_step()            ? event.step().last_step()
                         : event.has_overflow_skip() ? event.overflow_skip().step()
                         : event.has_evaluation()    ? event.evaluation().step()
                         : event.has_checkpoint()    ? event.checkpoint().step()
                                                     : event.loss_scale_change().step();
    EXPECT_GE(step, at);
    EXPECT_EQ(reported, step) << event.DebugString();
    at = step;
  }
  EXPECT_EQ(reported, 120);
}

TEST(Trainer, FloatTargetsAndOneHotLabels) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec =
      Spec({"model { layers { flatten {} } layers { dense { units: 10 } } loss { mean_squared_error {} } }", kGlyphs,
            kBatches, kEveryStep, "train { epochs: 1 }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_THAT(recorder.evaluations(), SizeIs(1));
  EXPECT_TRUE(recorder.evaluations()[0].has_accuracy());
}

TEST(Trainer, EvaluationTargetsOfAnotherKindAreRefused) {
  const ScratchFolder folder;
  WriteNpy<float>(folder.path() + "/x.npy", "<f4", {4, 2}, std::vector<float>(8, 0.5f));
  WriteNpy<int32_t>(folder.path() + "/labels.npy", "<i4", {4}, {0, 1, 2, 0});
  WriteNpy<float>(folder.path() + "/floats.npy", "<f4", {4, 3}, std::vector<float>(12, 0.5f));
  const auto status_of = [&](const std::string& train, const std::string& eval) {
    Recorder recorder;
    return Train(Spec({"model { layers { dense { units: 3 } } loss { mean_squared_error {} } } train { batch_size: 4 }",
                       "data { train { npy { inputs: 'x.npy' targets: '" + train + "' } } }",
                       "data { eval { npy { inputs: 'x.npy' targets: '" + eval + "' } } }"}),
                 Options(folder.path()), &recorder)
        .status();
  };
  EXPECT_TRUE(status_of("labels.npy", "labels.npy").ok());
  for (const auto& status : {status_of("labels.npy", "floats.npy"), status_of("floats.npy", "labels.npy")}) {
    EXPECT_EQ(FailureOf(status).class_(), v1::Failure::INVALID_SPEC) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("data.eval"));
  }
}

TEST(Trainer, ErrorsCarryTheirClass) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto class_of = [&](const std::vector<std::string>& parts, TrainerOptions options) {
    return FailureOf(Train(Spec(parts), options, &recorder).status()).class_();
  };
  const TrainerOptions options = Options(folder.path());
  EXPECT_EQ(class_of({kConvNet, "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } }"}, options),
            v1::Failure::DATA);
  EXPECT_EQ(class_of({kConvNet, kGlyphs, "train { batch_size: 1000 }"}, options), v1::Failure::INVALID_SPEC);
  TrainerOptions cuda = options;
  cuda.device = "GPU-0";
  EXPECT_NE(class_of({kConvNet, kGlyphs}, cuda), v1::Failure::DATA);
}

TEST(PlanJob, CountsParametersAndMemory) {
  const auto plan = PlanJob(Spec({kConvNet, kGlyphs, kBatches, "precision { mode: FP16 }"}), {});
  EXPECT_THAT(plan.errors(), IsEmpty());
  EXPECT_EQ(plan.data_error(), "");
  // 3x3x1x6+6, two of 6, and 13x13x6 features to 10 units.
  EXPECT_EQ(plan.plan().parameters(), 60 + 12 + 1014 * 10 + 10);
  // Masters, gradients and Adam's two moments at least.
  EXPECT_GE(plan.plan().parameter_bytes(), 16 * plan.plan().parameters());
  // The input alone, in fp16, for one micro-batch.
  EXPECT_GE(plan.plan().activation_bytes(), 16 * 28 * 28 * 2);
  EXPECT_EQ(plan.plan().input_shape_size(), 3);
  ASSERT_EQ(plan.plan().layers_size(), 5);
  EXPECT_EQ(plan.plan().layers(4).name(), "head");
  EXPECT_EQ(plan.plan().layers(4).dtype(), "f16");
}

TEST(PlanJob, CountsTheModelsProducts) {
  const auto plan = PlanJob(Spec({kConvNet, kGlyphs, kBatches}), {});
  // The filter of 3x3x1x6 at 13x13 places, forward and for its own gradient (the input needs none); the matrix of
  // 1014x10 forward and for both gradients; multiply and add; over a batch of 32.
  const double conv = 2 * 2.0 * 13 * 13 * 6 * 9, dense = 3 * 2.0 * 1014 * 10;
  EXPECT_EQ(plan.plan().step_flops(), 32 * (conv + dense));
  const auto whole = PlanJob(Spec({kConvNet, kGlyphs, "train { batch_size: 32 }", "precision { mode: BF16 }"}), {});
  EXPECT_EQ(whole.plan().step_flops(), plan.plan().step_flops());
}

TEST(PlanJob, NamesTheFieldThatDoesNotFit) {
  const auto plan =
      PlanJob(Spec({"model { layers { dense { units: 10 } } loss { softmax_cross_entropy {} } }", kGlyphs}), {});
  ASSERT_FALSE(plan.errors().empty());
  EXPECT_TRUE(absl::StartsWith(plan.errors(0).field(), "model")) << plan.errors(0).field();
  const auto small = PlanJob(Spec({kConvNet, kGlyphs, "train { batch_size: 999 }"}), {});
  ASSERT_FALSE(small.errors().empty());
  EXPECT_EQ(small.errors(0).field(), "train.batch_size");
}

TEST(PlanJob, DataThatCannotBeReadIsNoError) {
  const auto plan = PlanJob(Spec({kConvNet, "data { train { idx { images: 'a' labels: 'b' } } }"}), {"/nonexistent"});
  EXPECT_THAT(plan.errors(), IsEmpty());
  EXPECT_THAT(plan.data_error(), HasSubstr("data.train"));
}

}  // namespace
}  // namespace ampd::train
