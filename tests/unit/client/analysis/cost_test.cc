#include "client/analysis/cost.h"

#include "gmock/gmock.h"
#include "proto/spec/device_models.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double kLater = 2e9;

v1::Device Cpu() {
  v1::Device device;
  device.set_id("cpu-0");
  device.set_kind(v1::Device::CPU);
  device.set_name("AMD EPYC");
  return device;
}

std::vector<v1::DeviceModel> Priced(double usd) {
  google::protobuf::RepeatedPtrField<v1::DeviceModel> own;
  own.Add()->set_name("CPU");
  own[0].set_usd_per_hour(usd);
  return *DeviceModelsWith(own);
}

v1::Device Gpu() {
  v1::Device device;
  device.set_id("GPU-1");
  device.set_kind(v1::Device::CUDA);
  device.set_name("NVIDIA H100 80GB HBM3");
  return device;
}

TEST(Events, DevicesAreThoseHeldOrHeldLast) {
  v1::Job job = ExampleJob();
  EXPECT_THAT(DevicesOf(job, {}), IsEmpty());
  EXPECT_THAT(DevicesOf(job, ExampleRun()), ElementsAre("cpu-0"));
  Events events = ExampleRun();
  events.push_back(EventsOf({R"({state_change: {from: QUEUED, to: STARTING, reason: "on GPU-1, GPU-2"}})"})[0]);
  EXPECT_THAT(DevicesOf(job, events), ElementsAre("GPU-1", "GPU-2"));
  job.add_devices("GPU-3");
  EXPECT_THAT(DevicesOf(job, events), ElementsAre("GPU-3"));
}

TEST(Events, DeviceTimeIsFromStartingToTheEnd) {
  const HeldTime held = HeldTimeOf(ExampleRun(), kLater);
  EXPECT_DOUBLE_EQ(held.held_seconds, 22);
  EXPECT_DOUBLE_EQ(held.running_seconds, 20);
  Events running = ExampleRun();
  running.pop_back();
  EXPECT_DOUBLE_EQ(HeldTimeOf(running, SecondsOf(running.back().time()) + 100).running_seconds, 14 + 100);
}

TEST(Cost, StepsOfTheTrainingThatIsContinuedAreNotItsOwn) {
  v1::Job job = ExampleJob();
  const auto attempted = [&] { return CostOf(job, ExampleRun(), {}, {}, kLater).steps.attempted; };
  EXPECT_EQ(attempted(), 121);
  job.mutable_spec()->mutable_start_from()->set_continue_training(true);
  job.mutable_spec()->mutable_start_from()->set_checkpoint("step-000000080");
  EXPECT_EQ(attempted(), 41);
}

// As the daemon charges: nothing from the last event to its return where it found the worker dead.
TEST(Events, ANightThatNobodyRanIsNoDeviceTime) {
  const auto held = [](const std::string& change) {
    return HeldTimeOf(EventsOf({
                          R"({time: "2026-01-31T12:00:00Z", state_change: {from: QUEUED, to: STARTING}})",
                          R"({time: "2026-01-31T12:00:02Z", state_change: {from: STARTING, to: RUNNING}})",
                          R"({time: "2026-01-31T12:00:10Z", step: {first_step: 1, last_step: 5}})",
                          R"({time: "2026-02-01T12:00:00Z", state_change: {)" + change + "}}",
                      }),
                      kLater);
  };
  const HeldTime dead = held(R"(from: RUNNING, to: QUEUED, reason: "the worker was lost while the daemon was away")");
  EXPECT_DOUBLE_EQ(dead.held_seconds, 10);
  EXPECT_DOUBLE_EQ(dead.running_seconds, 8);
  EXPECT_DOUBLE_EQ(
      held(R"(from: RUNNING, to: PAUSED, reason: "by request; the worker was lost while the daemon was away")")
          .held_seconds,
      10);
  EXPECT_DOUBLE_EQ(
      held(R"(from: RUNNING, to: FAILED, failure: {message: "worker and daemon lost each other 4 times in a row"})")
          .held_seconds,
      10);
  // It ran, and was heard of no more.
  EXPECT_DOUBLE_EQ(held("from: RUNNING, to: RETRYING").held_seconds, 86400);
}

TEST(Events, TimeThatTheDaemonWaitedForAWorkerIsDeviceTime) {
  const HeldTime held = HeldTimeOf(
      EventsOf({
          R"({time: "2026-01-31T12:00:00Z", state_change: {from: QUEUED, to: STARTING}})",
          R"({time: "2026-01-31T12:10:00Z", state_change: {from: STARTING, to: RECOVERING}})",
          R"({time: "2026-01-31T12:11:00Z", state_change: {from: RECOVERING, to: QUEUED, reason: "the worker was lost while the daemon was away"}})",
      }),
      kLater);
  EXPECT_DOUBLE_EQ(held.held_seconds, 660);
}

TEST(Events, CountsWhatWasDoneAgain) {
  const StepCount steps = StepsOf(ExampleRun());
  // Step 101 is told of by its skip alone.
  EXPECT_EQ(steps.attempted, 121);
  EXPECT_EQ(steps.reported, 120);
  EXPECT_EQ(steps.rewound, 21);
  EXPECT_DOUBLE_EQ(steps.rewound_seconds, 2.1);
  EXPECT_DOUBLE_EQ(steps.step_seconds, 0.1);
}

// Step 1 and step 101 were skipped; the second is among those that were taken back.
TEST(Events, ASkipThatIsTakenBackIsOneWaste) {
  const StepCount steps = StepsOf(ExampleRun());
  EXPECT_NEAR(steps.skipped, 1, 1e-9);
  EXPECT_NEAR(steps.skipped_seconds, 0.1, 1e-9);
  EXPECT_NEAR(steps.useful, 99, 1e-9);
  const Events events = EventsOf({
      R"({step: {first_step: 1, last_step: 10, step_seconds: 0.1, phases: [{steps_applied: 10}]}})",
      R"({step: {first_step: 11, last_step: 12, step_seconds: 0.1, phases: [{steps_applied: 11, steps_skipped: 1}]}})",
      R"({rewound: {to_step: 10}})",
      R"({step: {first_step: 11, last_step: 12, step_seconds: 0.1, phases: [{steps_applied: 11, steps_skipped: 1}]}})",
  });
  EXPECT_EQ(StepsOf(events).rewound, 2);
  EXPECT_DOUBLE_EQ(StepsOf(events).skipped, 1);
  EXPECT_DOUBLE_EQ(StepsOf(events).useful, 11);
}

// Two phases, the second in every other step: 10 steps are 15 updates, of which the second phase's 5 were skipped.
TEST(Events, OfStepsOfSeveralPhasesTheShareOfSkippedUpdatesIsSkipped) {
  const StepCount steps = StepsOf(EventsOf({
      R"({step: {first_step: 1, last_step: 10, step_seconds: 0.3, phases: [{steps_applied: 10}, {steps_skipped: 5}]}})",
      R"({step: {first_step: 11, last_step: 20, step_seconds: 0.3, phases: [{steps_applied: 20}, {steps_applied: 5, steps_skipped: 5}]}})",
  }));
  EXPECT_DOUBLE_EQ(steps.skipped, 10 * 5 / 15.0);
  EXPECT_DOUBLE_EQ(steps.skipped_seconds, 1);
  EXPECT_DOUBLE_EQ(steps.useful, 20 - 10 * 5 / 15.0);
}

TEST(Events, CellsOfABenchAreNoSteps) {
  const StepCount steps = StepsOf(EventsOf({"{bench_cell: {index: 3}}", "{rewound: {to_step: 2}}"}));
  EXPECT_EQ(steps.attempted, 0);
  EXPECT_EQ(steps.rewound, 0);
}

TEST(Events, ACurveForgetsWhatWasTakenBack) {
  Events events = ExampleRun();
  const auto curves = LossCurves(events);
  ASSERT_EQ(curves.at("main").size(), 1);
  EXPECT_EQ(curves.at("main").at(100).loss, 2.0);
}

v1::Job ChargedJob(double usd, double wasted_usd) {
  v1::Job job = ExampleJob();
  job.set_cost_usd(usd);
  job.set_wasted_usd(wasted_usd);
  return job;
}

// The price was half of today's when the job ran, and most of the time nobody ran it.
TEST(Cost, IsTheDaemons) {
  const v1::Job job = ChargedJob(0.011, 0.0022);
  const Cost cost = CostOf(job, ExampleRun(), {Cpu()}, Priced(3.6), kLater);
  EXPECT_EQ(*cost.usd, 0.011);
  EXPECT_EQ(*cost.wasted_usd, 0.0022);
  EXPECT_DOUBLE_EQ(cost.device_seconds, 22);
  // Of 100 steps that stand one was skipped; 50 samples each.
  EXPECT_NEAR(cost.useful_samples, 99 * 50, 1e-6);
  EXPECT_NEAR(*cost.usd_per_million_samples, 0.011 / 4950 * 1e6, 1e-9);
  // 0.1 s skipped and 2.1 s done again.
  EXPECT_NEAR(*cost.skipped_usd, 0.0001, 1e-12);
  EXPECT_NEAR(*cost.rewound_usd, 0.0021, 1e-12);
  const std::string text = CostText(job, cost);
  EXPECT_THAT(text, HasSubstr("cost:          $0.011, of which $0.0022 (20.0%) for steps lost or skipped\n"));
  EXPECT_THAT(text, HasSubstr("price now:     $3.60 an hour of CPU\n"));
  EXPECT_THAT(text, HasSubstr("skipped:       1 steps, 100 ms, 0.5%, $0.0001\n"));
  EXPECT_THAT(text, HasSubstr("done again:    21 steps, 2.1 s, 9.5%, $0.0021\n"));
  EXPECT_THAT(text, HasSubstr("estimates"));
  EXPECT_THAT(CostJson(job, cost), HasSubstr("\"usd\": 0.010999999999999999, \"wasted_usd\": 0.0022"));
}

TEST(Cost, OfAJobThatSharesSaysHowDevicesCount) {
  v1::Job job = ChargedJob(0.011, 0);
  job.mutable_spec()->mutable_resources()->set_share(true);
  EXPECT_THAT(CostText(job, CostOf(job, ExampleRun(), {Cpu()}, Priced(3.6), kLater)),
              HasSubstr("in dollars by its part"));
}

TEST(Cost, OfAnEndedJobAmongOtherDevicesIsKnown) {
  const Cost cost = CostOf(ChargedJob(0.011, 0), ExampleRun(), {Gpu(), Cpu()}, Priced(3.6), kLater);
  EXPECT_EQ(*cost.usd, 0.011);
  EXPECT_EQ(cost.model, "CPU");
  // Nor does it take the device to be there still.
  const v1::Job job = ChargedJob(0.011, 0);
  const std::string text = CostText(job, CostOf(job, ExampleRun(), {Gpu()}, BuiltInDeviceModels(), kLater));
  EXPECT_THAT(text, HasSubstr("$0.011"));
  EXPECT_THAT(text, Not(HasSubstr("No price")));
  // What an hour of another device is says nothing.
  EXPECT_THAT(text, Not(HasSubstr("price now")));
}

TEST(Cost, WithoutAPriceSaysHowToGiveOne) {
  const Cost cost = CostOf(ExampleJob(), ExampleRun(), {Cpu()}, BuiltInDeviceModels(), kLater);
  EXPECT_FALSE(cost.usd);
  const std::string text = CostText(ExampleJob(), cost);
  EXPECT_THAT(text, HasSubstr("device_models: [{name: CPU, usd_per_hour: 1.20}]"));
  EXPECT_THAT(text, HasSubstr("device time:   0:22 on 1 device"));
  EXPECT_THAT(CostJson(ExampleJob(), cost), Not(HasSubstr("usd")));
}

TEST(Cost, APriceThatCameLaterIsNotCharged) {
  const Cost cost = CostOf(ExampleJob(), ExampleRun(), {Cpu()}, Priced(3.6), kLater);
  EXPECT_FALSE(cost.usd);
  EXPECT_THAT(CostText(ExampleJob(), cost), HasSubstr("knew no price when the job ran; an hour of CPU is $3.60 now"));
}

TEST(Cost, OfAJobThatNeverRanIsNothing) {
  v1::Job job = ExampleJob(v1::Job::QUEUED);
  job.clear_summary();
  const Cost cost = CostOf(job, {}, {}, {}, kLater);
  EXPECT_EQ(cost.device_seconds, 0);
  EXPECT_THAT(CostText(job, cost), HasSubstr("It has held no device yet"));
}

}  // namespace
}  // namespace ampd::client
