// Profiles that running jobs are asked for: who is answered with what, and when.
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

class ControllerProfileTest : public ControllerTest {
 protected:
  using Answer = std::shared_future<absl::StatusOr<v1::StepProfile>>;

  // With `leave`: what to call when the caller goes away.
  Answer Ask(const std::string& id, int64_t steps, std::function<void()>* leave = nullptr) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::StepProfile>>>();
    v1::ProfileJobRequest request;
    request.set_job_id(id);
    request.set_steps(steps);
    request.set_kernels(steps == 30);
    auto left = controller_->ProfileJob(request, [promise](auto result) { promise->set_value(std::move(result)); });
    if (leave != nullptr) *leave = std::move(left);
    return promise->get_future().share();
  }
  // Steps that the worker was asked to profile, in order, once there are `count`.
  static std::vector<int64_t> Asked(const std::shared_ptr<FakeConnection>& connection, size_t count) {
    std::vector<int64_t> asked;
    connection->WaitUntil([&](const auto& messages) {
      asked.clear();
      for (const v1::DaemonMessage& message : messages) {
        if (message.command().kind() != v1::DaemonCommand::PROFILE) continue;
        EXPECT_EQ(message.command().profile_kernels(), message.command().profile_steps() == 30);
        asked.push_back(message.command().profile_steps());
      }
      return asked.size() >= count;
    });
    return asked;
  }
  void SendProfile(const std::shared_ptr<FakeConnection>& connection, uint64_t number, int64_t last_step) {
    v1::WorkerMessage message;
    message.mutable_event()->set_number(number);
    v1::StepProfile& profile = *message.mutable_event()->mutable_event()->mutable_step_profile();
    profile.set_first_step(1);
    profile.set_last_step(last_step);
    controller_->WorkerMessage(connection, message);
  }
};

TEST_F(ControllerProfileTest, AnswersAllWhoAskWithTheNextProfile) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  const Answer first = Ask(id, 20);
  const Answer second = Ask(id, 30);
  EXPECT_EQ(Asked(worker, 2), (std::vector<int64_t>{20, 30}));
  Settle();
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  SendProfile(worker, 1, 20);
  for (const Answer& answer : {first, second}) {
    ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
    ASSERT_TRUE(answer.get().ok()) << answer.get().status();
    EXPECT_EQ(answer.get()->last_step(), 20);
  }
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
}

TEST_F(ControllerProfileTest, WaitersAreCounted) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  std::vector<Answer> waiting;
  for (int i = 0; i < 16; ++i) waiting.push_back(Ask(id, 5));
  EXPECT_EQ(Ask(id, 5).get().status().code(), absl::StatusCode::kResourceExhausted);
  SendProfile(worker, 1, 5);
  for (const Answer& answer : waiting) EXPECT_TRUE(answer.get().ok());
  Ask(id, 5);
  EXPECT_EQ(Asked(worker, 17).size(), 17u);
}

TEST_F(ControllerProfileTest, WhoGoesAwayLeavesAPlace) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  std::vector<std::function<void()>> leave(16);
  std::vector<Answer> waiting;
  for (std::function<void()>& one : leave) waiting.push_back(Ask(id, 5, &one));
  // Harmless, though asked for more than once.
  leave[0]();
  leave[0]();
  EXPECT_EQ(waiting[0].get().status().code(), absl::StatusCode::kCancelled);
  const Answer last = Ask(id, 5);
  EXPECT_EQ(Ask(id, 5).get().status().code(), absl::StatusCode::kResourceExhausted);
  Asked(worker, 17);
  SendProfile(worker, 1, 5);
  EXPECT_TRUE(last.get().ok()) << last.get().status();
  for (size_t i = 1; i < waiting.size(); ++i) EXPECT_TRUE(waiting[i].get().ok());
  // Nothing comes of it once there is an answer.
  for (const std::function<void()>& one : leave) one();
  Settle();
  // Who has gone before the job was found takes none.
  std::function<void()> at_once;
  const Answer gone = Ask("01hq3v7m", 5, &at_once);
  at_once();
  EXPECT_FALSE(gone.get().ok());
}

TEST_F(ControllerProfileTest, OfAJobThatMeasuresIsRefused) {
  CreateJobParams params = Params();
  params.spec.mutable_bench()->add_batch_sizes(8);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  EXPECT_THAT(std::string(Ask(id, 5).get().status().message()), HasSubstr("measures"));
}

TEST_F(ControllerProfileTest, OfAJobThatStartsWaitsForItsWorker) {
  const std::string id = Submit();
  WaitFor(id, v1::Job::STARTING);
  const Answer answer = Ask(id, 4);
  auto worker = AttachLaunched(0);
  EXPECT_EQ(Asked(worker, 1), std::vector<int64_t>{4});
  SendProfile(worker, 1, 4);
  ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
  EXPECT_TRUE(answer.get().ok()) << answer.get().status();
}

TEST_F(ControllerProfileTest, IsAskedForAgainOnANewConnection) {
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  const std::string key = worker->WaitForWelcome().session_key();
  const Answer answer = Ask(id, 7);
  Asked(worker, 1);
  controller_->WorkerDisconnected(worker);
  auto again = Attach(Hello(id, 1, key));
  EXPECT_EQ(Asked(again, 1), std::vector<int64_t>{7});
  SendProfile(again, 1, 9);
  ASSERT_EQ(answer.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(answer.get()->last_step(), 9);
  // Nobody waits any more.
  controller_->WorkerDisconnected(again);
  auto third = Attach(Hello(id, 1, key));
  third->WaitForWelcome();
  Settle();
  EXPECT_TRUE(Asked(third, 0).empty());
}

TEST_F(ControllerProfileTest, OfAJobThatDoesNotRunIsRefused) {
  const std::string running = Submit();
  const std::string queued = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(running, v1::Job::RUNNING);
  const absl::Status refused = Ask(queued, 5).get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("QUEUED"));
  EXPECT_EQ(Ask("01hq3v7m", 5).get().status().code(), absl::StatusCode::kNotFound);
  const Answer waiting = Ask(running, 5);
  Asked(worker, 1);
  EndWorker(worker, 0, {-1, 11});
  ASSERT_EQ(waiting.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(waiting.get().status().message()), HasSubstr("ended before"));
}

}  // namespace
}  // namespace ampd
