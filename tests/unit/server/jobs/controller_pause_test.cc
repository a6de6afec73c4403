// Pausing, resuming and stopping jobs for others.
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kQueued = v1::Job::QUEUED;
constexpr auto kStarting = v1::Job::STARTING;
constexpr auto kRunning = v1::Job::RUNNING;
constexpr auto kPreempting = v1::Job::PREEMPTING;
constexpr auto kPaused = v1::Job::PAUSED;

class ControllerPauseTest : public ControllerTest {
 protected:
  absl::StatusOr<v1::Job> Pause(const std::string& id) {
    return Await<v1::Job>([&](auto done) { controller_->PauseJob(id, std::move(done)); });
  }
  absl::StatusOr<v1::Job> Resume(const std::string& id) {
    return Await<v1::Job>([&](auto done) { controller_->ResumeJob(id, std::move(done)); });
  }
  bool Preempt(const std::string& id, const std::string& for_job) {
    return *Await<bool>([&](auto done) { controller_->PreemptJob(id, for_job, std::move(done)); });
  }
  // One for which a job of no priority of its own stops.
  std::string SubmitUrgent(int priority = 1) {
    CreateJobParams params = Params();
    params.spec.mutable_resources()->set_priority(priority);
    return Submit(std::move(params));
  }
  void SetPriority(const std::string& id, int priority) {
    v1::UpdateJobRequest request;
    request.set_job_id(id);
    request.set_priority(priority);
    EXPECT_TRUE(Await<v1::Job>([&](auto done) { controller_->UpdateJob(request, std::move(done)); }).ok());
  }
  void SendCheckpoint(const std::shared_ptr<FakeConnection>& connection, uint64_t number, int64_t step) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::CheckpointSaved& saved = *message.mutable_event()->mutable_event()->mutable_checkpoint();
    saved.set_step(step);
    saved.set_checkpoint(absl::StrCat("step-", step));
    controller_->WorkerMessage(connection, message);
  }
  static bool WaitForCommand(const std::shared_ptr<FakeConnection>& connection, v1::DaemonCommand::Kind kind) {
    return connection->WaitUntil([kind](const auto& messages) {
      return std::any_of(messages.begin(), messages.end(),
                         [kind](const auto& m) { return m.command().kind() == kind; });
    });
  }
  int Commands(const std::shared_ptr<FakeConnection>& connection, v1::DaemonCommand::Kind kind) {
    Settle();
    int64_t count = 0;
    connection->WaitUntil([&](const auto& messages) {
      count =
          std::count_if(messages.begin(), messages.end(), [kind](const auto& m) { return m.command().kind() == kind; });
      return true;
    });
    return static_cast<int>(count);
  }
};

TEST_F(ControllerPauseTest, AQueuedJobKeepsItsPlace) {
  const std::string running = Submit();
  const std::string first = Submit();
  const std::string second = Submit();
  auto worker = AttachLaunched(0);
  const auto paused = Pause(first);
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_EQ(paused->state(), kPaused);
  EXPECT_EQ(paused->pause_reason(), v1::Job::REQUESTED);
  EXPECT_EQ(Get(second)->queue_position(), 1);
  EXPECT_EQ(Pause(first)->state(), kPaused) << "as it is";
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  EndWorker(worker, 0);
  EXPECT_EQ(launcher_.Wait(1).request.job_id, second) << "a paused job does not start";
  const std::string third = Submit();
  const auto resumed = Resume(first);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->state(), kQueued);
  EXPECT_EQ(resumed->pause_reason(), v1::Job::PAUSE_REASON_UNSPECIFIED);
  EXPECT_EQ(resumed->queue_position(), 1) << "ahead of those that came later";
  EXPECT_EQ(Get(third)->queue_position(), 2);
  EXPECT_THAT(States(first), ElementsAre(kQueued, kPaused, kQueued));
}

TEST_F(ControllerPauseTest, ARunningJobStopsAndGivesItsDeviceBack) {
  const std::string id = Submit();
  const std::string other = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  const auto asked = Pause(id);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->state(), kPreempting);
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_EQ(Resume(id).status().code(), absl::StatusCode::kFailedPrecondition);
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  EXPECT_FALSE(launcher_.WasKilled(0)) << "it may take its time";
  SendCheckpoint(worker, 1, 7);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), kPaused);
  EXPECT_EQ(job.pause_reason(), v1::Job::REQUESTED);
  EXPECT_TRUE(job.devices().empty());
  EXPECT_EQ(job.failures(), 0u);
  EndWorker(worker, 0);
  EXPECT_EQ(launcher_.Wait(1).request.job_id, other);
  auto second = AttachLaunched(1);
  EXPECT_EQ(Resume(id)->state(), kQueued);
  SendFinished(second, v1::WorkerFinished::SUCCEEDED, 0);
  EndWorker(second, 1);
  EXPECT_EQ(AttachLaunched(2)->WaitForWelcome().last_checkpoint(), "step-7");
  EXPECT_THAT(States(id),
              ElementsAre(kQueued, kStarting, kRunning, kPreempting, kPaused, kQueued, kStarting, kRunning));
  ExpectGapFree(id);
}

TEST_F(ControllerPauseTest, APauseOutlivesTheDaemon) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  const std::string key = worker->WaitForWelcome().session_key();
  EXPECT_EQ(Pause(id)->state(), kPreempting);
  RestartDaemon();
  EXPECT_EQ(Get(id)->state(), v1::Job::RECOVERING);
  auto again = Attach(Hello(id, 1, key, launcher_.Wait(0).id.pid));
  EXPECT_TRUE(again->WaitForStop());
  WaitFor(id, kPreempting);
  SendFinished(again, v1::WorkerFinished::STOPPED, 0);
  WaitFor(id, kPaused);
  EndWorker(again, 0);
  RestartDaemon();
  Settle();
  EXPECT_EQ(Get(id)->state(), kPaused);
  EXPECT_EQ(launcher_.launches(), 1u);
  EXPECT_TRUE(Resume(id).ok());
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerPauseTest, AWorkerLostWithTheDaemonLeavesTheJobPaused) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  Pause(id).IgnoreError();
  StopDaemon();
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon();
  const v1::Job job = WaitFor(id, kPaused);
  EXPECT_EQ(job.pause_reason(), v1::Job::REQUESTED);
  EXPECT_THAT(LastEvent(id).state_change().reason(), HasSubstr("lost while the daemon was away"));
}

TEST_F(ControllerPauseTest, BeforeTheWorkerAttachedAndWhileAFailureWaits) {
  const std::string id = Submit();
  launcher_.Wait(0);
  Settle();
  EXPECT_EQ(Pause(id)->pause_reason(), v1::Job::REQUESTED);
  EXPECT_TRUE(launcher_.WasKilled(0)) << "a worker that never attached has nothing to save";
  WaitFor(id, kPaused);
  EXPECT_EQ(Resume(id)->state(), kStarting);
  auto worker = AttachLaunched(1);
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::INTERNAL);
  WaitFor(id, v1::Job::RETRYING);
  EndWorker(worker, 1);
  EXPECT_EQ(Pause(id)->state(), kPaused);
  Advance(absl::Minutes(5));
  EXPECT_EQ(launcher_.launches(), 2u);
  EXPECT_EQ(Get(id)->failures(), 1u);
}

TEST_F(ControllerPauseTest, AFailureWhileStoppingIsCountedAndTheJobPaused) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  Pause(id).IgnoreError();
  SendFinished(worker, v1::WorkerFinished::FAILED, 0, v1::Failure::INTERNAL);
  const v1::Job job = WaitFor(id, kPaused);
  EXPECT_EQ(job.failures(), 1u);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, kPreempting, v1::Job::RETRYING, kPaused));
  EndWorker(worker, 0);
}

TEST_F(ControllerPauseTest, WhatCannotBePaused) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_EQ(Resume(id).status().code(), absl::StatusCode::kFailedPrecondition);
  Cancel(id).IgnoreError();
  EXPECT_EQ(Pause(id).status().code(), absl::StatusCode::kFailedPrecondition);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  WaitFor(id, v1::Job::CANCELLED);
  EndWorker(worker, 0);
  Settle();
  const absl::Status ended = Pause(id).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("is CANCELLED"));
  EXPECT_EQ(Pause("zzzz").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControllerPauseTest, CancellingAPausedJobEndsIt) {
  Submit();
  const std::string id = Submit();
  Pause(id).IgnoreError();
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLED);
  EXPECT_EQ(Get(id)->pause_reason(), v1::Job::PAUSE_REASON_UNSPECIFIED);
}

TEST_F(ControllerPauseTest, APreemptedJobStopsOnceItHasACheckpoint) {
  const std::string id = Submit();
  const std::string other = SubmitUrgent();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, other));
  EXPECT_FALSE(Preempt(id, other)) << "once is enough";
  EXPECT_TRUE(WaitForCommand(worker, v1::DaemonCommand::CHECKPOINT));
  WaitFor(id, kPreempting);
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  SendCheckpoint(worker, 1, 5);
  EXPECT_TRUE(worker->WaitForStop());
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  EXPECT_FALSE(launcher_.WasKilled(0));
  EXPECT_EQ(Get(id)->state(), kPreempting) << "the first checkpoint ended the first grace";
  SendCheckpoint(worker, 2, 6);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 2);
  const v1::Job job = WaitFor(id, kQueued);
  EXPECT_EQ(job.preemptions(), 1u);
  EXPECT_EQ(job.failures(), 0u);
  EXPECT_THAT(LastEvent(id).state_change().reason(), HasSubstr(other));
  EndWorker(worker, 0);
}

TEST_F(ControllerPauseTest, APreemptedJobIsLeftRunningWhereNobodyWaitsForItAnyMore) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(100);
  const std::string id = Submit(std::move(params));
  const std::string other = SubmitUrgent(), next = SubmitUrgent();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, other));
  Advance(absl::Seconds(30));
  SendHeartbeat(worker);
  EXPECT_EQ(Cancel(other)->state(), v1::Job::CANCELLED);
  SendCheckpoint(worker, 1, 5);
  WaitFor(id, kRunning);
  const std::string why = absl::StrCat("left running: job ", other, " waits no more");
  const std::vector<v1::JobEvent> events = Events(id);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(),
                          [&](const v1::JobEvent& event) { return event.state_change().reason() == why; }));
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  EXPECT_EQ(Get(id)->preemptions(), 0u);
  // It may be asked for another job at once, which has a grace of its own.
  EXPECT_TRUE(Preempt(id, next));
  Advance(absl::Seconds(59));
  SendHeartbeat(worker);
  EXPECT_EQ(Get(id)->state(), kPreempting);
  EXPECT_EQ(Cancel(next)->state(), v1::Job::CANCELLED);
  SendCheckpoint(worker, 2, 6);
  WaitFor(id, kRunning);
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  // Its limit was not forgotten.
  Advance(absl::Seconds(11));
  EXPECT_TRUE(worker->WaitForStop());
}

struct PriorityCase {
  const char* name;
  // While the checkpoint is written.
  int victim;
  int other;
  bool stops;
};

class ControllerPreemptPriorityTest : public ControllerPauseTest, public ::testing::WithParamInterface<PriorityCase> {};

TEST_P(ControllerPreemptPriorityTest, APreemptedJobStopsForOneThatIsStillBeforeIt) {
  const std::string id = SubmitUrgent(5);
  const std::string other = SubmitUrgent(7);
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, other));
  WaitFor(id, kPreempting);
  SetPriority(id, GetParam().victim);
  SetPriority(other, GetParam().other);
  SendCheckpoint(worker, 1, 5);
  if (GetParam().stops) {
    EXPECT_TRUE(worker->WaitForStop());
    return;
  }
  WaitFor(id, kRunning);
  const std::string why = absl::StrCat("left running: job ", other, " comes before it no more");
  const std::vector<v1::JobEvent> events = Events(id);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(),
                          [&](const v1::JobEvent& event) { return event.state_change().reason() == why; }));
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  EXPECT_EQ(Get(other)->state(), kQueued);
  EXPECT_TRUE(Preempt(id, other)) << "it may be asked again at once";
}

INSTANTIATE_TEST_SUITE_P(Table, ControllerPreemptPriorityTest,
                         ::testing::Values(PriorityCase{"AsTheyWere", 5, 7, true},
                                           PriorityCase{"TheOtherIsLower", 5, 4, false},
                                           PriorityCase{"TheOtherIsLowerAndEqual", 5, 5, false},
                                           PriorityCase{"TheVictimIsHigher", 8, 7, false},
                                           PriorityCase{"BothAreHigher", 8, 9, true}),
                         [](const auto& info) { return info.param.name; });

// Two jobs that are to stop for a gang of two.
class ControllerGangPreemptTest : public ControllerPauseTest {
 protected:
  void SetUp() override {
    ControllerPauseTest::SetUp();
    RestartDaemon(2);
    for (std::string& id : ids_) id = Submit();
    CreateJobParams params = Params();
    params.spec.mutable_resources()->set_priority(5);
    params.spec.mutable_resources()->set_gpus(2);
    gang_ = Submit(std::move(params));
    for (size_t i = 0; i < 2; ++i) {
      workers_[i] = AttachLaunched(i);
      WaitFor(ids_[i], kRunning);
    }
    for (const std::string& id : ids_) EXPECT_TRUE(Preempt(id, gang_));
  }

  std::string ids_[2];
  std::string gang_;
  std::shared_ptr<FakeConnection> workers_[2];
};

TEST_F(ControllerGangPreemptTest, NobodyStopsBeforeAllHaveTheirCheckpoints) {
  SendCheckpoint(workers_[0], 1, 5);
  Advance(absl::Seconds(30));
  for (const auto& worker : workers_) SendHeartbeat(worker);
  EXPECT_EQ(Get(ids_[0])->state(), kPreempting);
  EXPECT_EQ(Commands(workers_[0], v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  SendCheckpoint(workers_[1], 1, 5);
  for (const auto& worker : workers_) EXPECT_TRUE(worker->WaitForStop());
}

TEST_F(ControllerGangPreemptTest, AllAreLeftRunningWhereOneHasNoCheckpointInTime) {
  SendCheckpoint(workers_[0], 1, 5);
  Advance(absl::Seconds(59));
  for (const auto& worker : workers_) SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  for (const std::string& id : ids_) WaitFor(id, kRunning);
  for (const auto& worker : workers_) EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
  const std::vector<v1::JobEvent> events = Events(ids_[0]);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [&](const v1::JobEvent& event) {
    return event.state_change().reason() == absl::StrCat("left running: job ", ids_[1], ", which was to stop for job ",
                                                         gang_, " as well, wrote no checkpoint in time");
  }));
  // The one that could may be asked again at once, the other later.
  EXPECT_TRUE(Preempt(ids_[0], gang_));
  EXPECT_FALSE(Preempt(ids_[1], gang_));
}

TEST_F(ControllerGangPreemptTest, AllAreLeftRunningWhereOneIsNotBehindItAnyMore) {
  SendCheckpoint(workers_[0], 1, 5);
  SetPriority(ids_[1], 9);
  SendCheckpoint(workers_[1], 1, 5);
  for (const std::string& id : ids_) WaitFor(id, kRunning);
  for (const auto& worker : workers_) EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0);
}

TEST_F(ControllerGangPreemptTest, WhoIsReadyStopsThoughTheOtherHasEnded) {
  SendCheckpoint(workers_[0], 1, 5);
  SendFinished(workers_[1], v1::WorkerFinished::SUCCEEDED, 0);
  WaitFor(ids_[1], v1::Job::SUCCEEDED);
  Advance(absl::Seconds(59));
  SendHeartbeat(workers_[0]);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(workers_[0]->WaitForStop());
}

// Asked later than the others, for what they left went to another job.
TEST_F(ControllerGangPreemptTest, WhoIsReadyWaitsForOneThatWasAskedLaterNoLongerThanItIsThere) {
  SendCheckpoint(workers_[0], 1, 5);
  ASSERT_TRUE(Pause(ids_[1]).ok());
  SendFinished(workers_[1], v1::WorkerFinished::STOPPED, 0);
  EndWorker(workers_[1], 1);
  const std::string third = SubmitUrgent(9);
  auto worker = AttachLaunched(2);
  WaitFor(third, kRunning);
  SetPriority(third, 0);
  Advance(absl::Seconds(50));
  for (const auto& w : {workers_[0], worker}) SendHeartbeat(w);
  EXPECT_TRUE(Preempt(third, gang_));
  Advance(absl::Seconds(10));
  for (const auto& w : {workers_[0], worker}) SendHeartbeat(w);
  EXPECT_EQ(Get(ids_[0])->state(), kPreempting) << "it waits for the third";
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  WaitFor(third, v1::Job::SUCCEEDED);
  Advance(absl::Seconds(59));
  SendHeartbeat(workers_[0]);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(workers_[0]->WaitForStop());
}

TEST_F(ControllerPauseTest, WhoWaitsForAPreemptedJobIsToldWhenItStarts) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(10000);
  params.spec.mutable_resources()->set_preemptible(true);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  for (absl::Duration ran; ran < scheduling_.min_run; ran += absl::Seconds(30)) {
    Advance(absl::Seconds(30));
    SendHeartbeat(worker);
  }
  const auto job = Create([&] {
    CreateJobParams urgent = Params();
    urgent.spec.mutable_resources()->set_priority(5);
    return urgent;
  }());
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(Get(id)->state(), kPreempting);
  for (const v1::Job& told : {*job, *Get(job->id())}) {
    EXPECT_EQ(told.queue_reason(), v1::Job::PREEMPTION);
    // Its grace.
    EXPECT_EQ(told.estimated_start_time().seconds() - absl::ToUnixSeconds(clock_.Now()), 60);
  }
}

TEST_F(ControllerPauseTest, APreemptedJobThatDoesNotStopIsKilledAndGoesOnFromItsCheckpoint) {
  const std::string id = Submit();
  const std::string other = SubmitUrgent();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, other));
  Advance(absl::Seconds(30));
  SendCheckpoint(worker, 1, 5);
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_EQ(Cancel(other)->state(), v1::Job::CANCELLED);
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  SendHeartbeat(worker);
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  EXPECT_EQ(AttachLaunched(1)->WaitForWelcome().last_checkpoint(), "step-5");
  const v1::Job job = WaitFor(id, kRunning);
  EXPECT_EQ(job.preemptions(), 1u);
  EXPECT_EQ(job.failures(), 0u);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, kPreempting, kQueued, kStarting, kRunning));
}

TEST_F(ControllerPauseTest, APauseGivesAPreemptedJobNoMoreTime) {
  const std::string id = Submit();
  const std::string other = SubmitUrgent();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, other));
  SendCheckpoint(worker, 1, 5);
  EXPECT_TRUE(worker->WaitForStop());
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  EXPECT_TRUE(Pause(id).ok());
  SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  WaitFor(id, kPaused);
}

TEST_F(ControllerPauseTest, AMeasurementIsStoppedAtOnceForItWritesNoCheckpoint) {
  CreateJobParams params = Params();
  params.spec.mutable_bench()->add_batch_sizes(8);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, "other"));
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT), 0);
  EXPECT_EQ(Get(id)->state(), kPreempting);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 0);
  EXPECT_EQ(WaitFor(id, kQueued).preemptions(), 1u);
  EndWorker(worker, 0);
}

TEST_F(ControllerPauseTest, LimitsHoldWhileAJobStopsForLater) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(100);
  size_t launch = 0;
  for (const bool pause : {true, false}) {
    const std::string id = Submit(params);
    auto worker = AttachLaunched(launch);
    WaitFor(id, kRunning);
    Advance(absl::Seconds(50));
    SendHeartbeat(worker);
    EXPECT_TRUE(pause ? Pause(id).ok() : Preempt(id, "other"));
    Advance(absl::Seconds(49));
    SendHeartbeat(worker);
    EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), pause ? 1 : 0);
    Advance(absl::Seconds(1));
    EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), pause ? 2 : 1);
    SendHeartbeat(worker);
    Advance(absl::Seconds(59));
    SendHeartbeat(worker);
    EXPECT_FALSE(launcher_.WasKilled(launch));
    Advance(absl::Seconds(1));
    EXPECT_TRUE(launcher_.WasKilled(launch));
    controller_->WorkerDisconnected(worker);
    const v1::Job job = WaitFor(id, v1::Job::FAILED);
    EXPECT_EQ(job.failure().class_(), v1::Failure::LIMIT);
    EXPECT_THAT(job.failure().message(), HasSubstr("limits.max_run_seconds"));
    ++launch;
    Settle();
  }
}

TEST_F(ControllerPauseTest, AJobWithoutACheckpointInTimeIsLeftRunning) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(1000);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_TRUE(Preempt(id, "other"));
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  WaitFor(id, kRunning);
  EXPECT_FALSE(launcher_.WasKilled(0));
  SendCheckpoint(worker, 1, 9);
  EXPECT_EQ(Commands(worker, v1::DaemonCommand::CHECKPOINT_AND_STOP), 0) << "too late: it runs on";
  EXPECT_FALSE(Preempt(id, "other")) << "not at once again";
  EXPECT_EQ(Get(id)->preemptions(), 0u);
  for (int i = 0; i < 12; ++i) {
    Advance(absl::Seconds(50));
    SendHeartbeat(worker);
  }
  EXPECT_TRUE(Preempt(id, "other"));
  WaitFor(id, kPreempting);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, kPreempting, kRunning, kPreempting));
  // The limit on its run time was not forgotten.
  Advance(absl::Seconds(55));
  SendHeartbeat(worker);
  Advance(absl::Seconds(5));
  SendHeartbeat(worker);
  for (int i = 0; i < 6; ++i) {
    Advance(absl::Seconds(50));
    SendHeartbeat(worker);
  }
  EXPECT_TRUE(worker->WaitForStop());
}

TEST_F(ControllerPauseTest, ACommandLostWithTheConnectionIsSentAgain) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  const std::string key = worker->WaitForWelcome().session_key();
  EXPECT_TRUE(Preempt(id, "other"));
  controller_->WorkerDisconnected(worker);
  auto again = Attach(Hello(id, 1, key));
  EXPECT_TRUE(WaitForCommand(again, v1::DaemonCommand::CHECKPOINT));
}

class ControllerCheckpointTest : public ControllerPauseTest {
 protected:
  std::shared_future<absl::StatusOr<v1::Checkpoint>> Ask(const std::string& id) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Checkpoint>>>();
    controller_->CheckpointJob(id, [promise](auto result) { promise->set_value(std::move(result)); });
    return promise->get_future().share();
  }
  static bool Answered(const std::shared_future<absl::StatusOr<v1::Checkpoint>>& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // One that the worker began `age` ago.
  void SendSaved(const std::shared_ptr<FakeConnection>& connection, uint64_t number, int64_t step, absl::Duration age) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::JobEvent& event = *message.mutable_event()->mutable_event();
    event.mutable_time()->set_seconds(absl::ToUnixSeconds(clock_.Now()));
    event.mutable_checkpoint()->set_step(step);
    event.mutable_checkpoint()->set_checkpoint(absl::StrCat("step-", step));
    event.mutable_checkpoint()->set_write_seconds(absl::ToDoubleSeconds(age));
    controller_->WorkerMessage(connection, message);
  }
};

TEST_F(ControllerCheckpointTest, AnswersWithOneBegunAfterTheCall) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  const auto answer = Ask(id);
  EXPECT_TRUE(WaitForCommand(worker, v1::DaemonCommand::CHECKPOINT));
  SendSaved(worker, 1, 4, absl::Seconds(3));
  Settle();
  EXPECT_FALSE(Answered(answer)) << "begun before the call";
  SendSaved(worker, 2, 5, absl::ZeroDuration());
  ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
  ASSERT_TRUE(answer.get().ok()) << answer.get().status();
  EXPECT_EQ(answer.get()->name(), "step-5");
  EXPECT_EQ(Get(id)->summary().checkpoint(), "step-5") << "durable";
  EXPECT_EQ(Get(id)->state(), kRunning);
}

TEST_F(ControllerCheckpointTest, WhoHasGoneAwayTakesNoPlace) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  std::vector<std::shared_future<absl::StatusOr<v1::Checkpoint>>> answers;
  for (int i = 0; i < 63; ++i) answers.push_back(Ask(id));
  auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Checkpoint>>>();
  auto left = promise->get_future();
  const std::function<void()> leave =
      controller_->CheckpointJob(id, [promise](auto result) { promise->set_value(std::move(result)); });
  EXPECT_EQ(Ask(id).get().status().code(), absl::StatusCode::kResourceExhausted);
  leave();
  EXPECT_EQ(left.get().status().code(), absl::StatusCode::kCancelled);
  leave();
  answers.push_back(Ask(id));
  EXPECT_EQ(Ask(id).get().status().code(), absl::StatusCode::kResourceExhausted);
  SendSaved(worker, 1, 5, absl::ZeroDuration());
  for (const auto& answer : answers) EXPECT_TRUE(answer.get().ok()) << answer.get().status();
}

TEST_F(ControllerCheckpointTest, TheSecondIsNewerWhateverTheClocksSay) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  const auto answer = Ask(id);
  Settle();
  SendSaved(worker, 1, 4, absl::Hours(3));
  SendSaved(worker, 2, 5, absl::Hours(3));
  ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(answer.get()->name(), "step-5");
}

TEST_F(ControllerCheckpointTest, AJobThatEndsAnswersWithItsLastOrAnError) {
  const std::string first = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(first, kRunning);
  const auto last = Ask(first);
  Settle();
  SendSaved(worker, 1, 4, absl::Seconds(3));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  ASSERT_EQ(last.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(last.get()->name(), "step-4") << "nothing newer can be";
  EndWorker(worker, 0);
  EXPECT_EQ(Ask(first).get().status().code(), absl::StatusCode::kFailedPrecondition);

  const std::string second = Submit();
  const auto queued = Ask(second);
  worker = AttachLaunched(1);
  WaitFor(second, kRunning);
  const auto none = Ask(second);
  Settle();
  EndWorker(worker, 1, {-1, 11});
  ASSERT_EQ(none.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(none.get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(queued.get().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ampd
