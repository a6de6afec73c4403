#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class ControllerLinkTest : public ControllerTest {
 protected:
  // What AmpdJobWithoutProgress compares with its 600 seconds.
  int64_t SecondsWithoutProgress(const std::string& id) {
    const std::string text = metrics_->Serialize();
    const std::string series = absl::StrCat("\nampd_job_last_progress_timestamp_seconds{job_id=\"", id, "\"} ");
    const size_t at = text.find(series);
    if (at == std::string::npos) return -1;
    return std::llround(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()) -
                        std::stod(text.substr(at + series.size())));
  }
  // Once the metrics have heard of what was written now, and so of all that was written before.
  void AwaitProgressNow(const std::string& id) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (SecondsWithoutProgress(id) != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(SecondsWithoutProgress(id), 0);
  }
  // Some time later.
  int64_t SecondsWithoutProgressAfter(const std::string& id, const std::shared_ptr<FakeConnection>& worker,
                                      int64_t evaluated_samples) {
    clock_.Advance(absl::Seconds(20));
    SendHeartbeat(worker, 0, evaluated_samples);
    return SecondsWithoutProgress(id);
  }
};

TEST_F(ControllerLinkTest, DuplicateEventsAreDropped) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  for (const uint64_t number : {1, 2, 2, 1, 3, 3, 3}) SendStep(worker, number, static_cast<int64_t>(number));
  EXPECT_TRUE(worker->WaitForAck(3));
  size_t steps = 0;
  for (const auto& event : Events(id)) steps += event.has_step();
  EXPECT_EQ(steps, 3u);
  ExpectGapFree(id);
}

TEST_F(ControllerLinkTest, AGapMakesTheWorkerComeBackAndSendAgain) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const std::string key = worker->WaitForWelcome().session_key();
  SendStep(worker, 1, 1);
  SendStep(worker, 3, 3);
  EXPECT_EQ(worker->WaitForClose().code(), absl::StatusCode::kUnavailable);
  controller_->WorkerDisconnected(worker);
  auto again = Attach(Hello(id, 1, key));
  EXPECT_EQ(again->WaitForWelcome().acknowledged_number(), 1u);
  for (uint64_t number = 1; number <= 3; ++number) SendStep(again, number, static_cast<int64_t>(number));
  EXPECT_TRUE(again->WaitForAck(3));
  SendFinished(again, v1::WorkerFinished::SUCCEEDED, 3);
  WaitFor(id, v1::Job::SUCCEEDED);
  ExpectGapFree(id);
}

TEST_F(ControllerLinkTest, FinishedWithEventsMissingIsNotTaken) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 1);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 5);
  EXPECT_EQ(worker->WaitForClose().code(), absl::StatusCode::kUnavailable);
  Settle();
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
}

TEST_F(ControllerLinkTest, WrongCredentialsAndAttemptsAreRefused) {
  const std::string id = Submit();
  const auto process = launcher_.Wait(0);
  EXPECT_EQ(Attach(Hello(id, 1, "guess"))->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Attach(Hello(id, 1, ""))->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Attach(Hello(id, 2, process.request.one_time_token))->WaitForClose().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Attach(Hello(TestId(9), 1, process.request.one_time_token))->WaitForClose().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Attach(Hello("no id", 1, "x"))->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
  v1::WorkerHello newer = Hello(id, 1, process.request.one_time_token);
  newer.set_min_protocol(2);
  newer.set_max_protocol(3);
  const absl::Status status = Attach(newer)->WaitForClose();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("protocol 2 to 3"));
  Settle();
  EXPECT_EQ(Get(id)->state(), v1::Job::STARTING);
}

TEST_F(ControllerLinkTest, TheTokenIsWorthNothingOnceTheSessionKeyWasUsed) {
  const std::string id = Submit();
  const auto process = launcher_.Wait(0);
  const std::string token = process.request.one_time_token;
  auto lost = AttachLaunched(0);
  // The welcome may not have arrived: the worker may come with its token again.
  auto worker = Attach(Hello(id, 1, token));
  const std::string key = worker->WaitForWelcome().session_key();
  EXPECT_EQ(lost->WaitForClose().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(key, lost->WaitForWelcome().session_key());
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_EQ(Attach(Hello(id, 1, token))->WaitForClose().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_FALSE(worker->closed());
  auto again = Attach(Hello(id, 1, key));
  EXPECT_EQ(again->WaitForWelcome().session_key(), key);
}

TEST_F(ControllerLinkTest, MessagesOfASupersededStreamAreIgnored) {
  const std::string id = Submit();
  auto old = AttachLaunched(0);
  auto worker = Attach(Hello(id, 1, old->WaitForWelcome().session_key()));
  worker->WaitForWelcome();
  SendStep(old, 1, 77);
  controller_->WorkerDisconnected(old);
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_EQ(Get(id)->summary().step(), 1);
}

TEST_F(ControllerLinkTest, OnlySecretsHashesAreStored) {
  const std::string id = Submit();
  const std::string token = launcher_.Wait(0).request.one_time_token;
  const std::string key = AttachLaunched(0)->WaitForWelcome().session_key();
  Settle();
  const auto record = store_->Await([&](const Database& database) { return database.FindJob(id); });
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->session_key_hash.size(), 32u);
  EXPECT_EQ(record->session_key_hash.find(key), std::string::npos);
  EXPECT_EQ(record->token_hash.find(token), std::string::npos);
}

TEST_F(ControllerLinkTest, AWorkerCannotForgeStateChanges) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  v1::WorkerMessage message;
  message.mutable_event()->set_number(1);
  message.mutable_event()->mutable_event()->mutable_state_change()->set_to(v1::Job::SUCCEEDED);
  controller_->WorkerMessage(worker, message);
  SendStep(worker, 2, 2);
  EXPECT_TRUE(worker->WaitForAck(2));
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  EXPECT_EQ(States(id).back(), v1::Job::RUNNING);
  ExpectGapFree(id);
}

// The daemon reads the folder of that name.
TEST_F(ControllerLinkTest, AWorkerCannotCallACheckpointByAPath) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  uint64_t number = 0;
  for (const char* name : {"../other/step-1", "", "step-", "step-1/..", "/etc"}) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(++number);
    message.mutable_event()->mutable_event()->mutable_checkpoint()->set_checkpoint(name);
    controller_->WorkerMessage(worker, message);
  }
  EXPECT_TRUE(worker->WaitForAck(number));
  EXPECT_EQ(Get(id)->summary().checkpoint(), "");
  EXPECT_THAT(Logged(), Contains(HasSubstr("event 1 of its worker tells of a checkpoint '../other/step-1'")));
  v1::WorkerMessage message;
  message.mutable_event()->set_number(++number);
  message.mutable_event()->mutable_event()->mutable_checkpoint()->set_checkpoint("step-1");
  controller_->WorkerMessage(worker, message);
  EXPECT_TRUE(worker->WaitForAck(number));
  EXPECT_EQ(Get(id)->summary().checkpoint(), "step-1");
  ExpectGapFree(id);
}

TEST_F(ControllerLinkTest, AWorkerCannotTellOfStepsThatNoJobHas) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 7);
  uint64_t number = 1;
  const auto send = [&](const std::function<void(v1::JobEvent&)>& make) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(++number);
    make(*message.mutable_event()->mutable_event());
    controller_->WorkerMessage(worker, message);
  };
  const auto checkpoint_at = [&](int64_t step) {
    send([&](v1::JobEvent& event) {
      event.mutable_checkpoint()->set_checkpoint("step-1");
      event.mutable_checkpoint()->set_step(step);
    });
  };
  constexpr int64_t kMost = int64_t{1} << 40;
  for (const int64_t step : {int64_t{-1}, kMost + 1, std::numeric_limits<int64_t>::max()}) {
    checkpoint_at(step);
    send([&](v1::JobEvent& event) { event.mutable_step()->set_first_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_step()->set_last_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_step()->add_phases()->set_steps_applied(step); });
    send([&](v1::JobEvent& event) { event.mutable_step()->add_phases()->set_steps_skipped(step); });
    send([&](v1::JobEvent& event) {
      event.mutable_checkpoint()->set_checkpoint("step-1");
      event.mutable_checkpoint()->add_phases()->set_steps_skipped(step);
    });
    send([&](v1::JobEvent& event) { event.mutable_overflow_skip()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_loss_scale_change()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_precision_change()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_gradient_diagnostics()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_evaluation()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_rewound()->set_to_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_artifact()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_text_sample()->set_step(step); });
    send([&](v1::JobEvent& event) { event.mutable_bench_cell()->set_index(step); });
    send([&](v1::JobEvent& event) { event.mutable_step_profile()->set_last_step(step); });
  }
  EXPECT_TRUE(worker->WaitForAck(number));
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.last_sequence(), 4u) << "created, started, running, and the one report";
  EXPECT_EQ(job.summary().step(), 7);
  EXPECT_EQ(job.summary().checkpoint(), "");
  EXPECT_THAT(Logged(), Contains(HasSubstr("event 2 of its worker tells of step -1, which no job has")));
  const auto charged = [&] {
    Settle();
    const auto record = store_->Await([&](const Database& database) { return database.FindJob(id); });
    EXPECT_TRUE(record.ok()) << record.status();
    return record->charged_at_checkpoints;
  };
  EXPECT_TRUE(charged().empty());
  checkpoint_at(kMost);
  EXPECT_TRUE(worker->WaitForAck(number));
  EXPECT_EQ(Get(id)->summary().checkpoint(), "step-1");
  EXPECT_EQ(charged().count(kMost), 1u);
}

TEST_F(ControllerLinkTest, ASecondHelloEndsTheStream) {
  Submit();
  auto worker = AttachLaunched(0);
  v1::WorkerMessage message;
  message.mutable_hello();
  controller_->WorkerMessage(worker, message);
  EXPECT_EQ(worker->WaitForClose().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerLinkTest, AReconnectWithinTheDaemonsLifeChangesNoState) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  const std::string key = worker->WaitForWelcome().session_key();
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  controller_->WorkerDisconnected(worker);
  auto again = Attach(Hello(id, 1, key));
  EXPECT_EQ(again->WaitForWelcome().acknowledged_number(), 1u);
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  EXPECT_EQ(Get(id)->last_sequence(), 4u);
}

TEST_F(ControllerLinkTest, AnEvaluationIsProgressAndWritesNothing) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  Advance(absl::Seconds(7));
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  Settle();
  AwaitProgressNow(id);
  const int writes = writes_;
  // It takes no step, and evaluates nothing, as a worker of an older build tells always.
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 0), 20);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 0), 40);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 64), 0);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 128), 0);
  // The evaluation hangs, or is over.
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 128), 20);
  // A stream that ends takes nothing away from the attempt.
  controller_->WorkerDisconnected(worker);
  const std::string key = worker->WaitForWelcome().session_key();
  Settle();
  EXPECT_EQ(writes_, writes);
  auto again = Attach(Hello(id, 1, key));
  again->WaitForWelcome();
  EXPECT_EQ(SecondsWithoutProgressAfter(id, again, 128), 40);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, again, 192), 0);
}

TEST_F(ControllerLinkTest, EachAttemptCountsWhatItEvaluatesAnew) {
  const std::string id = Submit();
  auto first = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  AwaitProgressNow(id);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, first, 1000), 0);
  EndWorker(first, 0, {1, 0});
  WaitFor(id, v1::Job::RETRYING);
  Advance(absl::Minutes(10));
  auto second = AttachLaunched(1);
  WaitFor(id, v1::Job::RUNNING);
  AwaitProgressNow(id);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, second, 0), 20);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, second, 8), 0);
}

TEST_F(ControllerLinkTest, EvaluatedSamplesThatCannotBeAreNoProgress) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  AwaitProgressNow(id);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, kLeast), 20);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, -1), 40);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 64), 0);
  // To and fro between two numbers gets nowhere.
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 32), 20);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, 64), 40);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, kMost), 0);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, kLeast), 20);
  EXPECT_EQ(SecondsWithoutProgressAfter(id, worker, kMost), 40);
  // It is a worker like any other, and its steps count.
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  AwaitProgressNow(id);
  SendFinished(worker, v1::WorkerFinished::SUCCEEDED, 1);
  WaitFor(id, v1::Job::SUCCEEDED);
}

}  // namespace
}  // namespace ampd
