#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;

class ControllerScheduleTest : public ControllerTest {
 protected:
  // CPU devices of `gib` each.
  void RestartOn(int devices, int64_t gib = 4) {
    StopDaemon();
    std::vector<v1::Device> cpus;
    for (int i = 0; i < devices; ++i) {
      v1::Device& cpu = cpus.emplace_back();
      cpu.set_id(absl::StrCat("cpu-", i));
      cpu.set_kind(v1::Device::CPU);
      cpu.set_threads(2);
      cpu.set_memory_total_bytes(devices * gib * kGiB);
    }
    StartDaemonOn(std::move(cpus));
  }
  CreateJobParams With(int gpus, int priority = 0) {
    CreateJobParams params = Params();
    params.spec.mutable_resources()->set_gpus(gpus);
    params.spec.mutable_resources()->set_priority(priority);
    return params;
  }
  CreateJobParams Sharing(int64_t planned) {
    CreateJobParams params = With(1);
    params.spec.mutable_resources()->set_share(true);
    params.plan.set_parameter_bytes(planned);
    return params;
  }
  std::vector<v1::Device> Devices() {
    return *Await<std::vector<v1::Device>>([&](auto done) { controller_->ListDevices(std::move(done)); });
  }
  std::vector<std::string> DevicesOf(const std::string& id) {
    const auto job = Get(id);
    return {job->devices().begin(), job->devices().end()};
  }
  // The worker of launch `n` says that it is done, and exits.
  void Succeed(size_t n) {
    auto worker = AttachLaunched(n);
    SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, n);
  }
  void FailForGood(size_t n) {
    auto worker = AttachLaunched(n);
    SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::INVALID_SPEC);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, n);
  }
};

TEST_F(ControllerScheduleTest, AGangHasAllItsDevicesOrNone) {
  RestartOn(2);
  const std::string first = Submit(With(1)), gang = Submit(With(2)), later = Submit(With(1));
  EXPECT_THAT(DevicesOf(first), ElementsAre("cpu-0"));
  EXPECT_EQ(Get(gang)->queue_reason(), v1::Job::RESOURCES);
  EXPECT_EQ(Get(gang)->queue_message(), "1 of 2 devices free: of 2 that it could use 1 is held");
  EXPECT_EQ(Get(later)->queue_reason(), v1::Job::PRIORITY);
  EXPECT_THAT(Get(later)->queue_message(), HasSubstr(gang));
  Succeed(0);
  WaitFor(gang, v1::Job::STARTING);
  EXPECT_THAT(DevicesOf(gang), ElementsAre("cpu-0", "cpu-1"));
  auto worker = AttachLaunched(1);
  const v1::DaemonWelcome welcome = worker->WaitForWelcome();
  EXPECT_THAT(welcome.devices(), ElementsAre("cpu-0", "cpu-1"));
  EXPECT_EQ(welcome.cpu_threads(), 4);
  EXPECT_THAT(Devices()[1].job_ids(), ElementsAre(gang));

  // A daemon that comes back knows what the gang holds.
  RestartOn(2);
  EXPECT_THAT(Devices()[0].job_ids(), ElementsAre(gang));
  EXPECT_THAT(Devices()[1].job_ids(), ElementsAre(gang));
  EXPECT_EQ(Get(later)->state(), v1::Job::QUEUED);
}

TEST_F(ControllerScheduleTest, ALimitTellsWhenTheNextStarts) {
  RestartOn(1);
  CreateJobParams limited = With(1);
  limited.spec.mutable_limits()->set_max_run_seconds(1000);
  Submit(std::move(limited));
  const std::string next = Submit(With(1)), last = Submit(With(1));
  const v1::Job job = *Get(next);
  ASSERT_TRUE(job.has_estimated_start_time());
  // The time to start and the time to stop are added.
  EXPECT_EQ(job.estimated_start_time().seconds() - absl::ToUnixSeconds(clock_.Now()), 1000 + 60 + 60);
  EXPECT_FALSE(Get(last)->has_estimated_start_time());
  clock_.Set(absl::Hours(5));
  Settle();
  EXPECT_EQ(Get(next)->estimated_start_time().seconds() - absl::ToUnixSeconds(clock_.Now()), 1000 + 60 + 60);
}

TEST_F(ControllerScheduleTest, SmallJobsShareADevice) {
  RestartOn(2, 4);
  const std::string a = Submit(Sharing(kGiB)), b = Submit(Sharing(kGiB)), c = Submit(Sharing(3 * kGiB));
  EXPECT_THAT(DevicesOf(a), ElementsAre("cpu-0"));
  EXPECT_THAT(DevicesOf(b), ElementsAre("cpu-0"));
  EXPECT_THAT(DevicesOf(c), ElementsAre("cpu-1"));
  EXPECT_THAT(Devices()[0].job_ids(), ElementsAre(a, b));
  EXPECT_EQ(Devices()[0].reserved_memory_bytes(), 2 * kGiB);
  const std::string exclusive = Submit(With(1)), large = Submit(Sharing(4 * kGiB));
  EXPECT_EQ(Get(exclusive)->state(), v1::Job::QUEUED);
  EXPECT_EQ(Get(large)->queue_reason(), v1::Job::GPU_MEMORY);
  Succeed(0);
  Settle();
  EXPECT_THAT(Devices()[0].job_ids(), ElementsAre(b));
  Succeed(1);
  WaitFor(exclusive, v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, SamplesThatADeviceIsToKeepArePlannedMemory) {
  RestartOn(1, 4);
  CreateJobParams keeps = Sharing(kGiB);
  keeps.spec.mutable_data()->mutable_device_cache()->set_max_bytes(2 * kGiB);
  const std::string a = Submit(Sharing(kGiB)), b = Submit(std::move(keeps));
  EXPECT_THAT(DevicesOf(a), ElementsAre("cpu-0"));
  EXPECT_THAT(DevicesOf(b), ElementsAre());
  Succeed(0);
  Settle();
  EXPECT_THAT(DevicesOf(b), ElementsAre("cpu-0"));
}

class ControllerMemoryPlanTest : public ControllerScheduleTest {
 protected:
  // GPUs "GPU-0", "GPU-1", ... of so many GiB.
  void RestartOnGpus(const std::vector<int64_t>& gib) {
    StopDaemon();
    std::vector<v1::Device> gpus;
    for (const int64_t size : gib) {
      v1::Device& gpu = gpus.emplace_back();
      gpu.set_id(absl::StrCat("GPU-", gpus.size() - 1));
      gpu.set_kind(v1::Device::CUDA);
      gpu.set_name(absl::StrCat("Model ", size));
      gpu.set_memory_total_bytes(size * kGiB);
    }
    StartDaemonOn(std::move(gpus));
  }
  CreateJobParams Planned(int64_t bytes) {
    CreateJobParams params = With(1);
    params.plan.set_parameter_bytes(bytes / 2);
    params.plan.set_activation_bytes(bytes - bytes / 2);
    return params;
  }
};

TEST_F(ControllerMemoryPlanTest, AJobGoesToAGpuThatItsPlanFits) {
  RestartOnGpus({24, 80});
  const std::string large = Submit(Planned(40 * kGiB));
  EXPECT_THAT(DevicesOf(large), ElementsAre("GPU-1"));
  const std::string next = Submit(Planned(40 * kGiB)), small = Submit(Planned(8 * kGiB));
  EXPECT_EQ(Get(next)->queue_reason(), v1::Job::GPU_MEMORY);
  EXPECT_THAT(Get(next)->queue_message(), HasSubstr("GPU-0 is free, but has 25769803776 bytes of memory"));
  EXPECT_THAT(DevicesOf(small), ElementsAre("GPU-0")) << "kept for nobody";
  Succeed(0);
  WaitFor(next, v1::Job::STARTING);
  EXPECT_THAT(DevicesOf(next), ElementsAre("GPU-1"));
}

TEST_F(ControllerMemoryPlanTest, TheProcessTakesMemoryToo) {
  RestartOnGpus({24, 80});
  EXPECT_THAT(DevicesOf(Submit(Planned(24 * kGiB - (int64_t{512} << 20) + 1))), ElementsAre("GPU-1"));
  EXPECT_THAT(DevicesOf(Submit(Planned(24 * kGiB - (int64_t{512} << 20)))), ElementsAre("GPU-0"));
}

TEST_F(ControllerMemoryPlanTest, WhatFitsNowhereSaysSoUnlessThePlanMayBeTooHigh) {
  RestartOnGpus({24});
  const std::string large = Submit(Planned(30 * kGiB)), nearly = Submit(Planned(29 * kGiB));
  EXPECT_EQ(Get(large)->state(), v1::Job::QUEUED);
  EXPECT_EQ(Get(large)->queue_reason(), v1::Job::GPU_MEMORY);
  EXPECT_THAT(Get(large)->queue_message(), HasSubstr("of 1 device that could run it 0 have as much"));
  EXPECT_THAT(DevicesOf(nearly), ElementsAre("GPU-0")) << "29.5 GiB, 23.6 at least";
  // A daemon with other GPUs takes it.
  RestartOnGpus({24, 80});
  WaitFor(large, v1::Job::STARTING);
}

TEST_F(ControllerMemoryPlanTest, WithoutAPlanAndToMeasureAnyGpuIsTried) {
  RestartOnGpus({1});
  EXPECT_THAT(DevicesOf(Submit(With(1))), ElementsAre("GPU-0"));
  RestartOnGpus({1, 1});
  CreateJobParams bench = Planned(8 * kGiB), keeps = Planned(kGiB / 4);
  bench.spec.mutable_bench()->add_batch_sizes(1);
  EXPECT_THAT(DevicesOf(Submit(std::move(bench))), ElementsAre("GPU-1")) << "it tells of each size whether it fits";
  RestartOnGpus({1, 1, 1});
  keeps.spec.mutable_data()->mutable_device_cache()->set_max_bytes(8 * kGiB);
  EXPECT_THAT(DevicesOf(Submit(std::move(keeps))), ElementsAre("GPU-2")) << "samples are kept where there is room";
}

TEST_F(ControllerMemoryPlanTest, OnTheCpuWhateverIsPlannedIsTried) {
  RestartOn(1, 1);
  EXPECT_THAT(DevicesOf(Submit(Planned(8 * kGiB))), ElementsAre("cpu-0"));
}

TEST_F(ControllerScheduleTest, HigherPriorityFirst) {
  const std::string running = Submit(With(1));
  const std::string low = Submit(With(1, -1)), normal = Submit(With(1)), high = Submit(With(1, 7));
  EXPECT_EQ(Get(high)->queue_position(), 1);
  EXPECT_EQ(Get(normal)->queue_position(), 2);
  EXPECT_EQ(Get(low)->queue_position(), 3);
  Succeed(0);
  WaitFor(high, v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, NotBeforeItsTime) {
  CreateJobParams params = With(1);
  params.spec.mutable_not_before()->set_seconds(absl::ToUnixSeconds(clock_.Now()) + 3600);
  const std::string id = Submit(std::move(params));
  EXPECT_EQ(Get(id)->queue_reason(), v1::Job::NOT_BEFORE);
  Advance(absl::Seconds(3590));
  EXPECT_EQ(Get(id)->state(), v1::Job::QUEUED);
  RestartOn(1);
  EXPECT_EQ(Get(id)->queue_reason(), v1::Job::NOT_BEFORE);
  Advance(absl::Seconds(11));
  WaitFor(id, v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, ItsTimeHasComeAlsoWhenTheClockWasSet) {
  CreateJobParams params = With(1);
  params.spec.mutable_not_before()->set_seconds(absl::ToUnixSeconds(clock_.Now()) + 3600);
  const std::string id = Submit(std::move(params));
  Advance(absl::Minutes(1));
  clock_.Set(absl::Hours(1));
  Advance(absl::Minutes(1));
  WaitFor(id, v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, WaitsForOthers) {
  RestartOn(2);
  const std::string first = Submit(With(1)), second = Submit(With(1));
  CreateJobParams params = With(1);
  params.spec.add_after(first);
  params.spec.add_after_ok(second);
  const std::string id = Submit(std::move(params));
  EXPECT_EQ(Get(id)->queue_reason(), v1::Job::DEPENDENCY);
  EXPECT_EQ(Get(id)->queue_message(), absl::StrCat("waits for ", std::min(first, second), " (STARTING), ",
                                                   std::max(first, second), " (STARTING) to end"));
  FailForGood(0);
  WaitFor(first, v1::Job::FAILED);
  Settle();
  EXPECT_EQ(Get(id)->queue_message(), absl::StrCat("waits for ", second, " (STARTING) to end"));
  // What has ended is remembered by a daemon that comes back.
  RestartOn(2);
  Settle();
  EXPECT_EQ(Get(id)->queue_message(), absl::StrCat("waits for ", second, " (RECOVERING) to end"));
  Succeed(1);
  WaitFor(second, v1::Job::SUCCEEDED);
  WaitFor(id, v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, EndsWithTheJobWhoseSuccessItNeeds) {
  const std::string first = Submit(With(1));
  CreateJobParams params = With(1);
  params.spec.add_after_ok(first);
  const std::string second = Submit(params);
  params.spec.set_after_ok(0, second);
  const std::string third = Submit(params);
  FailForGood(0);
  WaitFor(second, v1::Job::CANCELLED);
  EXPECT_EQ(LastEvent(second).state_change().reason(),
            absl::StrCat("job ", first, ", which must succeed first (after_ok), ended FAILED"));
  WaitFor(third, v1::Job::CANCELLED);
  // One that has ended before it was named.
  params.spec.set_after_ok(0, first);
  WaitFor(Submit(params), v1::Job::CANCELLED);
  params.spec.clear_after_ok();
  params.spec.add_after(first);
  WaitFor(Submit(params), v1::Job::STARTING);
}

TEST_F(ControllerScheduleTest, QuotasOfAUser) {
  StopDaemon();
  scheduling_.max_running_devices_per_user = 1;
  max_queued_jobs_per_user_ = 2;
  RestartOn(2);
  const auto submit = [&](const std::string& user) {
    CreateJobParams params = With(1);
    params.user = user;
    return Create(std::move(params));
  };
  ASSERT_TRUE(submit("ada").ok());
  const auto second = submit("ada");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->queue_reason(), v1::Job::QUOTA);
  EXPECT_EQ(second->user(), "ada");
  ASSERT_TRUE(submit("ada").ok());
  EXPECT_EQ(submit("ada").status().code(), absl::StatusCode::kResourceExhausted);
  const auto other = submit("bob");
  ASSERT_TRUE(other.ok());
  WaitFor(other->id(), v1::Job::STARTING);
}

struct ClockStep {
  const char* name;
  // Of the wall clock while a job of ada's runs; what she has of the device before it and during it.
  absl::Duration step;
  absl::Duration before;
  absl::Duration during;
};

class ControllerClockTest : public ControllerScheduleTest, public ::testing::WithParamInterface<ClockStep> {
 protected:
  void Hold(const std::shared_ptr<FakeConnection>& worker, absl::Duration time) {
    for (absl::Duration past; past < time; past += absl::Seconds(50)) {
      Advance(std::min(absl::Seconds(50), time - past));
      SendHeartbeat(worker);
    }
  }
  // A job of the user's holds the device for so long.
  void Run(const std::string& user, absl::Duration time) {
    CreateJobParams params = With(1);
    params.user = user;
    const std::string id = Submit(std::move(params));
    auto worker = AttachLaunched(launch_);
    WaitFor(id, v1::Job::RUNNING);
    Hold(worker, time);
    SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, launch_++);
    WaitFor(id, v1::Job::SUCCEEDED);
    Settle();
  }

  size_t launch_ = 0;
};

TEST_P(ControllerClockTest, AStepOfTheWallClockLeavesUsageAsItIs) {
  RestartOn(1);
  Run("ada", GetParam().before);
  Run("bob", absl::Seconds(100));
  clock_.Set(GetParam().step);
  Run("ada", GetParam().during);
  clock_.Set(-GetParam().step);
  const auto submit = [&](const std::string& user) {
    CreateJobParams params = With(1);
    params.user = user;
    return Submit(std::move(params));
  };
  submit("eve");
  submit("ada");
  const std::string bobs = submit("bob");
  Succeed(launch_);
  WaitFor(bobs, v1::Job::STARTING);
}

TEST_P(ControllerClockTest, AStepOfTheWallClockDoesNotCountAsTimeThatAJobRan) {
  RestartOn(1);
  CreateJobParams params = With(1);
  params.spec.mutable_resources()->set_preemptible(true);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  clock_.Set(GetParam().step);
  Submit(With(1, 5));
  Settle();
  Hold(worker, scheduling_.min_run - absl::Seconds(50));
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  Hold(worker, absl::Seconds(50));
  WaitFor(id, v1::Job::PREEMPTING);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ControllerClockTest,
    ::testing::Values(ClockStep{"Forward", absl::Hours(10'000), absl::Seconds(200), absl::Seconds(1)},
                      ClockStep{"Back", -absl::Hours(10'000), absl::Seconds(1), absl::Seconds(200)}),
    [](const auto& info) { return info.param.name; });

class ControllerQuotaTest : public ControllerScheduleTest {
 protected:
  // Of one queued job a user, on one device.
  ControllerQuotaTest() {
    StopDaemon();
    max_queued_jobs_per_user_ = 1;
    RestartOn(1);
  }
  absl::Status Pause(const std::string& id) {
    return Await<v1::Job>([&](auto done) { controller_->PauseJob(id, std::move(done)); }).status();
  }
  absl::Status Resume(const std::string& id) {
    return Await<v1::Job>([&](auto done) { controller_->ResumeJob(id, std::move(done)); }).status();
  }
  absl::Status Retry(const std::string& id) {
    return Await<v1::Job>([&](auto done) { controller_->RetryJob({.job_id = id}, std::move(done)); }).status();
  }
};

TEST_F(ControllerQuotaTest, PausedJobsCountAsQueuedOnesDo) {
  Submit();
  const std::string paused = Submit();
  EXPECT_TRUE(Pause(paused).ok());
  const absl::Status refused = Create(Params()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("there are 0 queued and 1 paused jobs, and 1 more; a user may have 1"));
  CreateJobParams others = Params();
  others.user = "bob";
  EXPECT_TRUE(Create(std::move(others)).ok());
  RestartOn(1);
  EXPECT_EQ(Create(Params()).status().code(), absl::StatusCode::kResourceExhausted) << "after a restart too";
  EXPECT_TRUE(Resume(paused).ok()) << "it has counted all the time";
  EXPECT_EQ(Create(Params()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Pause(paused).ok());
  ASSERT_TRUE(Cancel(paused).ok());
  EXPECT_TRUE(Create(Params()).ok());
}

TEST_F(ControllerQuotaTest, WhatRanIsPausedAndResumedBeyondIt) {
  const std::string ran = Submit(), queued = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(ran, v1::Job::RUNNING);
  EXPECT_TRUE(Pause(ran).ok());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  WaitFor(ran, v1::Job::PAUSED);
  EndWorker(worker, 0);
  WaitFor(queued, v1::Job::STARTING);
  EXPECT_EQ(Create(Params()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Resume(ran).ok());
  EXPECT_EQ(Get(ran)->state(), v1::Job::QUEUED);
}

TEST_F(ControllerQuotaTest, ItHoldsForWhatIsRetried) {
  Submit();
  const std::string cancelled = Submit();
  ASSERT_TRUE(Cancel(cancelled).ok());
  const std::string queued = Submit();
  EXPECT_EQ(Retry(cancelled).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Get(cancelled)->state(), v1::Job::CANCELLED);
  ASSERT_TRUE(Cancel(queued).ok());
  EXPECT_TRUE(Retry(cancelled).ok());
  EXPECT_EQ(Retry(queued).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ControllerQuotaTest, ItCountsWhatWasRetriedInTheSameRound) {
  Submit();
  std::vector<std::string> cancelled;
  for (int i = 0; i < 2; ++i) {
    cancelled.push_back(Submit());
    ASSERT_TRUE(Cancel(cancelled.back()).ok());
  }
  std::promise<void> both_are_posted;
  controller_->Post([&] { both_are_posted.get_future().wait(); });
  std::promise<absl::Status> answers[2];
  for (int i = 0; i < 2; ++i) {
    controller_->RetryJob({.job_id = cancelled[i]},
                          [&, i](absl::StatusOr<v1::Job> job) { answers[i].set_value(job.status()); });
  }
  both_are_posted.set_value();
  EXPECT_TRUE(answers[0].get_future().get().ok());
  EXPECT_EQ(answers[1].get_future().get().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ControllerScheduleTest, WhoHadLessComesFirstAlsoAfterARestart) {
  const auto submit = [&](const std::string& user) {
    CreateJobParams params = With(1);
    params.user = user;
    return Submit(std::move(params));
  };
  submit("ada");
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(50));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Settle();
  RestartOn(1);
  submit("eve");
  const std::string ada = submit("ada"), bob = submit("bob");
  EXPECT_EQ(Get(bob)->queue_position(), 1);
  EXPECT_EQ(Get(ada)->queue_position(), 2);
}

TEST_F(ControllerScheduleTest, UsageThatIsForgottenIsDropped) {
  const auto stretch = [&](absl::Duration ago) {
    const int64_t seconds = absl::ToUnixSeconds(clock_.Now() - ago);
    return absl::StrCat("usage_device_seconds/", seconds - seconds % (6 * 3600), "/ada");
  };
  const std::string old = stretch(absl::Hours(24 * 500)), recent = stretch(absl::Hours(24 * 100)),
                    newest = stretch(absl::Hours(1));
  const std::map<std::string, double> counters = {{old, 5}, {recent, 6}, {newest, 7}, {"ampd_steps_applied_total", 8}};
  std::promise<absl::Status> added;
  store_->Change([&](Database& database) { return database.AddToCounters(counters); },
                 [&](const absl::Status& status) { added.set_value(status); });
  ASSERT_TRUE(added.get_future().get().ok());
  RestartOn(1);
  Settle();
  std::map<std::string, double> kept = *store_->Await([](const Database& database) { return database.Counters(); });
  EXPECT_EQ(kept.count(old), 0u);
  EXPECT_EQ(kept[recent], 6);
  EXPECT_EQ(kept[newest], 7);
  EXPECT_EQ(kept["ampd_steps_applied_total"], 8);
}

TEST_F(ControllerScheduleTest, TheSelectorChoosesAmongDevices) {
  StopDaemon();
  std::vector<v1::Device> cpus(3);
  for (int i = 0; i < 3; ++i) {
    cpus[i].set_id(absl::StrCat("cpu-", i));
    cpus[i].set_kind(v1::Device::CPU);
    cpus[i].set_name(i == 1 ? "large box" : "box");
    cpus[i].set_memory_total_bytes((i + 1) * kGiB);
  }
  StartDaemonOn(std::move(cpus));
  CreateJobParams named = With(1), roomy = With(1), both = With(1);
  named.spec.mutable_resources()->mutable_selector()->add_words("LARGE");
  roomy.spec.mutable_resources()->mutable_selector()->set_min_memory_bytes(3 * kGiB);
  *both.spec.mutable_resources()->mutable_selector() = roomy.spec.resources().selector();
  both.spec.mutable_resources()->mutable_selector()->add_words("large");
  EXPECT_THAT(DevicesOf(Submit(std::move(named))), ElementsAre("cpu-1"));
  EXPECT_THAT(DevicesOf(Submit(std::move(roomy))), ElementsAre("cpu-2"));
  EXPECT_EQ(Get(Submit(std::move(both)))->queue_message(), "it needs 1 device; 0 can run it");
  EXPECT_THAT(DevicesOf(Submit(With(1))), ElementsAre("cpu-0"));
}

TEST_F(ControllerScheduleTest, TheSelectorChooses) {
  CreateJobParams params = With(1);
  params.spec.mutable_resources()->mutable_selector()->set_kind(v1::Device::CUDA);
  const std::string id = Submit(std::move(params));
  EXPECT_EQ(Get(id)->queue_message(), "it needs 1 device; 0 can run it");
  EXPECT_THAT(Get(id)->devices(), IsEmpty());
}

}  // namespace
}  // namespace ampd
