#include "client/watch.h"

#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/client/fake_training_service.h"

namespace ampd::client {
namespace {

class WatchTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_.events = ExampleEvents(20, v1::Job::SUCCEEDED);
    connection_ = *Connection::Open(fake_.address());
    options_.job_id = "job";
    options_.first_delay = absl::Milliseconds(1);
    options_.longest_delay = absl::Milliseconds(20);
  }

  absl::StatusOr<v1::StateChange> Watch() {
    return WatchToTheEnd(connection_.get(), options_, &interrupt_,
                         {.on_event =
                              [this](const v1::JobEvent& event) {
                                seen_.push_back(event.sequence());
                                if (seen_.size() == 1) first_seen_.set_value();
                                if (seen_.size() == interrupt_after_) interrupt_.Raise();
                              },
                          .on_lost = [this](const absl::Status& status) { lost_.push_back(status); },
                          .on_resumed = [this] { ++resumed_; }});
  }

  // The sequence numbers first..last.
  static std::vector<uint64_t> Range(uint64_t first, uint64_t last) {
    std::vector<uint64_t> range(last - first + 1);
    std::iota(range.begin(), range.end(), first);
    return range;
  }

  FakeTrainingService fake_;
  std::unique_ptr<Connection> connection_;
  WatchOptions options_;
  Interrupt interrupt_;
  size_t interrupt_after_ = SIZE_MAX;
  std::vector<uint64_t> seen_;
  std::promise<void> first_seen_;
  std::vector<absl::Status> lost_;
  int resumed_ = 0;
};

TEST_F(WatchTest, FollowsToTheEnd) {
  const absl::StatusOr<v1::StateChange> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->to(), v1::Job::SUCCEEDED);
  EXPECT_EQ(seen_, Range(1, 25));
  EXPECT_TRUE(lost_.empty());
}

TEST_F(WatchTest, StartsAfterTheSequenceGiven) {
  options_.after_sequence = 7;
  ASSERT_TRUE(Watch().ok());
  EXPECT_EQ(seen_, Range(8, 25));
}

TEST_F(WatchTest, ResumesDroppedStreamsWithoutLossOrRepeat) {
  fake_.streams = {{.until = 5, .status = absl::UnavailableError("drop")},
                   {.until = 5, .status = absl::UnavailableError("drop")},
                   {.until = 11, .status = absl::OkStatus()},
                   {.until = 24, .status = absl::CancelledError("shutting down")}};
  const absl::StatusOr<v1::StateChange> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(seen_, Range(1, 25));
  ASSERT_EQ(fake_.watched.size(), 5);
  EXPECT_EQ(fake_.watched[1].after_sequence(), 5);
  EXPECT_EQ(fake_.watched[3].after_sequence(), 11);
  EXPECT_EQ(fake_.watched[4].after_sequence(), 24);
  EXPECT_EQ(lost_.size(), 3) << "one for each loss, not for each attempt";
  EXPECT_EQ(resumed_, 3);
}

TEST_F(WatchTest, DropsWhatAServerRepeats) {
  fake_.events.insert(fake_.events.begin() + 3, fake_.events.begin(), fake_.events.begin() + 3);
  ASSERT_TRUE(Watch().ok());
  EXPECT_EQ(seen_, Range(1, 25));
}

TEST_F(WatchTest, TakesCompactedEvents) {
  fake_.events[9].set_first_sequence(4);
  fake_.events.erase(fake_.events.begin() + 3, fake_.events.begin() + 9);
  ASSERT_TRUE(Watch().ok());
  EXPECT_EQ(seen_.size(), 19);
}

TEST_F(WatchTest, NoticesAGap) {
  fake_.events.erase(fake_.events.begin() + 3, fake_.events.begin() + 5);
  const absl::StatusOr<v1::StateChange> end = Watch();
  EXPECT_TRUE(absl::IsDataLoss(end.status()));
  EXPECT_EQ(end.status().message(), "the server left out the events 4 to 5");
}

TEST_F(WatchTest, SurvivesAServerThatStopsAndComesBack) {
  fake_.streams = {{.until = 5, .hang = true}};
  std::thread restart([this] {
    // A server that stops before it was heard was never there.
    first_seen_.get_future().wait();
    fake_.Stop();
    fake_.Start();
  });
  const absl::StatusOr<v1::StateChange> end = Watch();
  restart.join();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(seen_, Range(1, 25));
  EXPECT_EQ(resumed_, 1);
}

TEST_F(WatchTest, ReportsAServerThatWasNeverThere) {
  fake_.Stop();
  EXPECT_TRUE(absl::IsUnavailable(Watch().status()));
  EXPECT_TRUE(lost_.empty());
}

TEST_F(WatchTest, GivesUpInTheEnd) {
  options_.give_up_after = absl::Milliseconds(50);
  fake_.streams = {{.until = 5, .status = absl::UnavailableError("drop")}};
  for (int i = 0; i < 1000; ++i) fake_.streams.push_back({.until = 5, .status = absl::UnavailableError("drop")});
  const absl::StatusOr<v1::StateChange> end = Watch();
  EXPECT_TRUE(absl::IsUnavailable(end.status()));
  EXPECT_EQ(end.status().message(), "gave up after 50ms: drop");
  EXPECT_EQ(seen_, Range(1, 5));
}

TEST_F(WatchTest, AQuietJobSurvivesARestartOfAServerThatHasAnsweredBefore) {
  options_.after_sequence = 25 - 1;
  const StreamScript lost = {.until = 24, .status = absl::UnavailableError("Socket closed")};
  fake_.streams = {lost};
  EXPECT_TRUE(absl::IsUnavailable(Watch().status())) << "it may be no ampd at all";
  ASSERT_TRUE(connection_->GetJob("job").ok());
  fake_.streams = {lost, lost, {.until = 24, .status = absl::CancelledError("Cancelling all calls")}};
  const absl::StatusOr<v1::StateChange> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(seen_, Range(25, 25));
}

TEST_F(WatchTest, AConnectionWithoutAnEventIsOneToo) {
  options_.after_sequence = 24;
  options_.longest_dial = absl::Milliseconds(60);
  options_.give_up_after = absl::Milliseconds(50);
  const StreamScript restart = {
      .until = 24, .status = absl::UnavailableError("Socket closed"), .quiet = absl::Milliseconds(80)};
  fake_.streams = {restart, restart, restart};
  const absl::StatusOr<v1::StateChange> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(lost_.size(), 3);
}

TEST_F(WatchTest, RefusalsAreFinal) {
  fake_.streams = {{.until = 5, .status = absl::UnavailableError("drop")},
                   {.until = 5, .status = absl::NotFoundError("no such job")}};
  EXPECT_TRUE(absl::IsNotFound(Watch().status()));
  EXPECT_EQ(fake_.watched.size(), 2);
}

TEST_F(WatchTest, EndsOnAnInterrupt) {
  interrupt_after_ = 4;
  fake_.streams = {{.until = 5, .hang = true}};
  EXPECT_TRUE(absl::IsCancelled(Watch().status()));
}

TEST_F(WatchTest, EndsAtItsDeadline) {
  options_.deadline = absl::Now() + absl::Milliseconds(50);
  fake_.streams = {{.until = 5, .hang = true}};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Watch().status()));
}

TEST_F(WatchTest, KnowsAJobWhoseEndWasSeenBefore) {
  options_.after_sequence = 25;
  fake_.job.set_state(v1::Job::FAILED);
  fake_.job.set_last_sequence(25);
  const absl::StatusOr<v1::StateChange> end = Watch();
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->to(), v1::Job::FAILED);
  EXPECT_TRUE(seen_.empty());
}

}  // namespace
}  // namespace ampd::client
