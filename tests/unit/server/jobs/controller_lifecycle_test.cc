#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kQueued = v1::Job::QUEUED;
constexpr auto kStarting = v1::Job::STARTING;
constexpr auto kRunning = v1::Job::RUNNING;

using ControllerLifecycleTest = ControllerTest;

TEST_F(ControllerLifecycleTest, AJobRunsToItsEnd) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const v1::DaemonWelcome welcome = worker->WaitForWelcome();
  EXPECT_EQ(welcome.spec().train().batch_size(), 32);
  EXPECT_EQ(welcome.checkpoint_dir(), "/checkpoints/" + id);
  EXPECT_EQ(welcome.artifact_dir(), "/artifacts/" + id);
  EXPECT_THAT(welcome.data_roots(), ElementsAre("/data"));
  EXPECT_THAT(welcome.devices(), testing::ElementsAre("cpu-0"));
  EXPECT_EQ(welcome.cpu_threads(), 2);
  EXPECT_EQ(welcome.acknowledged_number(), 0u);
  EXPECT_EQ(welcome.last_reported_step(), 0);
  EXPECT_THAT(WaitFor(id, kRunning).devices(), ElementsAre("cpu-0"));
  for (uint64_t number = 1; number <= 20; ++number) SendStep(worker, number, static_cast<int64_t>(number));
  EXPECT_TRUE(worker->WaitForAck(20));
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 20);
  EXPECT_TRUE(worker->WaitForGoodbye());
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::SUCCEEDED) << "durable before the goodbye";
  EXPECT_EQ(job.summary().steps_applied(), 20);
  EXPECT_EQ(job.attempt(), 1u);
  EXPECT_TRUE(job.devices().empty());
  EXPECT_TRUE(job.has_start_time() && job.has_end_time());
  EndWorker(worker, 0);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, v1::Job::SUCCEEDED));
  EXPECT_EQ(LastEvent(id).state_change().summary().steps_applied(), 20);
  ExpectGapFree(id);
}

TEST_F(ControllerLifecycleTest, ATrainingThatEndedEarlySaysWhy) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  v1::WorkerMessage message;
  message.mutable_finished()->set_outcome(v1::WorkerFinished::SUCCEEDED);
  message.mutable_finished()->set_reason("it learns no more");
  controller_->WorkerMessage(worker, message);
  WaitFor(id, v1::Job::SUCCEEDED);
  EXPECT_EQ(LastEvent(id).state_change().reason(), "it learns no more");
  EndWorker(worker, 0);
}

TEST_F(ControllerLifecycleTest, JobsWaitTheirTurnForTheDevice) {
  const std::string first = Submit();
  const std::string second = Submit();
  const std::string third = Submit();
  auto worker = AttachLaunched(0);
  Settle();
  EXPECT_EQ(launcher_.launches(), 1u);
  EXPECT_EQ(Get(second)->queue_position(), 1);
  EXPECT_EQ(Get(third)->queue_position(), 2);
  EXPECT_EQ(Get(third)->queue_reason(), v1::Job::RESOURCES);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 0);
  WaitFor(first, v1::Job::SUCCEEDED);
  Settle();
  EXPECT_EQ(launcher_.launches(), 1u) << "the device is free once the process is gone";
  EndWorker(worker, 0);
  EXPECT_EQ(launcher_.Wait(1).request.job_id, second);
  EXPECT_EQ(Get(third)->queue_position(), 1);
}

TEST_F(ControllerLifecycleTest, DevicesShowWhoHoldsThemAndHowBusyTheyAre) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendHeartbeat(worker, 0);
  Advance(absl::Seconds(10));
  SendHeartbeat(worker, 15);
  Sync();
  const auto devices = Await<std::vector<v1::Device>>([&](auto done) { controller_->ListDevices(std::move(done)); });
  ASSERT_TRUE(devices.ok());
  EXPECT_EQ((*devices)[0].job_id(), id);
  EXPECT_DOUBLE_EQ((*devices)[0].utilization(), 0.75);
  EXPECT_THAT(metrics_->Serialize(), HasSubstr("ampd_device_utilization_ratio{device=\"cpu-0\"} 0.75"));
}

TEST_F(ControllerLifecycleTest, CancelInTheQueueEndsTheJobAtOnce) {
  Submit();
  const std::string id = Submit();
  const auto cancelled = Cancel(id.substr(0, 25));
  // Ids made within a millisecond differ in the last letters only.
  const auto job = cancelled.ok() ? cancelled : Cancel(id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::Job::CANCELLED);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLED) << "a second time returns it as it is";
  EXPECT_THAT(States(id), ElementsAre(kQueued, v1::Job::CANCELLED));
}

TEST_F(ControllerLifecycleTest, CancelWhileRunningLetsTheWorkerCheckpoint) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLING);
  EXPECT_TRUE(worker->WaitForStop());
  SendStep(worker, 1, 1);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EXPECT_EQ(Get(id)->state(), v1::Job::CANCELLED);
  EndWorker(worker, 0);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, v1::Job::CANCELLING, v1::Job::CANCELLED));
  EXPECT_FALSE(launcher_.WasKilled(0));
}

TEST_F(ControllerLifecycleTest, ACancelledWorkerThatDoesNotStopIsKilled) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  Cancel(id).IgnoreError();
  SendHeartbeat(worker);
  Advance(absl::Seconds(59));
  EXPECT_FALSE(launcher_.WasKilled(0));
  SendHeartbeat(worker);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  WaitFor(id, v1::Job::CANCELLED);
}

TEST_F(ControllerLifecycleTest, CancelNowKillsTheWorkerAtOnce) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_EQ(Cancel(id, true)->state(), v1::Job::CANCELLING);
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  WaitFor(id, v1::Job::CANCELLED);
  EXPECT_THAT(States(id), ElementsAre(kQueued, kStarting, kRunning, v1::Job::CANCELLING, v1::Job::CANCELLED));
  EXPECT_EQ(Events(id).back().state_change().reason(), "cancelled by request, at once");
  EXPECT_FALSE(worker->WasToldToStop());
  const auto again = Cancel(id, true);
  ASSERT_TRUE(again.ok()) << "a job that has ended is returned as it is: " << again.status();
  EXPECT_EQ(again->state(), v1::Job::CANCELLED);
}

TEST_F(ControllerLifecycleTest, CancelNowDoesNotWaitForTheCheckpointThatACancelBeforeAskedFor) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLING);
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLING);
  EXPECT_FALSE(launcher_.WasKilled(0)) << "a second one without it changes nothing";
  EXPECT_TRUE(Cancel(id, true).ok());
  EXPECT_TRUE(launcher_.WasKilled(0));
  controller_->WorkerDisconnected(worker);
  WaitFor(id, v1::Job::CANCELLED);
}

TEST_F(ControllerLifecycleTest, CancelNowOfWhatDoesNotRun) {
  const std::string starting = Submit();
  const std::string queued = Submit();
  launcher_.Wait(0);
  EXPECT_EQ(Cancel(queued, true)->state(), v1::Job::CANCELLED);
  EXPECT_TRUE(Cancel(starting, true).ok());
  EXPECT_TRUE(launcher_.WasKilled(0));
  WaitFor(starting, v1::Job::CANCELLED);
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerLifecycleTest, CancelBeforeTheWorkerAttachedKillsIt) {
  const std::string id = Submit();
  const auto process = launcher_.Wait(0);
  Cancel(id).IgnoreError();
  WaitFor(id, v1::Job::CANCELLED);
  EXPECT_TRUE(launcher_.WasKilled(0));
  auto late = Attach(Hello(id, 1, process.request.one_time_token));
  EXPECT_EQ(late->WaitForClose().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ControllerLifecycleTest, CancelDuringTheRetryPause) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  EndWorker(worker, 0, {3, 0});
  WaitFor(id, v1::Job::RETRYING);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::CANCELLED);
  Advance(absl::Minutes(5));
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerLifecycleTest, DrainCheckpointsAndRequeues) {
  const std::string running = Submit();
  const std::string waiting = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(running, kRunning);
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(60), [&](absl::Status status) { drained.set_value(status); });
  EXPECT_TRUE(worker->WaitForStop());
  EXPECT_TRUE(controller_->draining());
  EXPECT_EQ(Create(Params()).status().code(), absl::StatusCode::kUnavailable);
  SendStep(worker, 1, 1);
  SendFinished(worker, v1::WorkerFinished::STOPPED, 1);
  EXPECT_TRUE(worker->WaitForGoodbye());
  EndWorker(worker, 0);
  const absl::Status status = drained.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Get(running)->state(), kQueued);
  EXPECT_EQ(Get(running)->failures(), 0u);
  EXPECT_EQ(Get(waiting)->queue_reason(), v1::Job::DRAINING);
  EXPECT_EQ(launcher_.launches(), 1u);
  RestartDaemon();
  EXPECT_EQ(launcher_.Wait(1).request.job_id, running) << "its place in the queue is the old one";
  EXPECT_EQ(launcher_.Wait(1).request.attempt, 2u);
}

TEST_F(ControllerLifecycleTest, DrainKillsWhatDoesNotStop) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(20), [&](absl::Status status) { drained.set_value(status); });
  Settle();
  Advance(absl::Seconds(20));
  controller_->WorkerDisconnected(worker);
  const absl::Status status = drained.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(id));
  EXPECT_EQ(Get(id)->state(), kQueued);
  EXPECT_EQ(Get(id)->failures(), 0u);
}

TEST_F(ControllerLifecycleTest, ALaterDrainShortensTheFirstAndNeverLengthensIt) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, kRunning);
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Hours(10), "first", [&](absl::Status status) { drained.set_value(status); });
  controller_->Drain(absl::Hours(20), "longer", [](const absl::Status&) {});
  controller_->Drain(absl::Seconds(20), "shorter", [](const absl::Status&) {});
  Settle();
  Advance(absl::Seconds(20));
  controller_->WorkerDisconnected(worker);
  const absl::Status status = drained.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(id));
  EXPECT_EQ(Get(id)->state(), kQueued);
}

TEST_F(ControllerLifecycleTest, DrainWithoutJobsIsDoneAtOnce) {
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(20), [&](absl::Status status) { drained.set_value(status); });
  EXPECT_TRUE(drained.get_future().get().ok());
  std::promise<absl::Status> again;
  controller_->Drain(absl::Seconds(20), [&](absl::Status status) { again.set_value(status); });
  EXPECT_TRUE(again.get_future().get().ok());
}

TEST_F(ControllerLifecycleTest, DrainEndsAWorkerThatHasNotAttached) {
  const std::string id = Submit();
  launcher_.Wait(0);
  std::promise<absl::Status> drained;
  controller_->Drain(absl::Seconds(20), [&](absl::Status status) { drained.set_value(status); });
  EXPECT_TRUE(drained.get_future().get().ok());
  EXPECT_EQ(Get(id)->state(), kQueued);
  EXPECT_EQ(Get(id)->failures(), 0u);
}

}  // namespace
}  // namespace ampd
