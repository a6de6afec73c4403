#include "server/launch/worker_contract.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ControllerFailureTest : public ControllerTest {
 protected:
  // Creates jobs until the store has no room for another of 30,000 bytes, nor for a smaller one.
  void FillStore() {
    for (const size_t bytes : {30000, 1000}) {
      CreateJobParams params = Params();
      params.spec.mutable_labels()->insert({"x", std::string(bytes, 'x')});
      absl::Status full;
      for (int i = 0; i < 40 && full.ok(); ++i) full = Create(params).status();
      EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    }
  }
};

TEST_F(ControllerFailureTest, ACrashedWorkerIsTriedAgainAfterAPause) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EndWorker(worker, 0, {-1, 11});
  const v1::Job retrying = WaitFor(id, v1::Job::RETRYING);
  EXPECT_EQ(retrying.failures(), 1u);
  EXPECT_EQ(retrying.failure().class_(), v1::Failure::WORKER_CRASH);
  EXPECT_THAT(retrying.failure().message(), HasSubstr("SIGSEGV"));
  Advance(absl::Milliseconds(999));
  EXPECT_EQ(launcher_.launches(), 1u);
  Advance(absl::Milliseconds(1));
  auto second = AttachLaunched(1);
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(second->WaitForWelcome().last_reported_step(), 1);
  EXPECT_EQ(second->WaitForWelcome().acknowledged_number(), 0u);
  EXPECT_FALSE(WaitFor(id, v1::Job::RUNNING).has_failure());
  // Numbers count anew in each attempt.
  SendStep(second, 1, 2);
  SendFinished(second, v1::WorkerFinished::SUCCEEDED, 1);
  WaitFor(id, v1::Job::SUCCEEDED);
  ExpectGapFree(id);
  EXPECT_THAT(States(id), ElementsAre(v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::RETRYING,
                                      v1::Job::QUEUED, v1::Job::STARTING, v1::Job::RUNNING, v1::Job::SUCCEEDED));
}

TEST_F(ControllerFailureTest, AttemptsAreBounded) {
  const std::string id = Submit();
  const absl::Duration pauses[] = {absl::Seconds(1), absl::Seconds(2)};
  for (size_t attempt = 0; attempt < 3; ++attempt) {
    auto worker = AttachLaunched(attempt);
    SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::OUT_OF_MEMORY);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, attempt);
    if (attempt < 2) {
      Settle();
      Advance(pauses[attempt]);
    }
  }
  const v1::Job job = WaitFor(id, v1::Job::FAILED);
  EXPECT_EQ(job.failures(), 3u);
  EXPECT_EQ(job.failure().class_(), v1::Failure::OUT_OF_MEMORY);
  EXPECT_EQ(LastEvent(id).state_change().failure().message(), "as the worker says");
}

TEST_F(ControllerFailureTest, WhatCannotPassFailsAtOnce) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::DATA);
  EXPECT_TRUE(worker->WaitForGoodbye());
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::FAILED);
  EXPECT_EQ(job.failure().class_(), v1::Failure::DATA);
  EndWorker(worker, 0);
  Advance(absl::Hours(1));
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerFailureTest, TheNextAttemptWaitsForTheProcessOfTheLast) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::INTERNAL);
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(30));
  EXPECT_EQ(Get(id)->state(), v1::Job::QUEUED);
  EXPECT_EQ(launcher_.launches(), 1u);
  // It does not exit by itself.
  Advance(absl::Seconds(30));
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  launcher_.Wait(1);
}

TEST_F(ControllerFailureTest, AFinishedWorkerThatDiesBeforeItsGoodbyeHasFinished) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 1);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EndWorker(worker, 0, {-1, 9});
  WaitFor(id, v1::Job::SUCCEEDED);
  Settle();
  EXPECT_EQ(Get(id)->failures(), 0u);
}

TEST_F(ControllerFailureTest, WhatAWorkerSentBeforeItsExitWasNoticedCounts) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  launcher_.End(launcher_.Wait(0).id, {0, 0});
  Settle();
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING) << "its stream has not ended";
  SendStep(worker, 1, 1);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  controller_->WorkerDisconnected(worker);
  WaitFor(id, v1::Job::SUCCEEDED);
}

TEST_F(ControllerFailureTest, AStreamThatOutlivesItsProcessIsNotWaitedForLong) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  launcher_.End(launcher_.Wait(0).id, {7, 0});
  Settle();
  Advance(absl::Seconds(5));
  EXPECT_THAT(WaitFor(id, v1::Job::RETRYING).failure().message(), HasSubstr("status 7"));
  EXPECT_TRUE(worker->closed());
}

TEST_F(ControllerFailureTest, ASilentWorkerIsKilled) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(40));
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  const v1::Job job = WaitFor(id, v1::Job::RETRYING);
  EXPECT_EQ(job.failure().class_(), v1::Failure::WORKER_CRASH);
  EXPECT_THAT(job.failure().message(), HasSubstr("no sign of life"));
}

TEST_F(ControllerFailureTest, AWorkerToWhomNobodyListensIsNotKilled) {
  Submit();
  auto worker = AttachLaunched(0);
  worker->SetListens(false);
  for (int i = 0; i < 5; ++i) Advance(absl::Minutes(2));
  EXPECT_FALSE(launcher_.WasKilled(0));
  // From here on its silence counts.
  worker->SetListens(true);
  Advance(absl::Seconds(58));
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(60));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
}

TEST_F(ControllerFailureTest, WhatADaemonDidNotHearWhileItStoodStillIsNoSilence) {
  Submit();
  auto worker = AttachLaunched(0);
  Advance(absl::Hours(1));
  SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(58));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
}

TEST_F(ControllerFailureTest, AWorkerThatNeverAttachesIsKilled) {
  const std::string id = Submit();
  launcher_.Wait(0);
  Settle();
  Advance(absl::Seconds(60));
  EXPECT_TRUE(launcher_.WasKilled(0));
  EXPECT_THAT(WaitFor(id, v1::Job::RETRYING).failure().message(), HasSubstr("did not attach"));
}

TEST_F(ControllerFailureTest, AWorkerThatNeverReachesTheDaemonIsNotTriedForEver) {
  const std::string id = Submit();
  for (size_t n = 0; n < 3; ++n) {
    launcher_.End(launcher_.Wait(n).id, {kWorkerOrphaned, 0});
    launcher_.Wait(n + 1);
    EXPECT_EQ(Get(id)->failures(), 0u);
  }
  Settle();
  launcher_.End(launcher_.Wait(3).id, {kWorkerOrphaned, 0});
  EXPECT_EQ(WaitFor(id, v1::Job::RETRYING).failures(), 1u);
}

TEST_F(ControllerFailureTest, AWorkerOutOfMemoryIsTriedAgain) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  EndWorker(worker, 0, {kWorkerOutOfMemory, 0});
  EXPECT_EQ(WaitFor(id, v1::Job::RETRYING).failure().class_(), v1::Failure::OUT_OF_MEMORY);
}

TEST_F(ControllerFailureTest, AScheduleBeyondTheEpochsIsWarnedOfOnce) {
  CreateJobParams params = Params();
  params.spec.add_phases();
  params.spec.mutable_optimizer()->mutable_schedule()->mutable_cosine()->set_warmup_steps(500);
  const auto warnings = [&](bool by_steps) {
    CreateJobParams own = params;
    if (by_steps) own.spec.mutable_train()->set_steps(100);
    const std::string id = Submit(std::move(own));
    auto worker = AttachLaunched(by_steps ? 1 : 0);
    for (uint64_t step = 1; step <= 2; ++step) {
      v1::WorkerMessage message;
      message.mutable_event()->set_number(step);
      v1::StepReport& report = *message.mutable_event()->mutable_event()->mutable_step();
      report.set_first_step(static_cast<int64_t>(step));
      report.set_last_step(static_cast<int64_t>(step));
      report.set_total_steps(100);
      controller_->WorkerMessage(worker, message);
    }
    SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 2);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, by_steps ? 1 : 0);
    WaitFor(id, v1::Job::SUCCEEDED);
    ExpectGapFree(id);
    std::vector<std::string> logs;
    for (const v1::JobEvent& event : Events(id)) {
      if (event.log().severity() == v1::LogLine::WARNING) logs.push_back(event.log().text());
    }
    return logs;
  };
  EXPECT_THAT(warnings(false), ElementsAre(::testing::StartsWith("optimizer.schedule.cosine.warmup_steps: is 500, and "
                                                                 "the job takes 100 steps")));
  EXPECT_THAT(warnings(true), ::testing::IsEmpty()) << "its submit told";
}

// Two devices of so many bytes each: which state a job comes to that plans 10 GiB and runs out of memory.
TEST_F(ControllerFailureTest, WhatNoDeviceHasTheMemoryForIsNotTriedAgain) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  size_t launched = 0;
  const auto failed = [&](int64_t first, int64_t second, const std::string& device) {
    StopDaemon();
    std::vector<v1::Device> cpus(2);
    for (size_t i = 0; i < 2; ++i) {
      cpus[i].set_id(absl::StrCat("cpu-", i));
      cpus[i].set_kind(v1::Device::CPU);
      cpus[i].set_threads(2);
    }
    if (first > 0) cpus[0].set_memory_total_bytes(first);
    if (second > 0) cpus[1].set_memory_total_bytes(second);
    StartDaemonOn(std::move(cpus));
    CreateJobParams params = Params();
    params.spec.mutable_resources()->set_device(device);
    params.plan.set_parameter_bytes(4 * kGiB);
    params.plan.set_activation_bytes(6 * kGiB);
    const std::string id = Submit(std::move(params));
    auto worker = AttachLaunched(launched);
    SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::OUT_OF_MEMORY);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, launched++);
    Settle();
    const v1::Job job = *Get(id);
    EXPECT_EQ(job.failures(), 1u);
    EXPECT_THAT(job.failure().message(), ::testing::StartsWith("as the worker says"));
    if (job.state() != v1::Job::FAILED) {
      EXPECT_TRUE(Cancel(id).ok());
    }
    return job;
  };
  const v1::Job job = failed(8 * kGiB, 9 * kGiB, "");
  EXPECT_EQ(job.state(), v1::Job::FAILED);
  EXPECT_THAT(job.failure().message(), ::testing::HasSubstr("not tried again"));
  // The other may hold it, or it is not known whether it does; unless the job may not go there.
  EXPECT_EQ(failed(8 * kGiB, 11 * kGiB, "").state(), v1::Job::RETRYING);
  EXPECT_EQ(failed(8 * kGiB, 0, "").state(), v1::Job::RETRYING);
  EXPECT_EQ(failed(8 * kGiB, 11 * kGiB, "cpu-0").state(), v1::Job::FAILED);
}

TEST_F(ControllerFailureTest, AWorkerThatCannotBeStartedIsAFailure) {
  launcher_.Refuse(absl::NotFoundError("no such program"));
  const std::string id = Submit();
  const v1::Job job = WaitFor(id, v1::Job::RETRYING);
  EXPECT_EQ(job.failure().class_(), v1::Failure::INTERNAL);
  EXPECT_THAT(job.failure().message(), HasSubstr("no such program"));
  launcher_.Refuse(absl::OkStatus());
  Advance(absl::Seconds(1));
  EXPECT_EQ(launcher_.Wait(0).request.attempt, 2u);
}

TEST_F(ControllerFailureTest, TheRunLimitStopsTheJob) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(100);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  for (int i = 0; i < 3; ++i) {
    Advance(absl::Seconds(33));
    SendHeartbeat(worker);
  }
  WaitFor(id, v1::Job::RUNNING);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  const v1::Job job = WaitFor(id, v1::Job::FAILED);
  EXPECT_EQ(job.failure().class_(), v1::Failure::LIMIT);
  EXPECT_THAT(job.failure().message(), HasSubstr("max_run_seconds"));
}

TEST_F(ControllerFailureTest, TheRunLimitCountsAllAttempts) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(50);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(40));
  EndWorker(worker, 0, {-1, 9});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(1));
  auto second = AttachLaunched(1);
  WaitFor(id, v1::Job::RUNNING);
  Advance(absl::Seconds(10));
  EXPECT_TRUE(second->WaitForStop());
  // It does not stop.
  Advance(absl::Seconds(60));
  EXPECT_TRUE(launcher_.WasKilled(1));
  controller_->WorkerDisconnected(second);
  EXPECT_EQ(WaitFor(id, v1::Job::FAILED).failure().class_(), v1::Failure::LIMIT);
}

TEST_F(ControllerFailureTest, AJobThatSucceedsWhileItIsAskedToStopForItsLimitHasSucceeded) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(10);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(10));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  WaitFor(id, v1::Job::SUCCEEDED);
}

TEST_F(ControllerFailureTest, AFullStoreKeepsNothingHalfAndGoesOnWhenThereIsRoom) {
  StopDaemon();
  StartDaemon(1, /*max_pages=*/64);
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  FillStore();
  // What does not fit is not acknowledged, yet not lost.
  for (uint64_t number = 1; number <= 300; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  Settle();
  const uint64_t before = Get(id)->last_sequence();
  EXPECT_LT(before, 300u);
  store_->ReadInOrder(
      [](const Database& database) { EXPECT_TRUE(const_cast<Database&>(database).SetMaxPages(1 << 20).ok()); });
  Advance(absl::Seconds(1));
  EXPECT_TRUE(worker->WaitForAck(300));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 300);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EXPECT_EQ(WaitFor(id, v1::Job::SUCCEEDED).summary().steps_applied(), 300);
  ExpectGapFree(id);
}

TEST_F(ControllerFailureTest, AWorkerTurnedAwayForAFullStoreIsNotSilent) {
  StopDaemon();
  StartDaemon(1, /*max_pages=*/64);
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const std::string key = worker->WaitForWelcome().session_key();
  FillStore();
  // As many as the daemon holds for a store without room, and what little room the jobs above left.
  for (uint64_t number = 1; number <= 4096; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  Settle();
  ASSERT_LT(Get(id)->last_sequence(), 2000u);
  controller_->WorkerDisconnected(worker);
  for (int i = 0; i < 4; ++i) {
    Advance(absl::Seconds(40));
    EXPECT_EQ(Attach(Hello(id, 1, key))->WaitForClose().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(59));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
}

TEST_F(ControllerFailureTest, TheSpecSaysHowLongToWait) {
  CreateJobParams params = Params();
  params.spec.mutable_retry()->set_backoff_seconds(20);
  params.spec.mutable_retry()->set_max_backoff_seconds(30);
  const std::string id = Submit(std::move(params));
  EndWorker(AttachLaunched(0), 0, {-1, 11});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(19));
  EXPECT_EQ(launcher_.launches(), 1u);
  Advance(absl::Seconds(1));
  EndWorker(AttachLaunched(1), 1, {-1, 11});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(29));
  EXPECT_EQ(launcher_.launches(), 2u);
  Advance(absl::Seconds(1));
  EXPECT_EQ(launcher_.Wait(2).request.attempt, 3u);
}

class ControllerCostTest : public ControllerTest {
 protected:
  // The daemon's devices cost 36 dollars an hour: a cent a second.
  ControllerCostTest() {
    for (v1::DeviceModel& model : device_models_) model.set_usd_per_hour(36);
    RestartDaemon();
  }
  // 100 seconds with a sign of life now and then.
  void Run(const std::shared_ptr<FakeConnection>& worker, absl::Duration time) {
    for (absl::Duration done; done < time; done += absl::Seconds(20)) {
      Advance(absl::Seconds(20));
      SendHeartbeat(worker);
    }
  }
};

TEST_F(ControllerCostTest, AllTimeOnDevicesCosts) {
  const std::string id = Submit();
  launcher_.Wait(0);
  Advance(absl::Seconds(10));
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(100));
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_NEAR(Get(id)->cost_usd(), 1.1, 1e-9) << "starting up included";
  EXPECT_EQ(Get(id)->wasted_usd(), 0);
  const std::string key = worker->WaitForWelcome().session_key();
  StopDaemon();
  clock_.Advance(absl::Seconds(40));
  StartDaemon();
  auto again = Attach(Hello(id, 1, key, launcher_.Wait(0).id.pid));
  Run(again, absl::Seconds(20));
  SendFinished(again, v1::WorkerFinished::SUCCEEDED, 1);
  WaitFor(id, v1::Job::SUCCEEDED);
  EndWorker(again, 0);
  Settle();
  EXPECT_NEAR(Get(id)->cost_usd(), 1.7, 1e-6) << "also while the daemon was away";
}

TEST_F(ControllerCostTest, SkippedAndLostStepsAreWaste) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const auto send = [&](uint64_t number, int64_t first, int64_t last, int64_t applied, int64_t skipped) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::StepReport& report = *message.mutable_event()->mutable_event()->mutable_step();
    report.set_first_step(first);
    report.set_last_step(last);
    report.set_step_seconds(2);
    report.add_phases()->set_steps_applied(applied);
    report.mutable_phases(0)->set_steps_skipped(skipped);
    controller_->WorkerMessage(worker, message);
    EXPECT_TRUE(worker->WaitForAck(number));
  };
  Run(worker, absl::Seconds(40));
  send(1, 1, 20, 17, 3);
  EXPECT_NEAR(Get(id)->wasted_usd(), 0.06, 1e-9);
  v1::WorkerMessage message;
  message.mutable_event()->set_number(2);
  message.mutable_event()->mutable_event()->mutable_rewound()->set_to_step(15);
  controller_->WorkerMessage(worker, message);
  EXPECT_TRUE(worker->WaitForAck(2));
  EXPECT_NEAR(Get(id)->wasted_usd(), 0.16, 1e-9) << "five steps of two seconds more";
  EXPECT_NEAR(Get(id)->cost_usd(), 0.4, 1e-9);
}

TEST_F(ControllerCostTest, StepsThatWereLostWasteAllTheTimeSinceTheirCheckpoint) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const auto send = [&](const std::shared_ptr<FakeConnection>& to, uint64_t number, const auto& fill) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    fill(message.mutable_event()->mutable_event());
    controller_->WorkerMessage(to, message);
    EXPECT_TRUE(to->WaitForAck(number));
  };
  const auto steps = [](int64_t first, int64_t last, double seconds, int64_t applied, int64_t skipped) {
    return [=](v1::JobEvent* event) {
      v1::StepReport& report = *event->mutable_step();
      report.set_first_step(first);
      report.set_last_step(last);
      report.set_step_seconds(seconds);
      report.add_phases()->set_steps_applied(applied);
      report.mutable_phases(0)->set_steps_skipped(skipped);
    };
  };
  const auto checkpoint = [](int64_t step, bool already_written) {
    return [=](v1::JobEvent* event) {
      event->mutable_checkpoint()->set_checkpoint(absl::StrCat("step-", step));
      event->mutable_checkpoint()->set_step(step);
      event->mutable_checkpoint()->set_already_written(already_written);
    };
  };
  const auto rewound = [](int64_t step) {
    return [=](v1::JobEvent* event) { event->mutable_rewound()->set_to_step(step); };
  };
  Run(worker, absl::Seconds(20));
  send(worker, 1, steps(1, 10, 2, 10, 0));
  send(worker, 2, checkpoint(10, false));
  // Steps that became faster at the end, and 4 seconds of skips among them.
  Run(worker, absl::Seconds(60));
  send(worker, 3, steps(11, 20, 4, 19, 1));
  send(worker, 4, steps(21, 30, 0.01, 29, 1));
  EXPECT_NEAR(Get(id)->wasted_usd(), 0.04, 1e-9);
  EndWorker(worker, 0, {-1, 11});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(10));
  worker = AttachLaunched(1);
  // Starting up is not training.
  Run(worker, absl::Seconds(20));
  send(worker, 1, checkpoint(10, true));
  send(worker, 2, rewound(10));
  EXPECT_NEAR(Get(id)->cost_usd(), 1.0, 1e-9);
  EXPECT_NEAR(Get(id)->wasted_usd(), 0.6, 1e-9) << "a minute, of which the skips were wasted already";
  // Back again within the attempt, and once more, to the beginning.
  Run(worker, absl::Seconds(20));
  send(worker, 3, steps(11, 20, 2, 20, 0));
  send(worker, 4, rewound(10));
  EXPECT_NEAR(Get(id)->wasted_usd(), 0.8, 1e-9);
  StopDaemon();
  StartDaemon();
  auto again = Attach(Hello(id, 2, worker->WaitForWelcome().session_key(), launcher_.Wait(1).id.pid));
  Run(again, absl::Seconds(20));
  send(again, 5, steps(11, 20, 2, 20, 0));
  send(again, 6, rewound(0));
  EXPECT_NEAR(Get(id)->cost_usd(), 1.4, 1e-6);
  EXPECT_NEAR(Get(id)->wasted_usd(), 1.4, 1e-6);
}

TEST_F(ControllerCostTest, TheCostLimitStopsTheJobOverAllAttempts) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_cost_usd(1);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(60));
  EndWorker(worker, 0, {-1, 11});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Seconds(1));
  worker = AttachLaunched(1);
  Run(worker, absl::Seconds(20));
  Advance(absl::Seconds(19));
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  const v1::Job job = WaitFor(id, v1::Job::FAILED);
  EXPECT_EQ(job.failure().class_(), v1::Failure::LIMIT);
  EXPECT_THAT(job.failure().message(), HasSubstr("limits.max_cost_usd"));
  EndWorker(worker, 1);
  Settle();
  const auto retried = Await<v1::Job>([&](auto done) { controller_->RetryJob({.job_id = id}, std::move(done)); });
  EXPECT_EQ(retried.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ControllerCostTest, TheCostLimitHoldsWhileTheJobStopsForAnother) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_cost_usd(1);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(60));
  EXPECT_TRUE(*Await<bool>([&](auto done) { controller_->PreemptJob(id, "other", std::move(done)); }));
  Run(worker, absl::Seconds(20));
  EXPECT_FALSE(worker->WasToldToStop()) << "its grace for a checkpoint";
  Run(worker, absl::Seconds(20));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  EXPECT_EQ(WaitFor(id, v1::Job::FAILED).failure().class_(), v1::Failure::LIMIT);
  EndWorker(worker, 0);
}

TEST_F(ControllerCostTest, WithoutAPriceThereIsNoCostAndNoDeviceForALimit) {
  device_models_ = BuiltInDeviceModels();
  RestartDaemon();
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  Run(worker, absl::Seconds(20));
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_FALSE(Get(id)->has_cost_usd());
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EndWorker(worker, 0);
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_cost_usd(1);
  const std::string limited = Submit(std::move(params));
  Settle();
  EXPECT_EQ(Get(limited)->state(), v1::Job::QUEUED);
}

}  // namespace
}  // namespace ampd
