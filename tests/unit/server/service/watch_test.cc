// Which events a WatchJob call gives.
#include <string>
#include <vector>

#include "tests/unit/server/service/service_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// More than the service looks through at a time.
constexpr int kLines = 2500;

class WatchTest : public ServiceFixture {
 protected:
  // A job that fails and is retried: each attempt says kLines lines, "1 0", "1 1" and so on, and ends FAILED.
  void MakeJob() {
    Train([this](FakeTrainer& trainer) -> absl::StatusOr<train::Outcome> {
      const int attempt = ++attempts_;
      for (int line = 0; line < kLines; ++line) EXPECT_TRUE(trainer.Emit(absl::StrCat(attempt, " ", line)).ok());
      return absl::InvalidArgumentError("no good");
    });
    id_ = CreateGood();
    std::vector<v1::JobEvent> events;
    ASSERT_TRUE(Watch(id_, 0, &events).ok());
    v1::RetryJobRequest retry;
    retry.set_job_id(id_);
    grpc::ClientContext context;
    v1::Job job;
    const grpc::Status retried = stub_->RetryJob(&context, retry, &job);
    ASSERT_TRUE(retried.ok()) << retried.error_message();
    events.clear();
    ASSERT_TRUE(Watch(id_, 0, &events).ok());
    ASSERT_EQ(attempts_, 2);
    last_ = events.back().sequence();
  }

  std::vector<v1::JobEvent> Asked(v1::WatchJobRequest request, const std::vector<std::string>& kinds = {}) {
    request.set_job_id(id_);
    request.mutable_kinds()->Assign(kinds.begin(), kinds.end());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub_->WatchJob(&context, request);
    std::vector<v1::JobEvent> events;
    v1::JobEvent event;
    while (reader->Read(&event)) events.push_back(event);
    status_ = reader->Finish();
    return events;
  }
  static v1::WatchJobRequest Tail(int64_t tail, uint64_t until = 0) {
    v1::WatchJobRequest request;
    request.set_tail(tail);
    request.set_until_sequence(until);
    return request;
  }
  static std::vector<v1::Job::State> States(const std::vector<v1::JobEvent>& events) {
    std::vector<v1::Job::State> states;
    for (const v1::JobEvent& event : events) {
      if (event.has_state_change()) states.push_back(event.state_change().to());
    }
    return states;
  }

  std::atomic<int> attempts_{0};
  std::string id_;
  uint64_t last_ = 0;
  grpc::Status status_;
};

TEST_F(WatchTest, TheNewestOfAKindAreFoundOverAllAttempts) {
  MakeJob();
  // Between the second and the third newest lie all lines of an attempt.
  std::vector<v1::JobEvent> events = Asked(Tail(3), {"state_change"});
  EXPECT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_THAT(States(events), ElementsAre(v1::Job::STARTING, v1::Job::RUNNING, v1::Job::FAILED));
  EXPECT_EQ(events.size(), 3u);
  EXPECT_EQ(events.back().sequence(), last_);
  events = Asked(Tail(kLines + 2), {"log"});
  ASSERT_EQ(events.size(), static_cast<size_t>(kLines) + 2);
  EXPECT_EQ(events[0].log().text(), absl::StrCat("1 ", kLines - 2));
  EXPECT_EQ(events[2].log().text(), "2 0");
  // Without kinds, and of more than there are.
  events = Asked(Tail(1));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].sequence(), last_);
  EXPECT_EQ(Asked(Tail(int64_t{1} << 60)).size(), last_);
  EXPECT_EQ(Asked(Tail(1 << 20), {"log"}).size(), 2 * static_cast<size_t>(kLines));
  EXPECT_THAT(Asked(Tail(0)), IsEmpty());
  EXPECT_TRUE(status_.ok());
  // None of it lies before what was seen.
  v1::WatchJobRequest seen = Tail(5);
  seen.set_after_sequence(last_ - 2);
  EXPECT_EQ(Asked(seen).size(), 2u);
}

TEST_F(WatchTest, AStreamEndsWithTheEventThatItWasToEndWith) {
  MakeJob();
  constexpr uint64_t kUntil = 1000;
  std::vector<v1::JobEvent> events = Asked(Tail(2, kUntil), {"state_change"});
  EXPECT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_THAT(States(events), ElementsAre(v1::Job::STARTING, v1::Job::RUNNING));
  // By it the client knows that it has all; its kind was not asked for.
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].sequence(), kUntil);
  EXPECT_TRUE(events[2].has_log());
  for (const int64_t tail : {0, 1}) {
    events = Asked(Tail(tail, kUntil));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].sequence(), kUntil);
  }
  v1::WatchJobRequest request;
  request.set_until_sequence(kUntil);
  request.set_after_sequence(kUntil - 2);
  EXPECT_EQ(Asked(request).size(), 2u);
  request.set_after_sequence(kUntil);
  EXPECT_THAT(Asked(request), IsEmpty());
  EXPECT_TRUE(status_.ok()) << status_.error_message();
}

TEST_F(WatchTest, WhatFollowsATailIsGivenToo) {
  v1::CreateJobRequest create = GoodRequest();
  create.mutable_spec()->mutable_not_before()->set_seconds(absl::ToUnixSeconds(absl::Now() + absl::Hours(1)));
  Train([](FakeTrainer&) -> absl::StatusOr<train::Outcome> { return train::Outcome::kCompleted; });
  v1::Job job;
  ASSERT_TRUE(Create(create, &job).ok());
  v1::WatchJobRequest request = Tail(1);
  request.set_job_id(job.id());
  request.add_kinds("state_change");
  grpc::ClientContext context, cancel_context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto reader = stub_->WatchJob(&context, request);
  std::vector<v1::JobEvent> events(1);
  ASSERT_TRUE(reader->Read(&events[0]));
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.id());
  ASSERT_TRUE(stub_->CancelJob(&cancel_context, cancel, &job).ok());
  v1::JobEvent event;
  while (reader->Read(&event)) events.push_back(event);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(States(events), ElementsAre(v1::Job::QUEUED, v1::Job::CANCELLED));
}

TEST_F(WatchTest, WhatCannotBeMeantIsRefused) {
  Train([](FakeTrainer&) -> absl::StatusOr<train::Outcome> { return train::Outcome::kCompleted; });
  id_ = CreateGood();
  Asked({}, {"log", "sequence"});
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status_.error_message(), HasSubstr("kinds: \"sequence\" is no kind of event"));
  Asked(Tail(-1));
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status_.error_message(), HasSubstr("tail: must be at least 0, is -1"));
}

}  // namespace
}  // namespace ampd
