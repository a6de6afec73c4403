#include "client/analysis/why.h"

#include "gmock/gmock.h"
#include "proto/spec/device_models.h"
#include "tests/unit/client/analysis/example_events.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

using testing::Contains;
using testing::HasSubstr;

Finding Find(const std::vector<Finding>& findings, const std::string& what) {
  for (const Finding& finding : findings) {
    if (finding.what == what) return finding;
  }
  ADD_FAILURE() << "no finding '" << what << "', the first is '" << findings[0].what << "'";
  return findings[0];
}

TEST(Why, AQueuedJobWaitsForThoseAhead) {
  WhyInput input;
  input.job = ExampleJob(v1::Job::QUEUED);
  input.job.set_queue_reason(v1::Job::RESOURCES);
  input.job.set_queue_position(2);
  v1::Job ahead = ExampleJob(v1::Job::QUEUED);
  ahead.set_id("01first");
  ahead.set_queue_position(1);
  v1::Job running = ExampleJob(v1::Job::RUNNING);
  running.set_id("01holder");
  running.add_devices("cpu-0");
  input.others = {ahead, running, input.job};
  const std::vector<Finding> found = Why(input);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].what, "queued");
  EXPECT_EQ(found[0].because[0], "RESOURCES: every device that could run it is held by another job");
  EXPECT_EQ(found[0].because[1], "it is number 2 in line, behind 01first demo");
  EXPECT_EQ(found[0].because[2], "01holder demo holds cpu-0 at step 100/100");
}

TEST(Why, WhenAQueuedJobStartsIsLocalTimeOfANamedZone) {
  const ScopedTimeZone zone("IST-5:30");
  WhyInput input;
  input.job = ExampleJob(v1::Job::QUEUED);
  input.job.mutable_estimated_start_time()->set_seconds(1769860801);
  EXPECT_THAT(Find(Why(input), "queued").because, Contains(HasSubstr("it starts by 2026-01-31 17:30:01 IST, if")));
}

TEST(Why, InputBoundWhereTheTrainerWaits) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(6)};
  const Finding finding = Find(Why(input), "slow: input-bound");
  EXPECT_THAT(finding.because[0], HasSubstr("50.0% of the time: 50 ms of 100 ms a step"));
  EXPECT_THAT(finding.because[1], HasSubstr("2.00 times as fast"));
}

TEST(Why, HowFastAFailedJobWasIsToldWhereTimeEndedIt) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED), .events = ExampleRun(6)};
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("slow")));
  input.job.mutable_failure()->set_class_(v1::Failure::LIMIT);
  Find(Why(input), "slow: input-bound");
}

v1::PlanReport PlanWithFloor(double seconds, v1::LayerCost::Bound bound) {
  v1::PlanReport plan;
  v1::ModeEstimate* mode = plan.add_modes();
  mode->set_mode(v1::PrecisionSpec::FP16);
  mode->set_step_seconds(seconds);
  plan.add_layers()->set_bound(bound);
  plan.mutable_layers(0)->set_seconds(seconds);
  return plan;
}

TEST(Why, ComparesAStepWithItsFloor) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.plan = PlanWithFloor(0.01, v1::LayerCost::MEMORY);
  EXPECT_THAT(Find(Why(input), "slow: launch-bound").because[0],
              HasSubstr("a step takes 100 ms, 10.0 times the floor of 10 ms"));
  input.plan = PlanWithFloor(0.05, v1::LayerCost::MEMORY);
  Find(Why(input), "speed: memory-bound");
  input.plan = PlanWithFloor(0.05, v1::LayerCost::COMPUTE);
  Find(Why(input), "speed: compute-bound");
  input.plan.reset();
  input.no_plan = "the peaks of its device, CPU, are not";
  EXPECT_THAT(Find(Why(input), "speed").because,
              Contains(HasSubstr("is not known: the peaks of its device, CPU, are not")));
}

TEST(Why, SpeedIsThatOfTheNewestAttempt) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  for (v1::JobEvent& event : input.events) event.set_attempt(1);
  input.events.push_back(EventsOf({"{attempt: 2, step: {first_step: 101, last_step: 110, step_seconds: 0.02}}"})[0]);
  EXPECT_THAT(Find(Why(input), "speed").because[0], HasSubstr("a step takes 20 ms"));
}

TEST(Why, OfAutoTheFloorIsThatOfTheModeItTook) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::AUTO);
  input.job.mutable_summary()->set_mode(v1::PrecisionSpec::FP16);
  input.plan = PlanWithFloor(0.05, v1::LayerCost::COMPUTE);
  EXPECT_THAT(Find(Why(input), "speed: compute-bound").because[0], HasSubstr("2.0 times the floor of 50 ms"));
  input.plan->mutable_device_model()->set_name("H100-SXM");
  input.plan->mutable_modes(0)->set_step_seconds(0);
  EXPECT_THAT(Find(Why(input), "speed").because,
              Contains(HasSubstr("the plan for H100-SXM tells no time of a step in FP16")));
}

struct Fleet {
  std::vector<v1::Device> devices;
  std::vector<v1::DeviceModel> models;
};

// A GPU whose peaks are known, and a CPU, whose are not.
Fleet MixedFleet() {
  Fleet fleet{.models = BuiltInDeviceModels()};
  fleet.devices.resize(2);
  fleet.devices[0].set_id("cpu-0");
  fleet.devices[0].set_kind(v1::Device::CPU);
  fleet.devices[1].set_id("GPU-1");
  fleet.devices[1].set_kind(v1::Device::CUDA);
  fleet.devices[1].set_name("NVIDIA H100 80GB HBM3");
  return fleet;
}

Events RunOn(const std::string& reason) {
  Events events = ExampleRun();
  events[1].mutable_state_change()->set_reason(reason);
  return events;
}

TEST(FloorRequest, IsForTheDeviceThatAnEndedJobHad) {
  const Fleet fleet = MixedFleet();
  const auto request = FloorRequest(ExampleJob(), RunOn("on GPU-1"), fleet.devices, fleet.models);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->device_model(), "H100-SXM");
  EXPECT_THAT(request->modes(), testing::ElementsAre(v1::PrecisionSpec::FP16));
}

TEST(FloorRequest, PlansAutoInTheModeItTook) {
  const Fleet fleet = MixedFleet();
  v1::Job job = ExampleJob();
  job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::AUTO);
  EXPECT_EQ(FloorRequest(job, RunOn("on GPU-1"), fleet.devices, fleet.models).status().message(),
            "AUTO has not taken a mode yet");
  job.mutable_summary()->set_mode(v1::PrecisionSpec::BF16);
  const auto request = FloorRequest(job, RunOn("on GPU-1"), fleet.devices, fleet.models);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->modes(), testing::ElementsAre(v1::PrecisionSpec::BF16));
  // The report's layers are planned in the spec's.
  EXPECT_EQ(request->spec().precision().mode(), v1::PrecisionSpec::BF16);
}

TEST(FloorRequest, SaysWhyThereIsNone) {
  const Fleet fleet = MixedFleet();
  const v1::Job job = ExampleJob();
  const auto why = [&](const Events& events) {
    return std::string(FloorRequest(job, events, fleet.devices, fleet.models).status().message());
  };
  EXPECT_EQ(why({}), "no step was reported");
  EXPECT_EQ(why(RunOn("")), "which device it ran on is not known");
  EXPECT_EQ(why(RunOn("on GPU-9")), "its device GPU-9 is not there any more");
  EXPECT_THAT(why(RunOn("on cpu-0")), HasSubstr("the peaks of its device, CPU, are not (device_models"));
  EXPECT_THAT(std::string(FloorRequest(job, RunOn("on GPU-1"), fleet.devices, {}).status().message()),
              HasSubstr("does not know the kind of its device, NVIDIA H100 80GB HBM3"));
}

TEST(Why, SkipsNameTensorStageAndScale) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun()};
  const Finding finding = Find(Why(input), "skips, few");
  EXPECT_EQ(finding.because[0], "1 of 100 steps were skipped after calibration, the last 101");
  EXPECT_EQ(finding.because[1], "first not finite: conv1.weight (1 times); stage GRADIENT (1 times)");
  EXPECT_EQ(finding.because[2], "the scale went from 32768 to 16384");
}

TEST(Why, ManyForwardSkipsAskForAnotherDtype) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun()};
  for (int i = 0; i < 5; ++i) {
    const Events more = EventsOf(
        {R"({overflow_skip: {step: 90, phase: main, scale_before: 8, scale_after: 8, stage: FORWARD, first_tensor: "fc1.matmul", kind: KIND_INF}})"});
    input.events.push_back(more[0]);
  }
  const Finding finding = Find(Why(input), "skipping");
  EXPECT_THAT(finding.advice, Contains(HasSubstr("rules [{match: fc1, dtype: FP32}]")));
}

TEST(Why, AFailureTellsWhatToTry) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED)};
  input.job.mutable_failure()->set_class_(v1::Failure::OUT_OF_MEMORY);
  input.job.mutable_failure()->set_message("the model needs 9 bytes");
  const Finding finding = Find(Why(input), "failed");
  EXPECT_EQ(finding.because[0], "OUT_OF_MEMORY: the model needs 9 bytes");
  EXPECT_THAT(finding.advice, Contains(HasSubstr("micro_batch_size")));
  for (int c = 1; c < v1::Failure::Class_descriptor()->value_count(); ++c) {
    input.job.mutable_failure()->set_class_(
        static_cast<v1::Failure::Class>(v1::Failure::Class_descriptor()->value(c)->number()));
    EXPECT_FALSE(Find(Why(input), "failed").advice.empty()) << c;
  }
}

TEST(Why, AStaticScaleThatDivergedIsNamed) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED)};
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  v1::LossScaleSpec& scale = *input.job.mutable_spec()->mutable_precision()->mutable_loss_scale();
  scale.set_init(4194304);
  for (const bool is_static : {false, true}) {
    scale.set_kind(is_static ? v1::LossScaleSpec::STATIC : v1::LossScaleSpec::DYNAMIC);
    EXPECT_EQ(Find(Why(input), "failed").advice[0].find("lower precision.loss_scale.init, which is 4194304,") !=
                  std::string::npos,
              is_static);
  }
}

TEST(Why, AdviceIsForTheModeThatTheJobHas) {
  WhyInput failed{.job = ExampleJob(v1::Job::FAILED)};
  failed.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  WhyInput skips{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun()};
  WhyInput forward = skips;
  for (int i = 0; i < 5; ++i) {
    forward.events.push_back(EventsOf(
        {R"({overflow_skip: {step: 90, phase: main, scale_before: 8, scale_after: 8, stage: FORWARD, first_tensor: "fc1.matmul", kind: KIND_INF}})"})
                                 [0]);
  }
  const auto text = [](WhyInput input, v1::PrecisionSpec::Mode mode) {
    input.job.mutable_spec()->mutable_precision()->set_mode(mode);
    return WhyText(input.job, Why(input));
  };
  for (const WhyInput& input : {failed, skips, forward}) {
    for (const auto mode : {v1::PrecisionSpec::FP32, v1::PrecisionSpec::TF32}) {
      EXPECT_THAT(text(input, mode), testing::Not(HasSubstr("BF16")));
      EXPECT_THAT(text(input, mode), testing::Not(HasSubstr("dtype: FP32")));
      EXPECT_THAT(text(input, mode), HasSubstr("-> "));
    }
    EXPECT_THAT(text(input, v1::PrecisionSpec::FP16), HasSubstr("BF16"));
    EXPECT_THAT(text(input, v1::PrecisionSpec::BF16), testing::Not(HasSubstr("BF16")));
  }
  EXPECT_THAT(text(failed, v1::PrecisionSpec::FP16), HasSubstr("FALLBACK_BF16"));
  EXPECT_THAT(text(forward, v1::PrecisionSpec::BF16), HasSubstr("dtype: FP32"));
}

TEST(Why, AJobWithoutRoomSaysWhatToDo) {
  WhyInput input{.job = ExampleJob(v1::Job::PAUSED)};
  input.job.set_pause_reason(v1::Job::NO_DISK_SPACE);
  input.events.push_back(
      EventsOf({R"({state_change: {from: RUNNING, to: PAUSED, reason: "no room in the state directory: disk"}})"})[0]);
  const Finding finding = Find(Why(input), "paused");
  EXPECT_EQ(finding.because[0], "no room in the state directory: disk");
  EXPECT_THAT(finding.because[1], HasSubstr("by itself"));
  EXPECT_THAT(finding.advice, Contains(HasSubstr("make room")));
}

TEST(Why, EveryStateHasAnAnswer) {
  for (int s = 1; s < v1::Job::State_descriptor()->value_count(); ++s) {
    WhyInput input;
    input.job.set_state(static_cast<v1::Job::State>(v1::Job::State_descriptor()->value(s)->number()));
    const std::vector<Finding> found = Why(input);
    ASSERT_FALSE(found.empty());
    EXPECT_FALSE(found[0].because.empty()) << found[0].what;
    EXPECT_THAT(WhyJson(input.job, found), HasSubstr("\"findings\": [{\"what\": "));
  }
}

TEST(Why, ASucceededJobIsSummedUp) {
  WhyInput input{.job = ExampleJob(), .events = ExampleRun()};
  const Finding finding = Find(Why(input), "succeeded");
  EXPECT_EQ(finding.because[0], "100 steps, 1 skipped, loss 2, accuracy 0.5");
  EXPECT_EQ(finding.because[1], "it ran 0:20");
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::StartsWith("01hq3v7m demo: SUCCEEDED\nsucceeded\n  100 steps"));
}

}  // namespace
}  // namespace ampd::client
