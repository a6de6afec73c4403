#include "client/analysis/cost.h"

#include "gmock/gmock.h"
#include "proto/spec/device_models.h"
#include "tests/unit/client/analysis/example_events.h"

namespace ampd::client {
namespace {

using testing::HasSubstr;

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

TEST(Events, DeviceTimeIsFromStartingToTheEnd) {
  const HeldTime held = HeldTimeOf(ExampleRun(), kLater);
  EXPECT_DOUBLE_EQ(held.held_seconds, 22);
  EXPECT_DOUBLE_EQ(held.running_seconds, 20);
  Events running = ExampleRun();
  running.pop_back();
  EXPECT_DOUBLE_EQ(HeldTimeOf(running, SecondsOf(running.back().time()) + 100).running_seconds, 14 + 100);
}

TEST(Events, CountsWhatWasDoneAgain) {
  const StepCount steps = StepsOf(ExampleRun());
  EXPECT_EQ(steps.attempted, 120);
  EXPECT_EQ(steps.rewound, 20);
  EXPECT_EQ(steps.skipped, 2);
  EXPECT_DOUBLE_EQ(steps.step_seconds, 0.1);
}

TEST(Events, ACurveForgetsWhatWasTakenBack) {
  Events events = ExampleRun();
  const auto curves = LossCurves(events);
  ASSERT_EQ(curves.at("main").size(), 1);
  EXPECT_EQ(curves.at("main").at(100), 2.0);
}

TEST(Cost, IsDeviceTimeAtThePrice) {
  const Cost cost = CostOf(ExampleJob(), ExampleRun(), {Cpu()}, Priced(3.6), kLater);
  EXPECT_DOUBLE_EQ(cost.device_seconds, 22);
  ASSERT_TRUE(cost.usd);
  EXPECT_DOUBLE_EQ(*cost.usd, 22 * 3.6 / 3600);
  // 120 attempted, 20 taken back, 2 skipped; 50 samples each.
  EXPECT_DOUBLE_EQ(cost.useful_samples, 98 * 50);
  EXPECT_DOUBLE_EQ(*cost.usd_per_million_samples, 0.022 / 4900 * 1e6);
  EXPECT_DOUBLE_EQ(cost.skipped_seconds, 0.2);
  EXPECT_DOUBLE_EQ(cost.rewound_seconds, 2);
  EXPECT_THAT(CostText(ExampleJob(), cost), HasSubstr("$0.022 at $3.60 an hour of CPU"));
}

TEST(Cost, WithoutAPriceSaysHowToGiveOne) {
  const Cost cost = CostOf(ExampleJob(), ExampleRun(), {Cpu()}, BuiltInDeviceModels(), kLater);
  EXPECT_FALSE(cost.usd);
  const std::string text = CostText(ExampleJob(), cost);
  EXPECT_THAT(text, HasSubstr("device_models: [{name: CPU, usd_per_hour: 1.20}]"));
  EXPECT_THAT(text, HasSubstr("device time:   0:22 on 1 device"));
  EXPECT_THAT(CostJson(ExampleJob(), cost), testing::Not(HasSubstr("usd")));
}

TEST(Cost, OfAJobThatNeverRanIsNothing) {
  v1::Job job = ExampleJob(v1::Job::QUEUED);
  job.clear_summary();
  const Cost cost = CostOf(job, {}, {}, {}, kLater);
  EXPECT_EQ(cost.device_seconds, 0);
  EXPECT_THAT(CostText(job, cost), HasSubstr("No price is known for this device"));
}

}  // namespace
}  // namespace ampd::client
