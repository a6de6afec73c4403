// Connections whose first reads are made elsewhere, as TLS's handshakes are. No step of one is made before a test says
// so: what is answered until then did not wait for any.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http/connections.h"
#include "server/http/fair_queue.h"
#include "server/http/listening_socket.h"
#include "tests/unit/server/http/raw_client.h"

namespace ampd {
namespace {

constexpr std::chrono::hours kHour{1};
constexpr char kRequest[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr char kAnswer[] = "answer";

// Plain text behind a handshake: twice the byte 'h', each in a read of its own.
class Handshaking final : public Transport {
 public:
  explicit Handshaking(int socket) : plain_(PlainTransport(socket)) {}

  IoResult Read(char* buffer, size_t size) override {
    if (steps_left_ == 0) return plain_->Read(buffer, size);
    const IoResult got = plain_->Read(buffer, 1);
    if (got.state != IoResult::State::kDone) return got;
    if (buffer[0] != 'h') return {IoResult::State::kFailed};
    --steps_left_;
    return {IoResult::State::kWantsRead};
  }
  IoResult Write(absl::string_view bytes) override { return plain_->Write(bytes); }
  IoResult SendEnd() override { return plain_->SendEnd(); }
  bool is_in_handshake() const override { return steps_left_ > 0; }
  bool is_tls() const override { return true; }
  bool has_certificate() const override { return false; }

 private:
  const std::unique_ptr<Transport> plain_;
  int steps_left_ = 2;
};

int LastNumberOf(int socket) {
  sockaddr_in from = {};
  socklen_t size = sizeof(from);
  // Of one that has left already: 0.
  getpeername(socket, reinterpret_cast<sockaddr*>(&from), &size);
  return static_cast<int>(ntohl(from.sin_addr.s_addr) & 0xff);
}

class HandshakesTest : public ::testing::Test {
 protected:
  ~HandshakesTest() override {
    if (!stopped_) connections_->Stop();
    queue_->Close();
    if (thread_.joinable()) thread_.join();
  }

  // Of a client one handshake is made at a time, and `waiting` wait for that. Clients 127.0.0.9 have none.
  void Start(size_t waiting, int max_connections = 100, std::chrono::milliseconds request_time = kHour) {
    queue_ = std::make_unique<FairQueue>(1, waiting);
    Connections::Options options;
    options.max_connections = max_connections;
    options.request_time = request_time;
    options.transport = [](int socket) -> std::unique_ptr<Transport> {
      if (LastNumberOf(socket) == 9) return PlainTransport(socket);
      return std::make_unique<Handshaking>(socket);
    };
    options.on_handshake = [this](std::unique_ptr<Connection> connection) {
      return queue_->Put(std::move(connection));
    };
    options.on_request = [](std::unique_ptr<Connection> connection) {
      connection->output = connection->reader.status().ok() ? kAnswer : "refused";
      return connection;
    };
    ListeningSocket listening = *Listen("127.0.0.1:0");
    address_ = listening.address;
    connections_ = *Connections::Start(std::move(listening.socket), std::move(options));
  }
  std::unique_ptr<Client> Begin(int from = 1) {
    auto client = std::make_unique<Client>(address_, from);
    EXPECT_TRUE(client->Send(absl::StrCat("hh", kRequest)));
    return client;
  }
  // By then all that was sent before was looked at.
  void ExpectOthersAreAnswered() { EXPECT_EQ(Exchange(address_, kRequest, 9), kAnswer); }
  // Of the next one in the queue, which is waited for. False: closed.
  bool MakeStep() {
    std::unique_ptr<Connection> connection = queue_->Take();
    if (connection == nullptr) return false;
    const std::string client = connection->client;
    ReadOnce(connection.get());
    ++steps_;
    connections_->GiveBack(std::move(connection));
    queue_->Done(client);
    return true;
  }
  void MakeAllSteps() {
    thread_ = std::thread([this] {
      while (MakeStep()) {
      }
    });
  }

  std::string address_;
  std::atomic<int> steps_{0};
  std::unique_ptr<FairQueue> queue_;
  std::unique_ptr<Connections> connections_;
  std::thread thread_;
  bool stopped_ = false;
};

TEST_F(HandshakesTest, ThoseOfOthersAreNotWaitedFor) {
  Start(100);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Begin());
  ExpectOthersAreAnswered();
  for (size_t i = 0; i < 2 * clients.size(); ++i) EXPECT_TRUE(MakeStep());
  for (const auto& client : clients) EXPECT_EQ(client->Read(), kAnswer);
}

TEST_F(HandshakesTest, WhatTheQueueDoesNotTakeComesLater) {
  Start(2);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(Begin());
  // Of two clients: one waits for its own alone.
  clients.push_back(Begin(2));
  ExpectOthersAreAnswered();
  MakeAllSteps();
  for (const auto& client : clients) EXPECT_EQ(client->Read(), kAnswer);
}

TEST_F(HandshakesTest, WhatHasBegunComesFirstThenTheNewest) {
  Start(1);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(Begin());
    ExpectOthersAreAnswered();
  }
  // The first found the queue empty; its second step waits for the first one of the last, which is in the queue by
  // then.
  std::vector<int> answered;
  for (const int next : {-1, -1, 0, 3, -1, -1, 2, 1}) {
    EXPECT_TRUE(MakeStep());
    ExpectOthersAreAnswered();
    if (next >= 0) {
      EXPECT_EQ(clients[static_cast<size_t>(next)]->Read(), kAnswer);
    }
    answered.push_back(next);
    for (int i = 0; i < 4; ++i) {
      const bool is_next = std::count(answered.begin(), answered.end(), i) > 0;
      EXPECT_TRUE(is_next || !clients[static_cast<size_t>(i)]->IsReadable(0)) << i;
    }
  }
}

TEST_F(HandshakesTest, StopsWhileSomeWait) {
  Start(1);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Begin());
  EXPECT_TRUE(MakeStep());
  ExpectOthersAreAnswered();
  connections_->Stop();
  queue_->Close();
  EXPECT_FALSE(MakeStep());
  for (const auto& client : clients) EXPECT_EQ(client->Read(), "");
  stopped_ = true;
}

TEST_F(HandshakesTest, AFloodPushesOutItsOwn) {
  Start(2, /*max_connections=*/8);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(Begin());
    ExpectOthersAreAnswered();
  }
  MakeAllSteps();
  int answered = 0;
  for (const auto& client : clients) answered += client->Read() == kAnswer ? 1 : 0;
  EXPECT_GE(answered, 2) << "the queue's";
  EXPECT_LE(answered, 8);
}

TEST_F(HandshakesTest, WhoLeavesMeanwhileIsForgotten) {
  Start(1);
  const auto first = Begin();
  std::vector<std::unique_ptr<Client>> leaving;
  for (int i = 0; i < 3; ++i) leaving.push_back(Begin());
  const auto last = Begin();
  ExpectOthersAreAnswered();
  // Reset.
  const linger at_once = {1, 0};
  for (const auto& client : leaving) {
    setsockopt(client->socket(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  leaving.clear();
  ExpectOthersAreAnswered();
  MakeAllSteps();
  EXPECT_EQ(first->Read(), kAnswer);
  EXPECT_EQ(last->Read(), kAnswer);
  EXPECT_EQ(steps_, 4) << "none of theirs";
}

TEST_F(HandshakesTest, WaitingTakesNoMoreTimeThanARequestHas) {
  Start(1, 100, std::chrono::seconds(3));
  const auto in_queue = Begin();
  ExpectOthersAreAnswered();
  for (const auto& waiting : {Begin(), Begin()}) EXPECT_EQ(waiting->Read(), "");
  // It comes back too late.
  EXPECT_TRUE(MakeStep());
  EXPECT_EQ(in_queue->Read(), "");
}

}  // namespace
}  // namespace ampd
