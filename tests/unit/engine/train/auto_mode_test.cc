#include "engine/train/auto_mode.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint.h"
#include "engine/train/failure.h"
#include "engine/train/planned_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/far_memory.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;
using v1::PrecisionSpec;

const std::string kAuto = "precision { mode: AUTO auto { modes: BF16 modes: FP16 steps: 10 } }";
const std::string kShort = "train { batch_size: 32 steps: 12 } report { every_steps: 1 }";

v1::BenchCell Cell(PrecisionSpec::Mode mode, double seconds, double loss) {
  v1::BenchCell cell;
  cell.set_mode(mode);
  cell.set_step_seconds(seconds);
  cell.set_step_seconds_p10(0.9 * seconds);
  cell.set_loss(loss);
  return cell;
}

TEST(ChooseMode, TakesTheFastestWithinTheTolerance) {
  const std::vector<v1::BenchCell> cells = {Cell(PrecisionSpec::FP32, 1, 2.0), Cell(PrecisionSpec::FP16, 0.4, 2.05),
                                            Cell(PrecisionSpec::BF16, 0.5, 2.03)};
  EXPECT_EQ(ChooseMode(cells, 0.02).mode(), PrecisionSpec::BF16);
  EXPECT_EQ(ChooseMode(cells, 0.03).mode(), PrecisionSpec::FP16);
  EXPECT_EQ(ChooseMode(cells, 0.01).mode(), PrecisionSpec::FP32);
  const v1::ModeChosen chosen = ChooseMode(cells, 0.02);
  EXPECT_THAT(chosen.reason(),
              HasSubstr("FP16: 2.50 times as fast as FP32, its loss 2.5% above, which is more than 2%"));
  EXPECT_THAT(chosen.reason(), HasSubstr("BF16: 2.00 times as fast"));
  ASSERT_EQ(chosen.cells_size(), 3);
  EXPECT_EQ(chosen.cells(0).mode(), PrecisionSpec::FP32);
}

TEST(ChooseMode, ALowerLossIsNoFault) {
  EXPECT_EQ(ChooseMode({Cell(PrecisionSpec::FP32, 1, 2.0), Cell(PrecisionSpec::TF32, 0.5, 0.1)}, 0.001).mode(),
            PrecisionSpec::TF32);
  EXPECT_EQ(ChooseMode({Cell(PrecisionSpec::FP32, 1, -2.0), Cell(PrecisionSpec::TF32, 0.5, -1.9)}, 0.02).mode(),
            PrecisionSpec::FP32)
      << "of a negative loss too, more is worse";
}

TEST(ChooseMode, StaysInFp32UnlessAModeIsClearlyFaster) {
  EXPECT_EQ(ChooseMode({Cell(PrecisionSpec::FP32, 1, 2), Cell(PrecisionSpec::BF16, 1.5, 2)}, 0.02).mode(),
            PrecisionSpec::FP32);
  EXPECT_EQ(ChooseMode({Cell(PrecisionSpec::FP32, 1, 2), Cell(PrecisionSpec::BF16, 0.99, 2)}, 0.02).mode(),
            PrecisionSpec::FP32);
  // Faster at the median alone: something else slowed FP32's steps.
  v1::BenchCell lucky = Cell(PrecisionSpec::TF32, 0.8, 2);
  lucky.set_step_seconds_p10(0.9);
  const v1::ModeChosen chosen = ChooseMode({Cell(PrecisionSpec::FP32, 1, 2), lucky}, 0.02);
  EXPECT_EQ(chosen.mode(), PrecisionSpec::FP32);
  EXPECT_THAT(chosen.reason(), HasSubstr("no faster in either's best steps"));
}

TEST(ChooseMode, WhatIsNotFiniteOrFailedIsOut) {
  v1::BenchCell failed = Cell(PrecisionSpec::FP16, 0, 0);
  failed.mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
  failed.mutable_failure()->set_message("too large");
  v1::BenchCell without = Cell(PrecisionSpec::TF32, 0.1, 0);
  without.clear_loss();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const v1::ModeChosen chosen =
      ChooseMode({Cell(PrecisionSpec::FP32, 1, 2), failed, without, Cell(PrecisionSpec::BF16, 0.1, nan)}, 1);
  EXPECT_EQ(chosen.mode(), PrecisionSpec::FP32);
  EXPECT_THAT(chosen.reason(), HasSubstr("FP16: OUT_OF_MEMORY, too large"));
  EXPECT_THAT(chosen.reason(), HasSubstr("no finite loss to compare"));
  EXPECT_EQ(ChooseMode({Cell(PrecisionSpec::FP32, 1, nan), Cell(PrecisionSpec::BF16, 0.1, 2)}, 1).mode(),
            PrecisionSpec::FP32);
}

v1::BenchCell TooLarge(PrecisionSpec::Mode mode) {
  v1::BenchCell cell;
  cell.set_mode(mode);
  cell.mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
  cell.mutable_failure()->set_message("too large");
  return cell;
}

TEST(ChooseMode, WhereFp32DoesNotFitTheFastestThatTrains) {
  const v1::BenchCell fp32 = TooLarge(PrecisionSpec::FP32), without = Cell(PrecisionSpec::TF32, 0.1, NAN);
  const auto chosen = ChooseWithoutFp32({fp32, without, Cell(PrecisionSpec::FP16, 0.004, 2),
                                         Cell(PrecisionSpec::BF16, 0.003, 2.5), TooLarge(PrecisionSpec::FP8)});
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->mode(), PrecisionSpec::BF16);
  EXPECT_EQ(chosen->cells_size(), 5);
  EXPECT_EQ(chosen->reason(),
            "FP32 does not fit in memory, so that no loss could be compared with its own; "
            "FP32: OUT_OF_MEMORY, too large; TF32: no finite loss; FP16: 4 ms a step, loss 2; "
            "BF16: 3 ms a step, loss 2.5; FP8: OUT_OF_MEMORY, too large");
  EXPECT_FALSE(ChooseWithoutFp32({fp32, TooLarge(PrecisionSpec::BF16), without}).has_value());
}

TEST(ChosenMode, IsKeptBesideTheCheckpoints) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/job";
  ASSERT_TRUE(LoadChosenMode(path).ok());
  EXPECT_FALSE(LoadChosenMode(path)->has_value());
  v1::ModeChosen chosen = ChooseMode({Cell(PrecisionSpec::FP32, 1, 2), Cell(PrecisionSpec::BF16, 0.5, 2)}, 0.02);
  ASSERT_TRUE(SaveChosenMode(path, chosen).ok());
  EXPECT_EQ((**LoadChosenMode(path)).SerializeAsString(), chosen.SerializeAsString());
  chosen.set_mode(PrecisionSpec::FP16);
  ASSERT_TRUE(SaveChosenMode(path, chosen).ok());
  EXPECT_EQ((**LoadChosenMode(path)).mode(), PrecisionSpec::FP16);
  for (const char* text : {"", "x", "\n", "0123\n{\"mode\":\"FP16\"}"}) {
    std::ofstream(path + "/mode_chosen.json") << text;
    EXPECT_TRUE(absl::IsDataLoss(LoadChosenMode(path).status())) << text;
  }
}

std::vector<v1::ModeChosen> Choices(const Recorder& recorder) {
  std::vector<v1::ModeChosen> choices;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_mode_chosen()) choices.push_back(event.mode_chosen());
  }
  return choices;
}

// Whichever mode it takes, the training is that mode's own, from the same first weights.
TEST(AutoTrainer, TrainsAsAJobOfTheModeItChose) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome = Train(Spec({kConvNet, kGlyphs, kShort, kAuto}), Options(folder.path() + "/auto"), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_EQ(Choices(recorder).size(), 1u);
  const v1::ModeChosen chosen = Choices(recorder)[0];
  ASSERT_EQ(chosen.cells_size(), 3);
  EXPECT_EQ(chosen.cells(0).mode(), PrecisionSpec::FP32);
  EXPECT_EQ(chosen.cells(1).mode(), PrecisionSpec::BF16);
  for (const v1::BenchCell& cell : chosen.cells()) {
    EXPECT_FALSE(cell.has_failure()) << cell.DebugString();
    EXPECT_EQ(cell.steps(), 8) << "the first fifth is not timed";
    EXPECT_GT(cell.loss(), 0);
  }
  Recorder plain;
  const std::string mode = "precision { mode: " + PrecisionSpec::Mode_Name(chosen.mode()) + " }";
  ASSERT_TRUE(Train(Spec({kConvNet, kGlyphs, kShort, mode}), Options(folder.path() + "/plain"), &plain).ok());
  EXPECT_EQ(recorder.losses(), plain.losses());
}

// What compares modes evaluates nothing; the training does, and keeps its best.
TEST(AutoTrainer, KeepsTheBestCheckpoint) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec = Spec({kConvNet, kGlyphs, kAuto, "checkpoint { keep_best: 'accuracy' }",
                          "train { batch_size: 32 epochs: 1 } report { every_steps: 1 }"});
  const auto outcome = Train(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_EQ(Choices(recorder).size(), 1u);
  EXPECT_EQ(recorder.evaluations().size(), 1u);
  EXPECT_FALSE(recorder.checkpoints().empty());
}

TEST(AutoTrainer, StopsEarly) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto spec =
      Spec({kConvNet, kGlyphs, kAuto,
            "train { batch_size: 32 epochs: 9 early_stopping { metric: 'accuracy' patience: 1 min_delta: 1 } }"});
  auto trainer = Trainer::Create(spec, Options(folder.path()), &recorder);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->evaluated_samples(), 0);
  const auto outcome = (*trainer)->Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_EQ((*trainer)->evaluated_samples(), 2 * 100);
  EXPECT_EQ(Choices(recorder).size(), 1u);
  EXPECT_THAT((*trainer)->end_reason(), HasSubstr("stopped early, after step 20 of 90: in 1 evaluation accuracy got"));
}

TEST(AutoTrainer, AnotherAttemptDoesNotChooseAnew) {
  const ScratchFolder folder;
  const auto spec = Spec({kConvNet, kGlyphs, kShort, kAuto});
  Recorder recorder;
  auto outcome = Train(spec, Options(folder.path()), &recorder, /*stop_at=*/5);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kStopped);
  // What the measurement said then stands, whatever it would say now.
  TrainerOptions options = Options(folder.path());
  options.last_reported_step = 5;
  options.clock = []() -> double {
    ADD_FAILURE() << "modes were measured again";
    return 0;
  };
  outcome = Train(spec, options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_EQ(Choices(recorder).size(), 2u);
  EXPECT_EQ(Choices(recorder)[0].SerializeAsString(), Choices(recorder)[1].SerializeAsString());
  EXPECT_EQ(recorder.losses().size(), 12u);
}

// The mirror has checkpoints, but not the decision.
TEST(AutoTrainer, GoesOnInTheModeOfItsCheckpointsWhereItsFolderIsLost) {
  const ScratchFolder folder, mirror;
  const auto spec = Spec({kConvNet, kGlyphs, kShort, kAuto, "checkpoint { every_steps: 5 }"});
  TrainerOptions options = Options(folder.path() + "/own");
  options.mirror_dir = mirror.path();
  Recorder first;
  ASSERT_TRUE(Train(spec, options, &first, /*stop_at=*/5).ok());
  ASSERT_EQ(Choices(first).size(), 1u);
  std::filesystem::remove_all(options.checkpoint_dir);
  options.last_reported_step = 5;
  options.last_checkpoint = CheckpointName(5);
  options.clock = []() -> double {
    ADD_FAILURE() << "modes were measured again";
    return 0;
  };
  for (const bool again : {false, true}) {
    Recorder next;
    const auto outcome = Train(spec, options, &next);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(Choices(next).size(), 1u);
    EXPECT_EQ(Choices(next)[0].mode(), Choices(first)[0].mode());
    EXPECT_THAT(Choices(next)[0].reason(), HasSubstr("its checkpoints are in this mode"));
    if (again) continue;
    EXPECT_EQ(next.losses().size(), 7u) << "from step 5 on";
    options.last_checkpoint = CheckpointName(12);
  }
}

TEST(AutoTrainer, WhoSharesADeviceComparesOneModeAtATime) {
  const ScratchFolder folder;
  Recorder recorder;
  const auto outcome =
      Train(Spec({kConvNet, kGlyphs, kShort, kAuto, "resources { share: true }"}), Options(folder.path()), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(Choices(recorder).size(), 1u);
  EXPECT_EQ(Choices(recorder)[0].cells_size(), 3);
  const auto logs = recorder.logs();
  EXPECT_TRUE(std::any_of(logs.begin(), logs.end(), [](const v1::LogLine& line) {
    return line.text().find("the job shares its device") != std::string::npos;
  }));
}

// What it takes is what the comparison asks for: all that is planned, beside it the batches on a device's host.
int64_t BytesIn(const std::string& job, const char* mode) {
  const auto spec = Spec({job, kGlyphs, kShort, absl::StrCat("precision { mode: ", mode, " }")});
  const auto sample = models::SampleInfo{.input_shape = {28, 28, 1}, .classes = 10};
  const auto planned = PlanModel(spec, sample, testing::MakeFarMemoryBackend(1), 1);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return (*planned)->parameter_bytes() + (*planned)->activation_bytes() + (*planned)->input_bytes();
}

TEST(AutoTrainer, TakesAModeThatFitsWhereFp32DoesNot) {
  const std::string wide =
      "model { layers { name: 'c' conv2d { filters: 64 kernel: 3 activation: RELU } }"
      "        layers { name: 'd' conv2d { filters: 64 kernel: 3 stride: 4 } }"
      "        layers { name: 'pool' global_avg_pool {} } layers { name: 'head' dense { units: 10 } }"
      "        loss { softmax_cross_entropy {} } }";
  const int64_t full = BytesIn(wide, "FP32"), half = BytesIn(wide, "BF16");
  ASSERT_LT(half * 1.3, full);
  const ScratchFolder folder;
  TrainerOptions options = Options(folder.path());
  // A comparison takes nine tenths of a device.
  const int64_t between = (half + full) / 2 * 10 / 9;
  options.make_backend = [between]() -> absl::StatusOr<std::unique_ptr<runtime::Backend>> {
    return testing::MakeFarMemoryBackend(1, {.total_bytes = between});
  };
  Recorder recorder;
  const std::string chosen = "precision { mode: AUTO auto { modes: BF16 steps: 10 } }";
  const auto outcome = Train(Spec({wide, kGlyphs, kShort, chosen}), options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_EQ(Choices(recorder).size(), 1u);
  EXPECT_EQ(Choices(recorder)[0].mode(), PrecisionSpec::BF16);
  EXPECT_THAT(Choices(recorder)[0].reason(), HasSubstr("FP32 does not fit in memory"));
  EXPECT_EQ(recorder.losses().size(), 12u);
}

// A device with less than a job plans is never given to it.
TEST(AutoTrainer, ItsPlanIsTheSmallestModes) {
  const auto bytes = [](const std::string& precision) {
    const v1::PlanResponse plan = PlanJob(Spec({kConvNet, kGlyphs, "precision { " + precision + " }"}), {});
    EXPECT_EQ(plan.errors_size(), 0);
    return plan.plan().parameter_bytes() + plan.plan().activation_bytes();
  };
  EXPECT_EQ(bytes("mode: AUTO auto { modes: BF16 modes: FP16 }"),
            std::min({bytes("mode: FP32"), bytes("mode: BF16"), bytes("mode: FP16")}));
}

TEST(AutoTrainer, StopsAmidTheComparison) {
  const ScratchFolder folder;
  Recorder recorder;
  auto trainer = Trainer::Create(Spec({kConvNet, kGlyphs, kShort, kAuto}), Options(folder.path()), &recorder);
  ASSERT_TRUE(trainer.ok());
  (*trainer)->Request(Command::kCheckpointAndStop);
  const auto outcome = (*trainer)->Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_TRUE(Choices(recorder).empty());
  EXPECT_FALSE(LoadChosenMode(folder.path() + "/checkpoints")->has_value());
}

}  // namespace
}  // namespace ampd::train
