#include "client/output/progress.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/spec/yaml.h"

namespace ampd::client {
namespace {

v1::JobEvent Event(int64_t second, const std::string& payload) {
  v1::JobEvent event;
  EXPECT_EQ(ParseYaml(payload, "event", &event), absl::OkStatus());
  event.mutable_time()->set_seconds(second);
  return event;
}

v1::JobEvent Step(int64_t second, int64_t step, int64_t skipped = 0) {
  v1::JobEvent event =
      Event(second,
            "step: {total_steps: 400, samples_per_second: 9100, phases: [{name: main, loss: 0.31214, loss_scale: 8}]}");
  event.mutable_step()->set_last_step(step);
  event.mutable_step()->mutable_phases(0)->set_steps_applied(step - skipped);
  event.mutable_step()->mutable_phases(0)->set_steps_skipped(skipped);
  return event;
}

TEST(ProgressTest, TellsStepLossScaleSkipsSpeedAndEta) {
  Progress progress;
  EXPECT_EQ(progress.Line(80), "");
  progress.Observe(Event(0, "state_change: {to: QUEUED}"));
  EXPECT_EQ(progress.Line(80), "QUEUED");
  progress.Observe(Event(1, "state_change: {to: RUNNING}"));
  EXPECT_EQ(progress.Line(80), "RUNNING, before the first report");
  progress.Observe(Step(10, 40));
  EXPECT_EQ(progress.Line(80), "step 40/400 10%  loss 0.3121  scale 8  skips 0  9.1k samples/s  ETA -");
  progress.Observe(Step(20, 140, 3));
  EXPECT_EQ(progress.EtaSeconds(), 26);
  EXPECT_EQ(progress.Line(80), "step 140/400 35%  loss 0.3121  scale 8  skips 3  9.1k samples/s  ETA 0:26");
  EXPECT_EQ(progress.Line(12), "step 140/400");
  progress.Observe(Event(21, "overflow_skip: {scale_before: 8, scale_after: 4}"));
  EXPECT_EQ(progress.summary().loss_scale(), 4);
  progress.Observe(Event(22, "state_change: {to: CANCELLING}"));
  EXPECT_EQ(progress.Line(30), "CANCELLING  step 140/400 35%");
}

TEST(ProgressTest, TheLossOfAPhaseThatTookNoStepIsItsLast) {
  const auto step = [](int64_t step, const std::string& loss, int64_t applied, int64_t skipped) {
    return Event(step, absl::StrCat("step: {first_step: ", step, ", last_step: ", step, ", phases: [{name: gen, loss: ",
                                    loss, ", steps_applied: ", applied, ", steps_skipped: ", skipped, "}]}"));
  };
  Progress progress;
  progress.Observe(step(1, "NaN", 0, 0));
  EXPECT_EQ(progress.Line(80).find("loss"), std::string::npos);
  progress.Observe(step(2, "0.25", 1, 0));
  progress.Observe(step(3, "NaN", 1, 0));
  EXPECT_NE(progress.Line(80).find("loss 0.25"), std::string::npos);
  progress.Observe(step(4, "NaN", 1, 1));
  EXPECT_NE(progress.Line(80).find("loss nan"), std::string::npos);
}

TEST(ProgressTest, TellsTheUseOfTheDeviceWhereItIsKnown) {
  Progress progress;
  progress.Observe(Event(21,
                         "step: {last_step: 150, total_steps: 400, samples_per_second: 9100, "
                         "model_flops_utilization: 0.4125}"));
  EXPECT_NE(progress.Line(120).find("9.1k samples/s  MFU 41.2%  ETA"), std::string::npos);
}

TEST(ProgressTest, WhatHasNoRoomIsLeftOutAsAWholeAndTheEtaLast) {
  Progress progress;
  progress.Observe(Step(10, 40));
  progress.Observe(Step(20, 140, 3));
  const std::string whole = "step 140/400 35%  loss 0.3121  scale 8  skips 3  9.1k samples/s  ETA 0:26";
  EXPECT_EQ(progress.Line(static_cast<int>(whole.size())), whole);
  EXPECT_EQ(progress.Line(static_cast<int>(whole.size()) - 1),
            "step 140/400 35%  loss 0.3121  skips 3  9.1k samples/s  ETA 0:26");
  EXPECT_EQ(progress.Line(45), "step 140/400 35%  loss 0.3121  ETA 0:26");
  EXPECT_EQ(progress.Line(27), "step 140/400 35%  ETA 0:26");
}

TEST(ProgressTest, EtaFollowsThePaceOfTheLastHalfMinute) {
  Progress progress;
  for (int i = 0; i <= 100; ++i) progress.Observe(Step(i, i));                 // One step a second,
  for (int i = 1; i <= 40; ++i) progress.Observe(Step(100 + i, 100 + 2 * i));  // then two.
  EXPECT_EQ(progress.EtaSeconds(), (400 - 180) / 2);
}

TEST(ProgressTest, ARewindStartsThePaceAnew) {
  Progress progress;
  progress.Observe(Step(10, 40));
  progress.Observe(Step(20, 140));
  progress.Observe(Event(21, "rewound: {to_step: 100}"));
  EXPECT_LT(progress.EtaSeconds(), 0);
  EXPECT_EQ(progress.summary().step(), 100);
}

TEST(ProgressTest, ARewindTakesBackFiguresOfUndoneSteps) {
  Progress progress;
  progress.Observe(Event(1, "evaluation: {step: 100, loss: 0.5, accuracy: 0.75}"));
  progress.Observe(Step(10, 140));
  progress.Observe(Event(21, "rewound: {to_step: 100}"));
  EXPECT_FALSE(progress.summary().has_loss());
  EXPECT_EQ(progress.summary().accuracy(), 0.75);
  progress.Observe(Event(22, "rewound: {to_step: 50}"));
  EXPECT_FALSE(progress.summary().has_accuracy());
  EXPECT_FALSE(progress.summary().has_eval_loss());
}

TEST(ClosingLineTest, SaysHowItEnded) {
  v1::StateChange end;
  v1::JobSummary seen;
  seen.set_steps_applied(5);
  seen.set_loss(0.5);
  end.set_to(v1::Job::SUCCEEDED);
  EXPECT_EQ(ClosingLine(end, seen), "SUCCEEDED loss=0.5 applied=5 skipped=0");
  end.mutable_summary()->set_accuracy(0.91);
  end.mutable_summary()->set_steps_applied(1405);
  end.mutable_summary()->set_steps_skipped(3);
  EXPECT_EQ(ClosingLine(end, seen), "SUCCEEDED accuracy=0.91 applied=1405 skipped=3");
  end.set_reason("stopped early");
  EXPECT_EQ(ClosingLine(end, seen), "SUCCEEDED accuracy=0.91 applied=1405 skipped=3: stopped early");
  end.clear_reason();
  end.Clear();
  end.set_to(v1::Job::FAILED);
  end.mutable_failure()->set_class_(v1::Failure::DATA);
  end.mutable_failure()->set_message("train_x.npy: truncated");
  EXPECT_EQ(ClosingLine(end, seen), "FAILED DATA: train_x.npy: truncated");
  end.Clear();
  end.set_to(v1::Job::CANCELLED);
  EXPECT_EQ(ClosingLine(end, seen), "CANCELLED");
}

}  // namespace
}  // namespace ampd::client
