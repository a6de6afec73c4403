#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ControllerRestartTest : public ControllerTest {
 protected:
  // A job whose worker sent events 1..`events` and heard that they are durable.
  void RunJob(uint64_t events) {
    id_ = Submit();
    worker_ = AttachLaunched(0);
    key_ = worker_->WaitForWelcome().session_key();
    for (uint64_t number = 1; number <= events; ++number) SendStep(worker_, number, static_cast<int64_t>(number));
    EXPECT_TRUE(events == 0 || worker_->WaitForAck(events));
    WaitFor(id_, v1::Job::RUNNING);
    Settle();
  }

  // Ends the daemon; the next will find the job as `change` leaves it.
  void RewriteRecord(const std::string& id, const std::function<void(JobRecord&)>& change) {
    StopDaemon();
    Store::Options options;
    options.state_dir = dir_.path();
    store_ = *Store::Open(std::move(options));
    JobWrite write;
    write.record = *store_->Await([&](const Database& database) { return database.FindJob(id); });
    change(write.record);
    EXPECT_TRUE(WriteAndWait(*store_, std::move(write)).ok());
    store_.reset();
  }

  // Of everybody, as the next daemon will count them.
  double UsedDeviceSeconds() {
    const auto counters = store_->Await([](const Database& database) { return database.Counters(); });
    EXPECT_TRUE(counters.ok()) << counters.status();
    double sum = 0;
    for (const auto& [name, value] : *counters) sum += absl::StartsWith(name, "usage_device_seconds/") ? value : 0;
    return sum;
  }

  std::string id_;
  std::string key_;
  std::shared_ptr<FakeConnection> worker_;
};

TEST_F(ControllerRestartTest, AWorkerThatLivesComesBackAndNothingIsRepeated) {
  RunJob(5);
  RestartDaemon();
  EXPECT_THAT(WaitFor(id_, v1::Job::RECOVERING).devices(), ElementsAre("cpu-0"));
  const std::string other = Submit();
  Settle();
  EXPECT_EQ(launcher_.launches(), 1u) << "the device is still held";
  auto worker = Attach(Hello(id_, 1, key_));
  const v1::DaemonWelcome welcome = worker->WaitForWelcome();
  EXPECT_EQ(welcome.acknowledged_number(), 5u);
  EXPECT_EQ(welcome.last_reported_step(), 5);
  EXPECT_EQ(welcome.session_key(), key_);
  // It spooled 4..8 and sends what may have been lost.
  for (uint64_t number = 4; number <= 8; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 8);
  EXPECT_TRUE(worker->WaitForGoodbye());
  const v1::Job job = *Get(id_);
  EXPECT_EQ(job.state(), v1::Job::SUCCEEDED);
  EXPECT_EQ(job.attempt(), 1u);
  EXPECT_EQ(job.failures(), 0u);
  ExpectGapFree(id_);
  std::vector<int64_t> steps;
  for (const auto& event : Events(id_)) {
    if (event.has_step()) steps.push_back(event.step().last_step());
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

class ControllerMemoryTest : public ControllerTest {
 protected:
  CreateJobParams With(int gpus, int priority, bool preemptible) {
    CreateJobParams params = Params();
    params.spec.mutable_resources()->set_gpus(gpus);
    params.spec.mutable_resources()->set_priority(priority);
    params.spec.mutable_resources()->set_preemptible(preemptible);
    return params;
  }
  static bool AskedForCheckpoint(const std::shared_ptr<FakeConnection>& worker) {
    return worker->WaitUntil([](const auto& messages) {
      return std::any_of(messages.begin(), messages.end(), [](const v1::DaemonMessage& message) {
        return message.command().kind() == v1::DaemonCommand::CHECKPOINT;
      });
    });
  }
  // A checkpoint that took so long.
  void SendCheckpoint(const std::shared_ptr<FakeConnection>& worker, uint64_t number, double seconds) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::CheckpointSaved& saved = *message.mutable_event()->mutable_event()->mutable_checkpoint();
    saved.set_checkpoint("step-1");
    saved.set_write_seconds(seconds);
    controller_->WorkerMessage(worker, message);
    EXPECT_TRUE(worker->WaitForAck(number));
  }
};

TEST_F(ControllerMemoryTest, WhoOvertookTheHeadOfTheQueueStopsForItAfterARestartToo) {
  RestartDaemon(2);
  Submit(With(1, 0, false));
  auto first = AttachLaunched(0);
  const std::string head = Submit(With(2, 0, false));
  const std::string overtaker = Submit(With(1, 0, true));
  auto second = AttachLaunched(1);
  WaitFor(overtaker, v1::Job::RUNNING);
  const std::string keys[] = {first->WaitForWelcome().session_key(), second->WaitForWelcome().session_key()};
  Settle();
  RestartDaemon(2);
  const FakeLauncher::Process processes[] = {launcher_.Wait(0), launcher_.Wait(1)};
  first = Attach(Hello(processes[0].request.job_id, 1, keys[0], processes[0].id.pid));
  second = Attach(Hello(overtaker, 1, keys[1], processes[1].id.pid));
  WaitFor(overtaker, v1::Job::RUNNING);
  SendFinished(first, v1::WorkerFinished::SUCCEEDED, 0);
  EXPECT_TRUE(first->WaitForGoodbye());
  EndWorker(first, 0);
  EXPECT_TRUE(AskedForCheckpoint(second)) << "as soon as it would be all that the head waits for";
  EXPECT_EQ(Get(head)->queue_reason(), v1::Job::PREEMPTION);
}

TEST_F(ControllerMemoryTest, OneSlowCheckpointIsForgottenAfterAFewQuickOnes) {
  scheduling_.min_run = absl::ZeroDuration();
  RestartDaemon();
  const std::string id = Submit(With(1, 0, true));
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  SendCheckpoint(worker, 1, 300);
  SendCheckpoint(worker, 2, std::numeric_limits<double>::infinity());
  SendCheckpoint(worker, 3, 5);
  SendCheckpoint(worker, 4, 5);
  const std::string key = worker->WaitForWelcome().session_key();
  Settle();
  RestartDaemon();
  worker = Attach(Hello(id, 1, key, launcher_.Wait(0).id.pid));
  WaitFor(id, v1::Job::RUNNING);
  Submit(With(1, 9, false));
  Settle();
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING) << "75 s of a minute";
  SendCheckpoint(worker, 5, 5);
  // Nothing else changes; the queue is looked at all the same.
  Advance(absl::Seconds(31));
  WaitFor(id, v1::Job::PREEMPTING);
}

TEST_F(ControllerMemoryTest, OneThatHasRunItsTimeStopsThoughNothingElseHappens) {
  scheduling_.min_run = absl::Minutes(5);
  RestartDaemon();
  const std::string id = Submit(With(1, 0, true));
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  Submit(With(1, 9, false));
  for (int i = 0; i < 9; ++i) {
    Advance(absl::Seconds(30));
    SendHeartbeat(worker);
  }
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  Advance(absl::Seconds(31));
  WaitFor(id, v1::Job::PREEMPTING);
}

TEST_F(ControllerMemoryTest, HowLongCheckpointsTookIsKnownAfterARestart) {
  scheduling_.min_run = absl::ZeroDuration();
  RestartDaemon();
  size_t launch = 0;
  for (const double seconds : {50.0, 1.0}) {
    const std::string id = Submit(With(1, 0, true));
    auto worker = AttachLaunched(launch);
    WaitFor(id, v1::Job::RUNNING);
    SendCheckpoint(worker, 1, seconds);
    const std::string key = worker->WaitForWelcome().session_key();
    Settle();
    RestartDaemon();
    worker = Attach(Hello(id, 1, key, launcher_.Wait(launch).id.pid));
    WaitFor(id, v1::Job::RUNNING);
    const std::string urgent = Submit(With(1, 9, false));
    Settle();
    // What does not fit the grace of a minute is not begun.
    EXPECT_EQ(Get(id)->state(), seconds > 40 ? v1::Job::RUNNING : v1::Job::PREEMPTING);
    ASSERT_TRUE(Cancel(urgent).ok());
    SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
    EXPECT_TRUE(worker->WaitForGoodbye());
    EndWorker(worker, launch++);
    Settle();
  }
}

TEST_F(ControllerRestartTest, AWorkerThatDiedWithTheDaemonIsReplaced) {
  RunJob(5);
  StopDaemon();
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon();
  auto worker = AttachLaunched(1);
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(worker->WaitForWelcome().last_reported_step(), 5);
  EXPECT_EQ(worker->WaitForWelcome().acknowledged_number(), 0u);
  EXPECT_EQ(WaitFor(id_, v1::Job::RUNNING).failures(), 0u);
  ExpectGapFree(id_);
}

TEST_F(ControllerRestartTest, AJobThatTakesTheDaemonWithItIsNotTriedForEver) {
  CreateJobParams params = Params();
  params.spec.mutable_retry()->set_max_attempts(2);
  const std::string id = Submit(std::move(params));
  size_t launches = 0;
  v1::Job::State state = v1::Job::QUEUED;
  while (!IsTerminal(state) && launches < 20) {
    AttachLaunched(launches);
    WaitFor(id, v1::Job::RUNNING);
    StopDaemon();
    launcher_.End(launcher_.Wait(launches).id, {-1, 9});
    ++launches;
    StartDaemon();
    Settle();
    Advance(absl::Seconds(10));
    state = Get(id)->state();
  }
  EXPECT_EQ(state, v1::Job::FAILED);
  EXPECT_EQ(launches, 5u) << "three losses are forgiven, two are failures";
  EXPECT_THAT(Get(id)->failure().message(), HasSubstr("lost each other"));
}

TEST_F(ControllerRestartTest, ACheckpointStartsTheCountOfLossesAnew) {
  const std::string id = Submit();
  for (size_t n = 0; n < 8; ++n) {
    auto worker = AttachLaunched(n);
    v1::WorkerMessage message;
    message.mutable_event()->set_number(1);
    message.mutable_event()->mutable_event()->mutable_checkpoint()->set_checkpoint("step-1");
    controller_->WorkerMessage(worker, message);
    EXPECT_TRUE(worker->WaitForAck(1));
    StopDaemon();
    launcher_.End(launcher_.Wait(n).id, {-1, 9});
    StartDaemon();
  }
  launcher_.Wait(8);
  EXPECT_EQ(Get(id)->failures(), 0u);
}

TEST_F(ControllerRestartTest, AWorkerThatDoesNotComeBackIsKilledAndReplaced) {
  RunJob(2);
  RestartDaemon();
  WaitFor(id_, v1::Job::RECOVERING);
  Advance(absl::Minutes(10) - absl::Seconds(1));
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  EXPECT_THAT(Logged(), Contains(StartsWith(absl::StrCat(id_, " 1 killing its worker, pid "))));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(Get(id_)->failures(), 0u);
}

TEST_F(ControllerRestartTest, AKillThatFailedIsRepeatedUntilTheWorkerIsGone) {
  RunJob(2);
  RestartDaemon();
  WaitFor(id_, v1::Job::RECOVERING);
  launcher_.MakeStubborn(true);
  Advance(absl::Minutes(10));
  EXPECT_TRUE(launcher_.WasKilled(0));
  Advance(absl::Seconds(1));
  EXPECT_EQ(launcher_.launches(), 1u) << "both would write the same checkpoints";
  launcher_.MakeStubborn(false);
  Advance(absl::Seconds(1));
  EXPECT_FALSE(launcher_.IsAlive(launcher_.Wait(0).id));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerRestartTest, WhatIsLeftOfAnAttemptIsKilledUntilItIsGone) {
  RunJob(2);
  launcher_.MakeStubborn(true);
  SendFinished(worker_, v1::WorkerFinished::FAILED, 2, v1::Failure::WORKER_CRASH);
  WaitFor(id_, v1::Job::RETRYING);
  // Its process is known from the job alone.
  launcher_.Hide(absl::UnavailableError("too many open files"));
  RestartDaemon();
  Settle();
  EXPECT_TRUE(launcher_.WasKilled(0));
  launcher_.MakeStubborn(false);
  Advance(absl::Seconds(1));
  EXPECT_FALSE(launcher_.IsAlive(launcher_.Wait(0).id));
}

TEST_F(ControllerRestartTest, AWorkerThatCannotBeIdentifiedForNowComesAgain) {
  RunJob(2);
  RewriteRecord(id_, [](JobRecord& record) { record.worker = WorkerProcess(); });
  launcher_.Hide(absl::UnavailableError("too many open files"));
  StartDaemon();
  const WorkerProcess process = launcher_.Wait(0).id;
  EXPECT_EQ(Attach(Hello(id_, 1, key_, process.pid))->WaitForClose().code(), absl::StatusCode::kUnavailable);
  launcher_.Hide(absl::OkStatus());
  auto worker = Attach(Hello(id_, 1, key_, process.pid));
  worker->WaitForWelcome();
  WaitFor(id_, v1::Job::RUNNING);
}

// The database of the next daemon is an older copy.
class ControllerRestoreTest : public ControllerRestartTest {
 protected:
  // A job that the restored database knows with one event of five.
  void Restore() {
    RunJob(5);
    RewriteRecord(id_, [](JobRecord& record) { record.worker_number = 1; });
    StartDaemon();
  }
};

TEST_F(ControllerRestoreTest, AWorkerThatStopsForItIsNotHeldAgainstItsJob) {
  Restore();
  auto worker = Attach(Hello(id_, 1, key_));
  EXPECT_EQ(worker->WaitForWelcome().acknowledged_number(), 1u);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(Get(id_)->failures(), 0u);
}

// As those of versions that do not see it.
TEST_F(ControllerRestoreTest, OneThatSendsWhatDoesNotFitIsStoppedAndReplaced) {
  Restore();
  for (int i = 0; i < 3; ++i) {
    auto worker = Attach(Hello(id_, 1, key_));
    worker->WaitForWelcome();
    EXPECT_TRUE(i == 0 || worker->WaitForStop());
    SendStep(worker, 6, 6);
    EXPECT_EQ(worker->WaitForClose().code(), absl::StatusCode::kUnavailable);
    controller_->WorkerDisconnected(worker);
  }
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Minutes(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(Get(id_)->failures(), 0u);
}

TEST_F(ControllerRestoreTest, OneThatHasFinishedIsReplacedToo) {
  Restore();
  auto worker = Attach(Hello(id_, 1, key_));
  worker->WaitForWelcome();
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 5);
  EXPECT_EQ(worker->WaitForClose().code(), absl::StatusCode::kUnavailable);
  Advance(absl::Minutes(1));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerRestartTest, AWorkerThatDiesBeforeItComesBackIsReplaced) {
  RunJob(2);
  RestartDaemon();
  WaitFor(id_, v1::Job::RECOVERING);
  // Nobody waits for another daemon's child: its end must be seen by looking.
  launcher_.Report(nullptr);
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  Advance(absl::Seconds(1));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerRestartTest, AnAdoptedWorkerThatCrashesLaterIsAFailure) {
  RunJob(2);
  RestartDaemon();
  auto worker = Attach(Hello(id_, 1, key_));
  worker->WaitForWelcome();
  WaitFor(id_, v1::Job::RUNNING);
  controller_->WorkerDisconnected(worker);
  launcher_.Report(nullptr);
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  Advance(absl::Seconds(1));
  EXPECT_EQ(WaitFor(id_, v1::Job::RETRYING).failures(), 1u);
}

TEST_F(ControllerRestartTest, QueuedJobsKeepTheirOrder) {
  const std::string first = Submit();
  const std::string second = Submit();
  const std::string third = Submit();
  launcher_.Wait(0);
  RestartDaemon(3);
  EXPECT_EQ(launcher_.Wait(1).request.job_id, second);
  EXPECT_EQ(launcher_.Wait(2).request.job_id, third);
  const std::string fourth = Submit();
  EXPECT_GT(fourth, third);
  EXPECT_EQ(Get(fourth)->queue_position(), 1);
}

TEST_F(ControllerRestartTest, AWorkerLaunchedJustBeforeTheCrashMayStillAttach) {
  const std::string id = Submit();
  const auto process = launcher_.Wait(0);
  Settle();
  RestartDaemon();
  WaitFor(id, v1::Job::RECOVERING);
  auto worker = Attach(Hello(id, 1, process.request.one_time_token, process.id.pid));
  worker->WaitForWelcome();
  EXPECT_EQ(WaitFor(id, v1::Job::RUNNING).attempt(), 1u);
  EXPECT_EQ(launcher_.launches(), 1u);
}

// STARTING is durable before a worker is launched.
TEST_F(ControllerRestartTest, AJobWhoseWorkerWasNeverLaunchedIsQueuedAgainAtOnce) {
  const std::string id = Submit();
  const auto process = launcher_.Wait(0);
  Settle();
  RewriteRecord(id, [](JobRecord& record) {
    EXPECT_EQ(record.job.state(), v1::Job::STARTING);
    record.worker = WorkerProcess();
  });
  launcher_.End(process.id, {-1, 9});
  StartDaemon();
  auto worker = AttachLaunched(1);
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
  EXPECT_EQ(WaitFor(id, v1::Job::RUNNING).failures(), 0u);
  // Had its process only not been seen: it is turned away.
  EXPECT_EQ(Attach(Hello(id, 1, process.request.one_time_token, process.id.pid))->WaitForClose().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(worker->closed());
}

TEST_F(ControllerRestartTest, OneThatMayHaveBegunIsWaitedFor) {
  RunJob(1);
  // Whom nobody can see from here.
  RewriteRecord(id_, [](JobRecord& record) { record.worker = WorkerProcess(); });
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon();
  Settle();
  EXPECT_EQ(Get(id_)->state(), v1::Job::RECOVERING);
  EXPECT_EQ(launcher_.launches(), 1u);
  Advance(absl::Seconds(60));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerRestartTest, AJobToBeCancelledWhoseWorkerWasNeverLaunchedIsCancelledAtOnce) {
  const std::string id = Submit();
  launcher_.Wait(0);
  Settle();
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLING);
  RewriteRecord(id, [](JobRecord& record) { record.worker = WorkerProcess(); });
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon();
  WaitFor(id, v1::Job::CANCELLED);
}

TEST_F(ControllerRestartTest, TheEndOfAJobThatEndedBeforeTheCrashIsSaidAgain) {
  RunJob(1);
  SendFinished(worker_, v1::WorkerFinished::SUCCEEDED, 1);
  WaitFor(id_, v1::Job::SUCCEEDED);
  RestartDaemon();
  EXPECT_EQ(Attach(Hello(id_, 1, "wrong"))->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  auto worker = Attach(Hello(id_, 1, key_));
  EXPECT_EQ(worker->WaitForWelcome().acknowledged_number(), 1u);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EXPECT_EQ(Events(id_).back().state_change().to(), v1::Job::SUCCEEDED);
}

TEST_F(ControllerRestartTest, ARepeatedSubmitGetsTheSameJobFromTheNextDaemon) {
  const auto first = Create(Params("once"));
  ASSERT_TRUE(first.ok()) << first.status();
  for (int restart = 0; restart < 2; ++restart) {
    RestartDaemon();
    const auto again = Create(Params("once"));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->id(), first->id());
    EXPECT_EQ(Create(Params("once", "another body")).status().code(), absl::StatusCode::kAlreadyExists);
  }
  const auto listed = Await<v1::ListJobsResponse>([&](auto done) { controller_->ListJobs({}, std::move(done)); });
  EXPECT_EQ(listed->jobs_size(), 1);
}

TEST_F(ControllerRestartTest, AWorkerThatNobodyKnowsIsEnded) {
  StopDaemon();
  ASSERT_TRUE(launcher_.Launch({"01hzzzzzzzzzzzzzzzzzzzzzzz", 1, "", {}}).ok());
  StartDaemon();
  // Its job may have ended: then it waits for a goodbye.
  Advance(absl::Seconds(59));
  EXPECT_FALSE(launcher_.WasKilled(0));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  EXPECT_THAT(Logged(), Contains(StartsWith("01hzzzzzzzzzzzzzzzzzzzzzzz 1 killing an orphaned worker, pid ")));
}

TEST_F(ControllerRestartTest, AWorkerOfAnAttemptThatIsOverIsEndedAtOnce) {
  RunJob(1);
  StopDaemon();
  // Of the same job: it would write the same checkpoints.
  ASSERT_TRUE(launcher_.Launch({id_, 0, "", {}}).ok());
  StartDaemon();
  Settle();
  EXPECT_TRUE(launcher_.WasKilled(1));
  EXPECT_FALSE(launcher_.WasKilled(0));
}

TEST_F(ControllerRestartTest, AnOrphanIsKilledUntilItIsGone) {
  StopDaemon();
  ASSERT_TRUE(launcher_.Launch({"01hzzzzzzzzzzzzzzzzzzzzzzz", 1, "", {}}).ok());
  launcher_.MakeStubborn(true);
  StartDaemon();
  Advance(absl::Minutes(1));
  ASSERT_TRUE(launcher_.WasKilled(0));
  launcher_.MakeStubborn(false);
  Advance(absl::Seconds(1));
  EXPECT_FALSE(launcher_.IsAlive(launcher_.Wait(0).id));
}

TEST_F(ControllerRestartTest, AfterADetachTheNextDaemonGoesOnWithTheWorker) {
  RunJob(5);
  const std::string waiting = Submit();
  auto detached = std::make_shared<std::promise<void>>();
  controller_->Detach([detached] { detached->set_value(); });
  ASSERT_EQ(detached->get_future().wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(Create(Params()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(launcher_.WasKilled(0));
  EXPECT_EQ(launcher_.launches(), 1u);
  RestartDaemon();
  auto worker = Attach(Hello(id_, 1, key_));
  EXPECT_EQ(worker->WaitForWelcome().acknowledged_number(), 5u);
  SendStep(worker, 6, 6);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 6);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EXPECT_EQ(Get(id_)->attempt(), 1u);
  EXPECT_EQ(Get(id_)->state(), v1::Job::SUCCEEDED);
}

TEST_F(ControllerRestartTest, AStreamThatEndsBeforeItsAnswerLeavesNothingBehind) {
  RunJob(1);
  SendFinished(worker_, v1::WorkerFinished::SUCCEEDED, 1);
  WaitFor(id_, v1::Job::SUCCEEDED);
  RestartDaemon();
  std::promise<void> go;
  store_->ReadInOrder([held = go.get_future().share()](const Database&) { held.wait(); });
  auto stream = Attach(Hello(id_, 1, key_));
  controller_->WorkerDisconnected(stream);
  Sync();
  go.set_value();
  // Another worker's stream may well get the same address.
  const std::string next = Submit();
  const FakeLauncher::Process process = launcher_.Wait(1);
  controller_->WorkerAttached(Hello(next, 1, process.request.one_time_token, process.id.pid), stream);
  stream->WaitForWelcome();
  SendStep(stream, 1, 1);
  EXPECT_TRUE(stream->WaitForAck(1));
  EXPECT_TRUE(LastEvent(next).has_step()) << LastEvent(next).ShortDebugString();
}

TEST_F(ControllerRestartTest, ACancelledJobStaysCancelled) {
  RunJob(1);
  EXPECT_EQ(Cancel(id_)->state(), v1::Job::CANCELLING);
  RestartDaemon();
  auto worker = Attach(Hello(id_, 1, key_));
  worker->WaitForWelcome();
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  WaitFor(id_, v1::Job::CANCELLED);
}

TEST_F(ControllerRestartTest, ACancelledJobWhoseWorkerDiedIsCancelled) {
  RunJob(1);
  EXPECT_EQ(Cancel(id_)->state(), v1::Job::CANCELLING);
  StopDaemon();
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  StartDaemon();
  WaitFor(id_, v1::Job::CANCELLED);
}

TEST_F(ControllerRestartTest, AJobToBeCancelledAtOnceIsSoAfterARestart) {
  RunJob(1);
  EXPECT_EQ(Cancel(id_)->state(), v1::Job::CANCELLING);
  launcher_.MakeStubborn(true);
  EXPECT_EQ(Cancel(id_, true)->state(), v1::Job::CANCELLING);
  StopDaemon();
  launcher_.MakeStubborn(false);
  StartDaemon();
  // Long before a worker that is asked for a checkpoint is killed.
  Advance(absl::Seconds(2));
  EXPECT_EQ(WaitFor(id_, v1::Job::CANCELLED).attempt(), 1u);
  EXPECT_FALSE(launcher_.IsAlive(launcher_.Wait(0).id));
  // Not the next attempt, if there is one.
  ASSERT_TRUE(Await<v1::Job>([&](auto done) { controller_->RetryJob({id_}, std::move(done)); }).ok());
  auto worker = AttachLaunched(1);
  WaitFor(id_, v1::Job::RUNNING);
  EXPECT_EQ(Cancel(id_)->state(), v1::Job::CANCELLING);
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_FALSE(launcher_.WasKilled(1));
}

TEST_F(ControllerRestartTest, CancelWhileRecovering) {
  RunJob(1);
  RestartDaemon();
  EXPECT_EQ(Cancel(id_)->state(), v1::Job::CANCELLING);
  Advance(absl::Seconds(60));
  EXPECT_TRUE(launcher_.WasKilled(0));
  WaitFor(id_, v1::Job::CANCELLED);
}

TEST_F(ControllerRestartTest, RetryingJobsAreRetried) {
  RunJob(1);
  EndWorker(worker_, 0, {-1, 11});
  WaitFor(id_, v1::Job::RETRYING);
  RestartDaemon();
  EXPECT_EQ(Get(id_)->state(), v1::Job::RETRYING);
  Advance(absl::Seconds(1));
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerRestartTest, TimeWithoutDaemonAndWorkerIsNoRunTime) {
  CreateJobParams params = Params();
  params.spec.mutable_limits()->set_max_run_seconds(100);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  Advance(absl::Seconds(30));
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  StopDaemon();
  launcher_.End(launcher_.Wait(0).id, {-1, 9});
  clock_.Advance(absl::Hours(5));
  StartDaemon();
  auto second = AttachLaunched(1);
  WaitFor(id, v1::Job::RUNNING);
  Advance(absl::Seconds(50));
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  SendHeartbeat(second);
  Advance(absl::Seconds(20));
  EXPECT_TRUE(second->WaitForStop());
}

TEST_F(ControllerRestartTest, ADeadWorkerUsedItsDeviceUpToWhatIsKnownOfIt) {
  RunJob(1);
  for (size_t attempt = 1; attempt <= 2; ++attempt) {
    Advance(absl::Seconds(50));
    SendStep(worker_, 2, 2);
    EXPECT_TRUE(worker_->WaitForAck(2));
    StopDaemon();
    launcher_.End(launcher_.Wait(attempt - 1).id, {-1, 9});
    // Over a weekend.
    clock_.Advance(absl::Hours(60));
    StartDaemon();
    worker_ = AttachLaunched(attempt);
    SendStep(worker_, 1, 1);
    EXPECT_TRUE(worker_->WaitForAck(1));
    Settle();
    EXPECT_NEAR(UsedDeviceSeconds(), 50 * static_cast<double>(attempt), 1e-6);
  }
}

TEST_F(ControllerRestartTest, AWorkerThatLivedUsedItsDeviceAllTheTime) {
  RunJob(1);
  StopDaemon();
  clock_.Advance(absl::Seconds(50));
  StartDaemon();
  Settle();
  EXPECT_NEAR(UsedDeviceSeconds(), 50, 1e-6);
  auto worker = Attach(Hello(id_, 1, key_));
  worker->WaitForWelcome();
  Advance(absl::Seconds(20));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  Settle();
  EXPECT_NEAR(UsedDeviceSeconds(), 70, 1e-6);
}

TEST_F(ControllerRestartTest, DrainWaitsForARecoveringWorkerToStop) {
  RunJob(1);
  RestartDaemon();
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(60), [&](absl::Status status) { drained.set_value(status); });
  auto worker = Attach(Hello(id_, 1, key_));
  EXPECT_TRUE(worker->WaitForStop());
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  EXPECT_TRUE(drained.get_future().get().ok());
  EXPECT_EQ(Get(id_)->state(), v1::Job::QUEUED);
}

}  // namespace
}  // namespace ampd
