// The outbox and the link protocol together against a daemon model that loses connections at random.
#include "server/worker/link_protocol.h"

#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

v1::JobEvent LogEvent(int i) {
  v1::JobEvent event;
  event.mutable_log()->set_text("event " + std::to_string(i));
  return event;
}

v1::DaemonMessage Welcome(uint64_t acknowledged, const std::string& key = "key") {
  v1::DaemonMessage message;
  message.mutable_welcome()->set_protocol(1);
  message.mutable_welcome()->set_session_key(key);
  message.mutable_welcome()->set_acknowledged_number(acknowledged);
  return message;
}

v1::DaemonMessage Acknowledgement(uint64_t number) {
  v1::DaemonMessage message;
  message.set_acknowledged_number(number);
  return message;
}

struct Link {
  explicit Link(OutboxLimits limits = {}) : outbox(limits, testing::TempDir() + "/link_spool", [] {}) {}

  v1::WorkerMessage Next() {
    auto message = protocol.NextMessage();
    EXPECT_TRUE(message.ok()) << message.status();
    return message.ok() && *message ? **message : v1::WorkerMessage();
  }
  // A connection as far as its welcome.
  v1::WorkerHello Connect(uint64_t acknowledged) {
    protocol.Connected();
    const v1::WorkerHello hello = Next().hello();
    EXPECT_TRUE(protocol.OnMessage(Welcome(acknowledged)).ok());
    return hello;
  }

  EventOutbox outbox;
  LinkProtocol protocol{WorkerIdentity{"job", 2, "token", 7}, &outbox};
};

TEST(LinkProtocol, SaysHelloThenWaitsForTheWelcome) {
  Link link;
  ASSERT_TRUE(link.outbox.Append(LogEvent(1)).ok());
  link.protocol.Connected();
  const v1::WorkerHello hello = link.Next().hello();
  EXPECT_EQ(hello.job_id(), "job");
  EXPECT_EQ(hello.attempt(), 2u);
  EXPECT_EQ(hello.credential(), "token");
  EXPECT_EQ(hello.pid(), 7);
  EXPECT_EQ(link.Next().body_case(), v1::WorkerMessage::BODY_NOT_SET);
  ASSERT_TRUE(link.protocol.OnMessage(Welcome(0)).ok());
  EXPECT_EQ(link.Next().event().number(), 1u);
}

// Whatever an event quotes, it reads back.
TEST(LinkProtocol, SendsTextsThatAreNoUtf8) {
  Link link;
  v1::JobEvent event;
  event.mutable_corrupt_sample()->set_file("a/caf\xe9.png");
  ASSERT_TRUE(link.outbox.Append(event).ok());
  link.Connect(0);
  EXPECT_EQ(link.Next().event().event().corrupt_sample().file(), "a/caf\xef\xbf\xbd.png");
}

TEST(LinkProtocol, PresentsTheSessionKeyOnceItHasOne) {
  Link link;
  EXPECT_EQ(link.Connect(0).credential(), "token");
  EXPECT_EQ(link.Connect(0).credential(), "key");
}

TEST(LinkProtocol, SendsAgainAfterAReconnectWhatWasNotAcknowledged) {
  Link link;
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(link.outbox.Append(LogEvent(i)).ok());
  link.Connect(0);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(link.Next().event().number(), i);
  ASSERT_TRUE(link.protocol.OnMessage(Acknowledgement(1)).ok());
  link.Connect(2);
  EXPECT_EQ(link.Next().event().number(), 3u);
  EXPECT_EQ(link.Next().body_case(), v1::WorkerMessage::BODY_NOT_SET);
}

TEST(LinkProtocol, SendsFinishedLastAndOnEachConnectionUntilGoodbye) {
  Link link;
  v1::WorkerFinished finished;
  finished.set_outcome(v1::WorkerFinished::SUCCEEDED);
  ASSERT_TRUE(link.outbox.Append(LogEvent(1)).ok());
  link.protocol.SetFinished(finished);
  link.Connect(0);
  EXPECT_TRUE(link.Next().has_event());
  EXPECT_EQ(link.Next().finished().last_event_number(), 1u);
  EXPECT_EQ(link.Next().body_case(), v1::WorkerMessage::BODY_NOT_SET);
  link.Connect(1);
  EXPECT_TRUE(link.Next().has_finished());
  v1::DaemonMessage goodbye;
  goodbye.mutable_goodbye();
  ASSERT_TRUE(link.protocol.OnMessage(goodbye).ok());
  EXPECT_TRUE(link.protocol.goodbye());
}

TEST(LinkProtocol, RefusesADaemonThatBreaksTheProtocol) {
  Link link;
  link.protocol.Connected();
  EXPECT_THAT(std::string(link.protocol.OnMessage(Acknowledgement(1)).message()), HasSubstr("not a welcome"));
  v1::DaemonMessage other = Welcome(0);
  other.mutable_welcome()->set_protocol(9);
  EXPECT_THAT(std::string(link.protocol.OnMessage(other).message()), HasSubstr("version 9"));
  ASSERT_TRUE(link.protocol.OnMessage(Welcome(0)).ok());
  EXPECT_THAT(std::string(link.protocol.OnMessage(Welcome(0)).message()), HasSubstr("second welcome"));
  v1::DaemonMessage goodbye;
  goodbye.mutable_goodbye();
  EXPECT_THAT(std::string(link.protocol.OnMessage(goodbye).message()), HasSubstr("not over"));
}

TEST(LinkProtocol, AnAcknowledgementOfWhatWasNeverSentIsHarmless) {
  Link link;
  ASSERT_TRUE(link.outbox.Append(LogEvent(1)).ok());
  link.Connect(1000);
  EXPECT_EQ(link.outbox.acknowledged_number(), 1u);
  ASSERT_TRUE(link.outbox.Append(LogEvent(2)).ok());
  EXPECT_EQ(link.Next().event().number(), 2u);
}

TEST(LinkProtocol, ToADaemonThatForgotEventsItSendsNoMore) {
  Link link;
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(link.outbox.Append(LogEvent(i)).ok());
  link.Connect(0);
  EXPECT_TRUE(link.Next().has_event());
  ASSERT_TRUE(link.protocol.OnMessage(Acknowledgement(2)).ok());
  EXPECT_FALSE(link.protocol.forgotten());
  link.Connect(1);
  EXPECT_TRUE(link.protocol.forgotten());
  EXPECT_EQ(link.Next().body_case(), v1::WorkerMessage::BODY_NOT_SET);
  link.protocol.SetHeartbeat({});
  EXPECT_TRUE(link.Next().has_heartbeat());
  link.protocol.SetFinished({});
  EXPECT_EQ(link.Next().finished().last_event_number(), 1u);
  EXPECT_EQ(link.Next().body_case(), v1::WorkerMessage::BODY_NOT_SET);
  // What follows is dropped, whatever the next daemon has.
  link.Connect(2);
  EXPECT_TRUE(link.protocol.forgotten());
  EXPECT_EQ(link.Next().finished().last_event_number(), 2u);
}

TEST(EventOutbox, ATrainerThatWaitsForRoomGoesOnWhenThereIsSome) {
  Link link(OutboxLimits{.memory_bytes = 1, .spool_bytes = 1});
  ASSERT_TRUE(link.outbox.Append(LogEvent(1)).ok());
  std::thread trainer([&link] { EXPECT_TRUE(link.outbox.Append(LogEvent(2)).ok()); });
  link.Connect(0);
  EXPECT_EQ(link.Next().event().number(), 1u);
  ASSERT_TRUE(link.protocol.OnMessage(Acknowledgement(1)).ok());
  trainer.join();
  EXPECT_EQ(link.Next().event().number(), 2u);
}

// One that the daemon cannot receive would be sent again for ever, and nothing behind it.
TEST(EventOutbox, AnEventThatIsTooLongIsAWarning) {
  Link link(OutboxLimits{.event_bytes = 1000});
  v1::JobEvent event;
  event.mutable_time()->set_seconds(7);
  event.mutable_gradient_diagnostics()->add_tensors()->set_tensor("a");
  ASSERT_TRUE(link.outbox.Append(event).ok());
  event.mutable_gradient_diagnostics()->mutable_tensors(0)->set_tensor(std::string(1000, 'a'));
  ASSERT_TRUE(link.outbox.Append(event).ok());
  ASSERT_TRUE(link.outbox.Append(LogEvent(3)).ok());
  link.Connect(0);
  EXPECT_TRUE(link.Next().event().event().has_gradient_diagnostics());
  const v1::WorkerEvent left_out = link.Next().event();
  EXPECT_EQ(left_out.number(), 2u);
  EXPECT_EQ(left_out.event().time().seconds(), 7);
  EXPECT_EQ(left_out.event().log().severity(), v1::LogLine::WARNING);
  EXPECT_THAT(left_out.event().log().text(), HasSubstr("(gradient_diagnostics) was left out"));
  EXPECT_THAT(left_out.event().log().text(), HasSubstr("at most 1000"));
  EXPECT_EQ(link.Next().event().event().log().text(), "event 3");
}

// Its length is that of what is sent: each byte that is no UTF-8 becomes three.
TEST(EventOutbox, NoEventIsTooLongForTheStream) {
  Link link;
  v1::JobEvent event;
  for (const size_t bytes : {1 << 20, 3 << 20, 30 << 20}) {
    event.mutable_log()->set_text(std::string(bytes, '\xff'));
    ASSERT_TRUE(link.outbox.Append(event).ok());
  }
  link.Connect(0);
  for (int i = 0; i < 3; ++i) {
    const v1::WorkerMessage message = link.Next();
    EXPECT_EQ(message.event().number(), static_cast<uint64_t>(i + 1));
    EXPECT_LT(message.ByteSizeLong(), size_t{4} << 20);
    EXPECT_LT(message.ByteSizeLong(), size_t{kMaxLinkMessageBytes});
  }
}

TEST(EventOutbox, CloseEndsEveryWait) {
  Link link(OutboxLimits{.memory_bytes = 1, .spool_bytes = 1});
  ASSERT_TRUE(link.outbox.Append(LogEvent(1)).ok());
  absl::Status result;
  std::thread trainer([&] { result = link.outbox.Append(LogEvent(2)); });
  link.outbox.Close(absl::AbortedError("gone"));
  trainer.join();
  EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
}

// A daemon that stores events, drops duplicates and answers late or never; the connection breaks at random, and with it
// whatever is on its way in either direction.
class DaemonModel {
 public:
  void Connect() {
    to_daemon_.clear();
    to_worker_.clear();
  }

  void Receive(const v1::WorkerMessage& message) { to_daemon_.push_back(message); }

  void Step(std::mt19937& random) {
    if (to_daemon_.empty()) return;
    const v1::WorkerMessage message = to_daemon_.front();
    to_daemon_.pop_front();
    if (message.has_hello()) to_worker_.push_back(Welcome(stored_.size()));
    if (message.has_event()) Store(message.event());
    if (message.has_event() && random() % 4 == 0) to_worker_.push_back(Acknowledgement(stored_.size()));
    if (message.has_finished()) {
      EXPECT_EQ(message.finished().last_event_number(), stored_.size());
      v1::DaemonMessage goodbye;
      goodbye.mutable_goodbye();
      to_worker_.push_back(goodbye);
    }
  }

  std::deque<v1::DaemonMessage>& to_worker() { return to_worker_; }
  const std::vector<std::string>& stored() const { return stored_; }

 private:
  void Store(const v1::WorkerEvent& event) {
    if (event.number() <= stored_.size()) return;
    ASSERT_EQ(event.number(), stored_.size() + 1) << "a gap";
    stored_.push_back(event.event().log().text());
  }

  std::deque<v1::WorkerMessage> to_daemon_;
  std::deque<v1::DaemonMessage> to_worker_;
  std::vector<std::string> stored_;
};

class RandomDisconnects : public testing::TestWithParam<int> {};

TEST_P(RandomDisconnects, LoseNothingAndRepeatNothing) {
  constexpr int kEvents = 400;
  std::mt19937 random(GetParam());
  // Small enough that memory, disk and acknowledgements interleave.
  Link link(OutboxLimits{.memory_bytes = 100, .spool_bytes = 1 << 20});
  DaemonModel daemon;
  link.protocol.Connected();
  int appended = 0;
  for (int64_t steps = 0; !link.protocol.goodbye(); ++steps) {
    ASSERT_LT(steps, 2'000'000) << "no progress";
    switch (random() % 8) {
      case 0:
        if (appended < kEvents) {
          ASSERT_TRUE(link.outbox.Append(LogEvent(++appended)).ok());
        }
        if (appended == kEvents) link.protocol.SetFinished(v1::WorkerFinished());
        break;
      case 1:
      case 2:
      case 3: {
        const v1::WorkerMessage message = link.Next();
        if (message.body_case() != v1::WorkerMessage::BODY_NOT_SET) daemon.Receive(message);
        break;
      }
      case 4:
      case 5:
        daemon.Step(random);
        break;
      case 6:
        if (daemon.to_worker().empty()) break;
        ASSERT_TRUE(link.protocol.OnMessage(daemon.to_worker().front()).ok());
        daemon.to_worker().pop_front();
        break;
      case 7:
        if (random() % 40 != 0) break;
        daemon.Connect();
        link.protocol.Connected();
        break;
    }
    // A full memory that nobody acknowledges would stop the exchange: the daemon acknowledges when idle.
    if (random() % 16 == 0 && link.protocol.welcomed()) link.outbox.Acknowledge(daemon.stored().size());
  }
  ASSERT_EQ(daemon.stored().size(), static_cast<size_t>(kEvents));
  for (int i = 0; i < kEvents; ++i) EXPECT_EQ(daemon.stored()[i], "event " + std::to_string(i + 1));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomDisconnects, testing::Range(0, 25));

}  // namespace
}  // namespace ampd
