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

v1::PlanReport PlanWithFloor(double seconds, v1::LayerCost::Bound bound,
                             v1::PrecisionSpec::Mode of = v1::PrecisionSpec::FP16) {
  v1::PlanReport plan;
  v1::ModeEstimate* mode = plan.add_modes();
  mode->set_mode(of);
  mode->set_step_seconds(seconds);
  plan.add_layers()->set_bound(bound);
  plan.mutable_layers(0)->set_seconds(seconds);
  plan.mutable_device_model()->set_name("H100-SXM");
  plan.mutable_device_model()->set_kind(v1::Device::CUDA);
  plan.mutable_device_model()->set_fp16_flops(1e15);
  return plan;
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
  EXPECT_THAT(finding.because[0], HasSubstr("50.0% of the time: 50 ms of 100 ms a step (mean of the attempt)"));
  EXPECT_THAT(finding.because[1], HasSubstr("2.00 times as fast"));
}

// One report an epoch, of `steps` steps of 0.1 s, and the time that was waited in it.
Events Epochs(const std::vector<double>& waits, int64_t steps = 10) {
  Events events;
  for (size_t i = 0; i < waits.size(); ++i) {
    const auto first = static_cast<int64_t>(i) * steps + 1;
    events.push_back(
        EventsOf({absl::StrCat("{step: {first_step: ", first, ", last_step: ", first + steps - 1, ", epoch: ", i + 1,
                               ", step_seconds: 0.1, input_wait_seconds: ", waits[i], "}}")})[0]);
  }
  return events;
}

v1::Job JobOfImages(v1::CacheSpec::Kind cache) {
  v1::Job job = ExampleJob(v1::Job::RUNNING);
  job.mutable_spec()->mutable_data()->mutable_train()->mutable_image_folder();
  job.mutable_spec()->mutable_data()->mutable_cache()->set_kind(cache);
  return job;
}

TEST(Why, WhatIsWaitedForInTheFirstEpochAloneDoesNotBoundTheJob) {
  WhyInput input{.job = JobOfImages(v1::CacheSpec::MEMORY), .events = Epochs({0.9, 0.01, 0.01})};
  const std::vector<Finding> found = Why(input);
  EXPECT_THAT(WhyText(input.job, found), testing::Not(HasSubstr("input-bound")));
  const Finding finding = Find(found, "speed");
  EXPECT_THAT(finding.because[0],
              HasSubstr("a step takes 100 ms (mean of the attempt after its first epoch), 1.0% of it waiting"));
  EXPECT_THAT(finding.because, Contains("in the attempt's first epoch alone it waited for batches 90.0% of the time"));
  input.plan = PlanWithFloor(0.05, v1::LayerCost::MEMORY);
  EXPECT_THAT(Find(Why(input), "speed: memory-bound").because,
              Contains(HasSubstr("in the attempt's first epoch alone")));
}

TEST(Why, WhatIsWaitedForInLaterEpochsBoundsTheJob) {
  WhyInput input{.job = JobOfImages(v1::CacheSpec::MEMORY), .events = Epochs({0.1, 0.5, 0.5})};
  const Finding finding = Find(Why(input), "slow: input-bound");
  EXPECT_THAT(finding.because[0], HasSubstr("50.0% of the time: 50 ms of 100 ms a step (mean of the attempt after"));
  EXPECT_THAT(finding.advice, Contains(HasSubstr("what finds no room in data.cache")));
}

// The rest of what a cache is to keep is decoded in the epoch after the one that the attempt began within.
TEST(Why, AnAttemptThatBeganWithinAnEpochFillsItsCacheInTheNext) {
  Events events = Epochs({0.9, 0.9, 0.01, 0.01});
  events[0].mutable_step()->set_first_step(6);
  WhyInput input{.job = JobOfImages(v1::CacheSpec::MEMORY), .events = {events[0], events[1]}};
  EXPECT_THAT(Find(Why(input), "slow: input-bound").advice, testing::Not(Contains(HasSubstr("data.cache"))));
  input.events = events;
  EXPECT_THAT(Find(Why(input), "speed").because[0], HasSubstr("1.0% of it waiting"));
}

TEST(Why, TheNewestAttemptsEpochsCount) {
  WhyInput input{.job = JobOfImages(v1::CacheSpec::MEMORY), .events = Epochs({0.9, 0.01, 0.9})};
  for (int i : {0, 1}) input.events[static_cast<size_t>(i)].set_attempt(1);
  input.events[2].set_attempt(2);
  EXPECT_THAT(Find(Why(input), "slow: input-bound").because, Contains(HasSubstr("that is the attempt's first epoch")));
}

// An epoch's steps, or a hundred where it has more.
TEST(Why, AFewStepsOfTheSecondEpochTellNothing) {
  WhyInput input{.job = JobOfImages(v1::CacheSpec::MEMORY), .events = Epochs({90, 0}, 1000)};
  input.events[1].mutable_step()->set_last_step(1099);
  EXPECT_THAT(Find(Why(input), "slow: input-bound").because[0], HasSubstr("(mean of the attempt)"));
  input.events[1].mutable_step()->set_last_step(1100);
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("input-bound")));
}

TEST(Why, AdviceAgainstWaitingIsOfWhatTheJobDoesNotDoYet) {
  const auto text = [](v1::Job job, const Events& events) {
    return WhyText(job, Why(WhyInput{.job = job, .events = events}));
  };
  for (const auto kind : {v1::CacheSpec::KIND_UNSPECIFIED, v1::CacheSpec::MEMORY, v1::CacheSpec::DISK}) {
    EXPECT_THAT(text(JobOfImages(kind), Epochs({0.9})), testing::Not(HasSubstr("keep decoded samples")));
  }
  EXPECT_THAT(text(JobOfImages(v1::CacheSpec::DISK), Epochs({0.9, 0.9})), testing::Not(HasSubstr("kind: DISK")));
  v1::Job job = JobOfImages(v1::CacheSpec::NONE);
  EXPECT_THAT(text(job, Epochs({0.9})), HasSubstr("-> keep decoded samples (data.cache)"));
  EXPECT_THAT(text(job, Epochs({0.9})), testing::Not(HasSubstr("first epoch")));
  EXPECT_THAT(text(job, Epochs({0.9})), HasSubstr("(data.decode_threads, by default resources.cpu_threads)"));
  job.mutable_spec()->mutable_data()->set_decode_threads(3);
  EXPECT_THAT(text(job, Epochs({0.9})), HasSubstr("(data.decode_threads, 3 here)"));
  // Read, not decoded: one thread does it whatever these say.
  job.mutable_spec()->mutable_data()->mutable_train()->mutable_npy();
  EXPECT_THAT(text(job, Epochs({0.9})), testing::Not(HasSubstr("decode")));
  EXPECT_THAT(text(job, Epochs({0.9})), testing::Not(HasSubstr("data.cache")));
}

TEST(Why, HowFastAFailedJobWasIsToldWhereTimeEndedIt) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED), .events = ExampleRun(6)};
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("slow")));
  input.job.mutable_failure()->set_class_(v1::Failure::LIMIT);
  Find(Why(input), "slow: input-bound");
}

TEST(Why, AJobThatALimitEndedMayBeContinued) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED), .events = {}};
  input.job.mutable_failure()->set_class_(v1::Failure::LIMIT);
  input.job.mutable_summary()->clear_checkpoint();
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("--continue-from")));
  input.job.mutable_summary()->set_checkpoint("step-000000500");
  EXPECT_THAT(WhyText(input.job, Why(input)), HasSubstr("ampctl submit FILE --continue-from " + input.job.id()));
}

TEST(Why, ComparesAStepWithItsFloor) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.plan = PlanWithFloor(0.05, v1::LayerCost::MEMORY);
  Find(Why(input), "speed: memory-bound");
  input.plan = PlanWithFloor(0.05, v1::LayerCost::COMPUTE);
  Find(Why(input), "speed: compute-bound");
  input.plan.reset();
  input.no_plan = "the peaks of its device, CPU, are not";
  EXPECT_THAT(Find(Why(input), "speed").because,
              Contains(HasSubstr("is not known: the peaks of its device, CPU, are not")));
}

TEST(Why, WhatAStepSpendsAboveItsFloorIsForAProfileToTell) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.plan = PlanWithFloor(0.01, v1::LayerCost::MEMORY);
  Finding finding = Find(Why(input), "slow: far above its floor");
  EXPECT_THAT(finding.because[0],
              HasSubstr("a step takes 100 ms (mean of the attempt), 10.0 times the floor of 10 ms"));
  EXPECT_EQ(finding.because[1], "that is launches, kernels too small for the device, or kernels far from its peak");
  EXPECT_THAT(finding.advice, testing::ElementsAre("ampctl profile JOB, while it runs, tells which"));
  // A CPU launches nothing.
  input.plan->mutable_device_model()->set_kind(v1::Device::CPU);
  finding = Find(Why(input), "slow: far above its floor");
  EXPECT_EQ(finding.because[1], "that is kernels too small for the device, or kernels far from its peak");
}

// A profile of 20 steps in which kernels take `seconds` of each.
v1::JobEvent Profiled(v1::StepProfile::Timing timing, double seconds) {
  v1::JobEvent event;
  v1::StepProfile& profile = *event.mutable_step_profile();
  profile.set_first_step(41);
  profile.set_last_step(60);
  profile.set_timing(timing);
  profile.set_step_seconds(0.15);
  profile.add_parts()->set_seconds(20 * seconds);
  if (timing != v1::StepProfile::KERNEL_ACTIVITY) return event;
  for (int i = 0; i < 2; ++i) profile.add_kernels()->set_seconds(10 * seconds);
  return event;
}

TEST(Why, LaunchBoundWhereAProfileShowsTimeBetweenKernels) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING)};
  input.plan = PlanWithFloor(0.01, v1::LayerCost::MEMORY);
  const auto with = [&](const v1::JobEvent& profile) {
    input.events = ExampleRun(0);
    input.events.insert(input.events.end() - 1, profile);
    return Why(input);
  };
  const Finding launches = Find(with(Profiled(v1::StepProfile::KERNEL_ACTIVITY, 0.02)), "slow: launch-bound");
  EXPECT_THAT(launches.because[1],
              HasSubstr("in steps 41 to 60, which were profiled, kernels take 20 ms each: 80.0% of "
                        "a step lies between them"));
  EXPECT_THAT(launches.advice, Contains("raise train.batch_size"));
  // Nearly all of a step is one convolution's.
  const Finding kernels = Find(with(Profiled(v1::StepProfile::KERNEL_ACTIVITY, 0.0996)), "slow: far above its floor");
  EXPECT_THAT(kernels.because[1], HasSubstr("kernels take 99.6 ms each"));
  EXPECT_EQ(kernels.because[2], "so they are too small for the device, or far from its peak");
  EXPECT_THAT(kernels.advice, testing::ElementsAre("ampctl profile JOB --last shows which take it"));
  // Parts that hold the gaps before them tell nothing of gaps.
  Find(with(Profiled(v1::StepProfile::DEVICE_EVENTS, 0.02)), "slow: far above its floor");
  v1::JobEvent earlier = Profiled(v1::StepProfile::KERNEL_ACTIVITY, 0.02);
  earlier.set_attempt(7);
  Find(with(earlier), "slow: far above its floor");
  input.plan->mutable_device_model()->set_kind(v1::Device::CPU);
  Find(with(Profiled(v1::StepProfile::HOST_CLOCK, 0.02)), "slow: far above its floor");
}

TEST(Why, ALargerBatchIsAdvisedOnce) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.plan = PlanWithFloor(0.01, v1::LayerCost::MEMORY);
  v1::Advice* advice = input.plan->add_advice();
  advice->set_kind(v1::Advice::RAISE_BATCH);
  advice->set_text("batch 50 leaves weights to few samples");
  input.events.push_back(Profiled(v1::StepProfile::KERNEL_ACTIVITY, 0.02));
  EXPECT_THAT(Find(Why(input), "slow: launch-bound").advice,
              testing::ElementsAre("batch 50 leaves weights to few samples"));
}

TEST(Why, HalvingWhatIsMovedIsForModesThatMoveFourBytes) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  const auto text = [&](v1::PrecisionSpec::Mode mode) {
    input.job.mutable_spec()->mutable_precision()->set_mode(mode);
    input.plan = PlanWithFloor(0.05, v1::LayerCost::MEMORY, mode);
    return WhyText(input.job, Why(input));
  };
  for (const auto mode : {v1::PrecisionSpec::FP32, v1::PrecisionSpec::TF32}) {
    EXPECT_THAT(text(mode), HasSubstr("a 16-bit mode halves what is moved"));
  }
  for (const auto mode : {v1::PrecisionSpec::FP16, v1::PrecisionSpec::BF16, v1::PrecisionSpec::FP8}) {
    EXPECT_THAT(text(mode), testing::Not(HasSubstr("16-bit")));
    EXPECT_THAT(text(mode), HasSubstr("larger batches and wider layers"));
  }
  // A CPU that emulates 16 bits spends more on that than it saves.
  input.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::FP32);
  input.plan = PlanWithFloor(0.05, v1::LayerCost::MEMORY, v1::PrecisionSpec::FP32);
  input.plan->mutable_device_model()->set_kind(v1::Device::CPU);
  input.plan->mutable_device_model()->clear_fp16_flops();
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("16-bit")));
}

TEST(Why, AModeThatACpuEmulatesHasNoFloor) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  input.plan = PlanWithFloor(0, v1::LayerCost::MEMORY);
  input.plan->mutable_device_model()->set_name("CPU");
  input.plan->mutable_device_model()->set_kind(v1::Device::CPU);
  input.plan->mutable_device_model()->set_fp32_flops(3e11);
  input.plan->mutable_device_model()->clear_fp16_flops();
  EXPECT_THAT(Find(Why(input), "speed").because,
              Contains(HasSubstr("the plan for CPU tells no time of a step in FP16, which it is taken to emulate")));
}

TEST(Why, SpeedIsThatOfTheNewestAttempt) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun(0)};
  for (v1::JobEvent& event : input.events) event.set_attempt(1);
  input.events.push_back(EventsOf({"{attempt: 2, step: {first_step: 101, last_step: 110, step_seconds: 0.02}}"})[0]);
  EXPECT_THAT(Find(Why(input), "speed").because[0], HasSubstr("a step takes 20 ms (mean of the attempt), "));
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

// The example's, but that it did not go back behind the skip at step 101.
Events RunWithASkip() {
  Events events = ExampleRun();
  events[6].mutable_rewound()->set_to_step(101);
  return events;
}

TEST(Why, OfStepsThatWereDoneAgainTheLastAttemptCounts) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = ExampleRun()};
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("skip")));
  for (const int64_t step : {90, 101}) {
    input.events.push_back(EventsOf({absl::StrCat("{overflow_skip: {step: ", step,
                                                  ", phase: main, scale_before: 16, scale_after: 8, stage: GRADIENT, "
                                                  "first_tensor: fc1, kind: KIND_INF}}")})[0]);
  }
  EXPECT_THAT(Find(Why(input), "skipping").because[0], HasSubstr("2 of 101 steps were skipped"));
  input.events.push_back(EventsOf({"{rewound: {to_step: 95}}"})[0]);
  EXPECT_THAT(Find(Why(input), "skipping").because[0], HasSubstr("1 of 95 steps were skipped"));
}

TEST(Why, AJobThatContinuesAnothersTrainingHasItsOwnSteps) {
  WhyInput input{.job = ExampleJob(), .events = RunWithASkip()};
  v1::WeightSource& source = *input.job.mutable_spec()->mutable_start_from();
  source.set_checkpoint("step-000000080");
  EXPECT_THAT(Find(Why(input), "succeeded").because[0], HasSubstr("100 steps, 1 skipped"));
  source.set_continue_training(true);
  EXPECT_THAT(Find(Why(input), "succeeded").because[0], HasSubstr("20 steps from step 81 on, 1 skipped"));
  EXPECT_THAT(Find(Why(input), "skipping").because[0], HasSubstr("1 of 21 steps were skipped"));
}

TEST(Why, WhatAMeasurementHasIsCells) {
  WhyInput input{.job = ExampleJob()};
  input.job.mutable_spec()->mutable_bench();
  *input.job.mutable_summary() = v1::JobSummary();
  input.job.mutable_summary()->set_step(5);
  EXPECT_EQ(Find(Why(input), "succeeded").because[0], "5 cells");
}

TEST(Why, SkipsNameTensorStageAndScale) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = RunWithASkip()};
  const Finding finding = Find(Why(input), "skips, few");
  EXPECT_EQ(finding.because[0], "1 of 101 steps were skipped after calibration, the last 101");
  EXPECT_EQ(finding.because[1], "first not finite: conv1.weight (1 times); stage GRADIENT (1 times)");
  EXPECT_EQ(finding.because[2], "the scale went from 32768 to 16384");
}

// A scale that grows every 10 steps overflows about once in 11, which is how it finds its height.
TEST(Why, ManySkipsAreMoreThanGrowthMakes) {
  const auto with = [](int64_t skips, absl::optional<int64_t> growth_interval) {
    WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = RunWithASkip()};
    if (growth_interval) {
      input.job.mutable_spec()->mutable_precision()->mutable_loss_scale()->set_growth_interval(*growth_interval);
    }
    // One is in the example.
    for (int64_t i = 1; i < skips; ++i) {
      input.events.push_back(EventsOf(
          {R"({overflow_skip: {step: 90, phase: main, scale_before: 8, scale_after: 4, stage: GRADIENT, first_tensor: "fc1.matmul", kind: KIND_INF}})"})
                                 [0]);
    }
    return Why(input)[0].what;
  };
  EXPECT_EQ(with(9, 10), "skips, few");
  EXPECT_EQ(with(18, 10), "skips, few");
  EXPECT_EQ(with(19, 10), "skipping");
  for (const auto& interval : {absl::optional<int64_t>(), absl::optional<int64_t>(2000)}) {
    EXPECT_EQ(with(1, interval), "skips, few");
    EXPECT_EQ(with(2, interval), "skipping");
  }
}

Events SkipsAt(int count, double before, double after, const std::string& tensor, const std::string& more = "") {
  Events events;
  for (int i = 0; i < count; ++i) {
    const Events skip = EventsOf(
        {absl::StrCat("{overflow_skip: {step: 90, phase: main, scale_before: ", before, ", scale_after: ", after,
                      ", stage: FORWARD, first_tensor: \"", tensor, "\", kind: KIND_INF", more, "}}")});
    events.push_back(skip[0]);
  }
  return events;
}

TEST(Why, ManyForwardSkipsAskForAnotherDtype) {
  for (const std::string layer : {"fc1", "layer2.0.downsample.0"}) {
    WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = SkipsAt(6, 8, 8, layer + ".matmul")};
    input.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::FP16);
    const auto rule = absl::StrCat("rules [{match: ", layer, ", dtype: FP32}]");
    // A preset's or a network's layers are not in the spec.
    EXPECT_THAT(Find(Why(input), "skipping").advice, testing::Not(Contains(HasSubstr("match:"))));
    for (const std::string& name : {std::string("layer2"), std::string("fc"), layer}) {
      input.job.mutable_spec()->mutable_model()->add_layers()->set_name(name);
    }
    const Finding finding = Find(Why(input), "skipping");
    EXPECT_THAT(finding.advice[0], HasSubstr("lower the learning rate"));
    EXPECT_THAT(finding.advice, Contains(HasSubstr(rule)));
  }
}

TEST(Why, WhatOverflowsForwardIsNoMatterOfTheScale) {
  for (const auto kind : {v1::LossScaleSpec::STATIC, v1::LossScaleSpec::DYNAMIC}) {
    WhyInput input{.job = ExampleJob(v1::Job::FAILED), .events = SkipsAt(6, 8, 8, "fc1.matmul")};
    input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
    input.job.mutable_spec()->mutable_precision()->set_mode(v1::PrecisionSpec::FP16);
    input.job.mutable_spec()->mutable_precision()->mutable_loss_scale()->set_kind(kind);
    const std::string text = WhyText(input.job, Why(input));
    EXPECT_THAT(text, testing::Not(HasSubstr("FALLBACK_BF16")));
    EXPECT_THAT(text, testing::Not(HasSubstr("loss_scale.init")));
    EXPECT_THAT(text, HasSubstr("beyond FP16's 65504"));
  }
}

TEST(Why, SkipsOfCalibrationCountWhereNothingWasApplied) {
  WhyInput input{.job = ExampleJob(v1::Job::FAILED), .events = SkipsAt(6, 8, 8, "fc1.matmul", ", calibration: true")};
  input.job.mutable_failure()->set_class_(v1::Failure::DIVERGED);
  input.job.mutable_summary()->clear_steps_applied();
  EXPECT_THAT(Find(Why(input), "skipping").because[0], HasSubstr("6 of 90 steps were skipped, none was applied"));
  input.job.mutable_summary()->set_steps_applied(1);
  EXPECT_THAT(WhyText(input.job, Why(input)), testing::Not(HasSubstr("skipping")));
}

TEST(Why, AScaleThatWentUpAndDownDidNotStay) {
  WhyInput input{.job = ExampleJob(v1::Job::RUNNING), .events = SkipsAt(3, 16, 8, "fc1.matmul")};
  for (const v1::JobEvent& event : SkipsAt(1, 16, 16, "fc1.matmul")) input.events.push_back(event);
  EXPECT_EQ(Find(Why(input), "skipping").because[2], "the scale went up and down between 8 and 16, to 16");
}

TEST(Why, ACancelledJobSaysWhy) {
  WhyInput input{.job = ExampleJob(v1::Job::CANCELLED)};
  EXPECT_EQ(Find(Why(input), "cancelled").because[0], "somebody asked for it");
  input.events =
      EventsOf({R"({state_change: {from: QUEUED, to: CANCELLED, reason: "job A (after_ok) ended FAILED"}})"});
  EXPECT_EQ(Find(Why(input), "cancelled").because[0], "job A (after_ok) ended FAILED");
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
  WhyInput skips{.job = ExampleJob(v1::Job::RUNNING), .events = RunWithASkip()};
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
  // It reaches as far as FP32.
  EXPECT_THAT(text(forward, v1::PrecisionSpec::BF16), testing::Not(HasSubstr("dtype: FP32")));
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
