// What becomes of a job whose gradients overflow at the smallest loss scale, by policy, on whole trainings.
#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/train/checkpoint.h"
#include "engine/train/failure.h"
#include "engine/train/files.h"
#include "engine/train/train_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/floor_job.h"

namespace ampd::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// A folder with the data, and the job's attempts in it.
class Floor : public testing::Test {
 protected:
  Floor() { WriteFloorData(folder_.path()); }

  TrainerOptions NewOptions() {
    TrainerOptions options = Options(folder_.path());
    options.checkpoint_dir = absl::StrCat(folder_.path(), "/checkpoints", ++runs_);
    return options;
  }

 private:
  const ScratchFolder folder_;
  int runs_ = 0;
};

std::vector<v1::PrecisionChange> PrecisionChanges(const Recorder& recorder) {
  std::vector<v1::PrecisionChange> changes;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_precision_change()) changes.push_back(event.precision_change());
  }
  return changes;
}

std::string Read(const TrainerOptions& options, int64_t step, const char* file) {
  return ReadFile(absl::StrCat(options.checkpoint_dir, "/", CheckpointName(step), "/", file), 1 << 24).value();
}

optim::LossScalerState ScalerAt(const TrainerOptions& options, int64_t step) {
  return TrainStateFromJson(Read(options, step, "state.json")).value().phases[0].scaler;
}

std::vector<int64_t> StepsOf(const std::vector<v1::OverflowSkip>& skips) {
  std::vector<int64_t> steps;
  for (const v1::OverflowSkip& skip : skips) steps.push_back(skip.step());
  return steps;
}

class HoldAtTheFloor : public Floor {};

TEST_F(HoldAtTheFloor, TheJobGoesOnSkippingWhatOverflows) {
  Recorder recorder;
  const auto outcome = Train(Spec({kFloorNetwork, FloorScale("HOLD")}), NewOptions(), &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto skips = recorder.skips();
  ASSERT_GE(skips.size(), 7u);  // three in the first epoch, and at least one batch in each other
  for (size_t i = 0; i < skips.size(); ++i) {
    EXPECT_EQ(skips[i].scale_before(), i == 0 ? 256 : i == 1 ? 128 : 64);
    EXPECT_EQ(skips[i].scale_after(), i == 0 ? 128 : 64);
    EXPECT_EQ(skips[i].stage(), v1::OverflowSkip::GRADIENT);
  }
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), 5 * kStepsAnEpoch - static_cast<int64_t>(skips.size()));
  EXPECT_EQ(recorder.steps().back().phases(0).loss_scale(), kFloor);
}

TEST_F(HoldAtTheFloor, ButNotForEver) {
  Recorder recorder;
  const auto spec = Spec({kFloorNetwork, "train { epochs: 50 }", FloorScale("HOLD", 2e30, 1e30)});
  const auto outcome = Train(spec, NewOptions(), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  // One that lowered the scale, and 101 in calibration that did not.
  EXPECT_THAT(recorder.skips(), SizeIs(102));
}

TEST_F(HoldAtTheFloor, LimitsStillHold) {
  Recorder recorder;
  const auto spec = Spec({kFloorNetwork, FloorScale("HOLD"), "limits { max_skip_ratio: 0.3 skip_window_steps: 8 }"});
  const auto outcome = Train(spec, NewOptions(), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::LIMIT) << outcome.status();
  EXPECT_THAT(recorder.skips(), SizeIs(3));
}

TEST_F(Floor, FailsByDefault) {
  Recorder recorder;
  const auto outcome = Train(Spec({kFloorNetwork, FloorScale("FAIL")}), NewOptions(), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  EXPECT_THAT(StepsOf(recorder.skips()), ElementsAre(4, 5, 6));
}

class FallBack : public Floor {
 protected:
  ResolvedJobSpec Job(const std::string& extra = "") {
    return Spec({kFloorNetwork, FloorScale("FALLBACK_BF16"), extra});
  }
};

TEST_F(FallBack, TheJobGoesOnInBf16) {
  Recorder recorder;
  const TrainerOptions options = NewOptions();
  const auto outcome = Train(Job(), options, &recorder);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(StepsOf(recorder.skips()), ElementsAre(4, 5, 6));
  ASSERT_THAT(PrecisionChanges(recorder), SizeIs(1));
  const v1::PrecisionChange change = PrecisionChanges(recorder)[0];
  EXPECT_EQ(change.step(), kLastBad);
  EXPECT_EQ(change.phase(), "main");
  EXPECT_EQ(change.mode_before(), v1::PrecisionSpec::FP16);
  EXPECT_EQ(change.mode_after(), v1::PrecisionSpec::BF16);
  EXPECT_THAT(change.reason(), HasSubstr("smallest loss scale, 64 (step 6"));
  EXPECT_EQ(recorder.scale_changes().back().scale_before(), kFloor);
  EXPECT_EQ(recorder.scale_changes().back().scale_after(), 1);
  ASSERT_THAT(recorder.losses(), SizeIs(5 * kStepsAnEpoch));
  EXPECT_EQ(recorder.steps().back().phases(0).loss_scale(), 1);
  EXPECT_EQ(recorder.steps().back().phases(0).steps_applied(), 5 * kStepsAnEpoch - 3);
  EXPECT_TRUE(ScalerAt(options, 5 * kStepsAnEpoch).fell_back);
}

// BF16 starts from the masters, moments and statistics that FP16 left.
TEST_F(FallBack, NothingIsLostOnTheWay) {
  Recorder recorder;
  const TrainerOptions options = NewOptions();
  ASSERT_TRUE(Train(Job("checkpoint { every_steps: 1 keep_last: 100 }"), options, &recorder).ok());
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(Read(options, kLastBad, file), Read(options, kFirstBad - 1, file)) << file;
    EXPECT_NE(Read(options, kLastBad + 1, file), Read(options, kLastBad, file)) << file;
  }
  // The schedule goes on where it was: the fourth applied step's rate.
  EXPECT_EQ(ScalerAt(options, kLastBad + 1).steps_applied, 4);
  EXPECT_LT(recorder.steps()[kLastBad].phases(0).learning_rate(),
            recorder.steps()[kFirstBad - 2].phases(0).learning_rate());
}

TEST_F(FallBack, SurvivesAResumeBitForBit) {
  Recorder whole;
  ASSERT_TRUE(Train(Job(), NewOptions(), &whole).ok());
  for (int64_t stop : {kLastBad - 1, kLastBad, kLastBad + 1, kLastBad + 9}) {
    SCOPED_TRACE(stop);
    Recorder recorder;
    TrainerOptions options = NewOptions();
    ASSERT_TRUE(Train(Job(), options, &recorder, stop).ok());
    options.last_reported_step = stop;
    const auto outcome = Train(Job(), options, &recorder);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(recorder.losses(), whole.losses());
    EXPECT_THAT(PrecisionChanges(recorder), SizeIs(1));
    if (stop >= kLastBad) {
      EXPECT_THAT(recorder.logs().back().text(), HasSubstr("BF16"));
    }
  }
}

class RollBack : public Floor {
 protected:
  ResolvedJobSpec Job(const std::string& extra) { return Spec({kFloorNetwork, FloorScale("ROLLBACK"), extra}); }
};

TEST_F(RollBack, ReturnsToTheLastCheckpointAfterAnAppliedStep) {
  Recorder recorder;
  const TrainerOptions options = NewOptions();
  // After every step: some are written amid skips.
  const auto spec = Job("checkpoint { every_steps: 1 keep_last: 3 } precision { loss_scale { max_rollbacks: 2 } }");
  const auto outcome = Train(spec, options, &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("after 2 rollbacks"));
  EXPECT_THAT(StepsOf(recorder.skips()), ElementsAre(4, 5, 6, 4, 5, 6, 4, 5, 6));
  ASSERT_THAT(recorder.rewound(), SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(recorder.rewound()[i].to_step(), kFirstBad - 1);
    EXPECT_THAT(recorder.rewound()[i].reason(),
                HasSubstr(absl::StrCat("rollback ", i + 1, " of 2 to checkpoint step-000000003")));
  }
  // The scale starts anew, at the same place of the schedule; both are in a checkpoint.
  const auto at = std::find_if(recorder.events.begin(), recorder.events.end(),
                               [](const v1::JobEvent& event) { return event.has_rewound(); });
  EXPECT_EQ((at + 1)->loss_scale_change().scale_before(), kFloor);
  EXPECT_EQ((at + 1)->loss_scale_change().scale_after(), 4 * kFloor);
  EXPECT_EQ((at + 2)->checkpoint().step(), kFirstBad - 1);
  EXPECT_EQ((at + 3)->step().first_step(), kFirstBad);
  EXPECT_EQ(ScalerAt(options, kFirstBad - 1).rollbacks, 2);
  EXPECT_EQ(ScalerAt(options, kFirstBad - 1).steps_applied, kFirstBad - 1);
}

TEST_F(RollBack, EndsAProfileThatIsUnderWay) {
  Recorder recorder;
  const auto spec = Job("checkpoint { every_steps: 1 keep_last: 3 } precision { loss_scale { max_rollbacks: 2 } }");
  auto trainer = Trainer::Create(spec, NewOptions(), &recorder);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  (*trainer)->Profile({50});
  recorder.on_event = [&](const v1::JobEvent& event) {
    if (event.has_rewound()) (*trainer)->Profile({50});
    return absl::OkStatus();
  };
  EXPECT_EQ(FailureOf((*trainer)->Run().status()).class_(), v1::Failure::DIVERGED);
  EXPECT_THAT(StepsOf(recorder.skips()), ElementsAre(4, 5, 6, 4, 5, 6, 4, 5, 6));
  std::vector<int64_t> ends;
  for (const v1::JobEvent& event : recorder.events) {
    if (event.has_step_profile()) ends.push_back(event.step_profile().last_step());
  }
  // The last is of the steps before the failure.
  EXPECT_THAT(ends, ElementsAre(kLastBad, kLastBad, kLastBad));
}

TEST_F(RollBack, GoesPastCheckpointsOfSkips) {
  Recorder recorder;
  const auto spec = Job("checkpoint { every_steps: 2 keep_last: 5 } precision { loss_scale { max_rollbacks: 1 } }");
  Train(spec, NewOptions(), &recorder).status().IgnoreError();
  ASSERT_THAT(recorder.rewound(), SizeIs(1));
  EXPECT_EQ(recorder.rewound()[0].to_step(), 2);  // step 4 was a skip
}

TEST_F(RollBack, WhereEveryCheckpointIsOfASkipTheOldestServes) {
  Recorder recorder;
  const auto spec = Job("checkpoint { every_steps: 1 keep_last: 2 } precision { loss_scale { max_rollbacks: 1 } }");
  Train(spec, NewOptions(), &recorder).status().IgnoreError();
  ASSERT_THAT(recorder.rewound(), SizeIs(1));
  EXPECT_EQ(recorder.rewound()[0].to_step(), 4);
}

TEST_F(RollBack, AmidCalibrationNoCheckpointHasAnAppliedStep) {
  Recorder recorder;
  const auto spec = Spec({kFloorNetwork, FloorScale("ROLLBACK", 0x1p30, 0x1p26),
                          "checkpoint { every_steps: 2 keep_last: 9 } precision { loss_scale { max_rollbacks: 1 } }"});
  Train(spec, NewOptions(), &recorder).status().IgnoreError();
  ASSERT_THAT(recorder.rewound(), SizeIs(1));
  EXPECT_EQ(recorder.rewound()[0].to_step(), 2);
}

TEST_F(RollBack, ADamagedCheckpointIsPassedOver) {
  Recorder recorder;
  const TrainerOptions options = NewOptions();
  recorder.on_event = [&](const v1::JobEvent& event) {
    if (event.has_step() && event.step().last_step() == kFirstBad) {
      std::ofstream(options.checkpoint_dir + "/step-000000003/model.safetensors", std::ios::app) << "x";
    }
    return absl::OkStatus();
  };
  const auto spec = Job("checkpoint { every_steps: 1 keep_last: 9 } precision { loss_scale { max_rollbacks: 1 } }");
  Trainer::Create(spec, options, &recorder).value()->Run().status().IgnoreError();
  ASSERT_THAT(recorder.rewound(), SizeIs(1));
  EXPECT_EQ(recorder.rewound()[0].to_step(), 2);
  EXPECT_THAT(recorder.logs()[0].text(), HasSubstr("step-000000003"));
}

TEST_F(RollBack, RepeatsTheStepsWithTheSameRateAndBatches) {
  Recorder recorder;
  const auto spec = Job("checkpoint { every_steps: 2 } precision { loss_scale { max_rollbacks: 1 } }");
  Train(spec, NewOptions(), &recorder).status().IgnoreError();
  ASSERT_THAT(recorder.steps(), SizeIs(kLastBad + 4));
  const v1::StepReport first = recorder.steps()[2], second = recorder.steps()[kLastBad];
  EXPECT_EQ(first.last_step(), 3);
  EXPECT_EQ(second.last_step(), 3);
  // Same weights, same batch, same dropout: the same loss.
  EXPECT_EQ(second.phases(0).loss(), first.phases(0).loss());
  EXPECT_EQ(second.phases(0).learning_rate(), first.phases(0).learning_rate());
}

TEST_F(RollBack, WithoutACheckpointReturnsToTheInitialWeights) {
  Recorder recorder;
  const auto outcome = Train(Job("precision { loss_scale { max_rollbacks: 1 } }"), NewOptions(), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
  ASSERT_THAT(recorder.rewound(), SizeIs(1));
  EXPECT_EQ(recorder.rewound()[0].to_step(), 0);
  EXPECT_THAT(recorder.rewound()[0].reason(), HasSubstr("initial weights"));
  // From the start nothing differs, so the second run is the first again.
  const std::vector<double> losses = recorder.losses();
  ASSERT_THAT(losses, SizeIs(2 * kLastBad));
  EXPECT_EQ(std::vector<double>(losses.begin(), losses.begin() + kLastBad),
            std::vector<double>(losses.begin() + kLastBad, losses.end()));
}

// A worker that dies after each rollback does not get them back.
TEST_F(RollBack, TheCountSurvivesAResume) {
  const TrainerOptions options = NewOptions();
  const auto spec = Job("precision { loss_scale { max_rollbacks: 2 } }");
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Recorder recorder;
    bool rewound = false;
    recorder.on_event = [&](const v1::JobEvent& event) {
      rewound = rewound || event.has_rewound();
      return rewound && event.has_step() ? absl::UnavailableError("killed") : absl::OkStatus();
    };
    const auto outcome = Trainer::Create(spec, options, &recorder).value()->Run();
    EXPECT_EQ(rewound, attempt <= 2);
    EXPECT_EQ(ScalerAt(options, 0).rollbacks, std::min(attempt, 2));
    if (attempt == 3) {
      EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
    }
  }
}

// 8-bit operands saturate, so only bf16's range overflows: the same gradients at larger scales.
class Fp8Floor : public Floor {
 protected:
  static ResolvedJobSpec Job(const std::string& policy) {
    return Spec({kFloorNetwork, "model { layers { dense { units: 8 } } layers { dense { units: 1 } } }",
                 absl::StrCat("precision { mode: FP8 loss_scale { kind: DYNAMIC init: 4e35 min: 1e35 max: 4e35 "
                              "growth_interval: 1000 on_floor: ",
                              policy, " } }")});
  }
};

TEST_F(Fp8Floor, HoldGoesOn) {
  Recorder recorder;
  ASSERT_EQ(Train(Job("HOLD"), NewOptions(), &recorder).value(), Outcome::kCompleted);
  ASSERT_FALSE(recorder.skips().empty());
  EXPECT_EQ(recorder.skips()[0].step(), kFirstBad);
  EXPECT_EQ(recorder.steps().back().last_step(), 5 * kStepsAnEpoch);
}

TEST_F(Fp8Floor, FailFails) {
  Recorder recorder;
  const auto outcome = Train(Job("FAIL"), NewOptions(), &recorder);
  EXPECT_EQ(FailureOf(outcome.status()).class_(), v1::Failure::DIVERGED) << outcome.status();
}

TEST_F(Fp8Floor, RollBackReturnsToTheInitialWeights) {
  Recorder recorder;
  const auto outcome = Train(Job("ROLLBACK max_rollbacks: 1"), NewOptions(), &recorder);
  ASSERT_THAT(recorder.rewound(), SizeIs(1)) << outcome.status();
  EXPECT_EQ(recorder.rewound()[0].to_step(), 0);
  // The amax histories and scales went back too: the same losses.
  const std::vector<double> losses = recorder.losses();
  const auto back = static_cast<size_t>(kLastBad);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(losses.at(back + i), losses.at(i)) << i;
}

TEST_F(Fp8Floor, FallBackGoesOnInBf16AndSurvivesAResume) {
  Recorder whole;
  const TrainerOptions options = NewOptions();
  ASSERT_EQ(Train(Job("FALLBACK_BF16"), options, &whole).value(), Outcome::kCompleted);
  std::vector<v1::PrecisionChange> changes;
  for (const v1::JobEvent& event : whole.events) {
    if (event.has_precision_change()) changes.push_back(event.precision_change());
  }
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].mode_before(), v1::PrecisionSpec::FP8);
  EXPECT_EQ(changes[0].mode_after(), v1::PrecisionSpec::BF16);
  for (int64_t stop : {kFirstBad - 1, kLastBad - 1, kLastBad, kLastBad + 3}) {
    SCOPED_TRACE(stop);
    Recorder parts;
    TrainerOptions own = NewOptions();
    ASSERT_EQ(Train(Job("FALLBACK_BF16"), own, &parts, stop).value(), Outcome::kStopped);
    own.last_reported_step = stop;
    const auto outcome = Train(Job("FALLBACK_BF16"), own, &parts);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(parts.losses(), whole.losses());
  }
}

}  // namespace
}  // namespace ampd::train
