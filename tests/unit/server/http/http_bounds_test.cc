// What clients can make of the HTTP port that take their time, or many connections. Where a test shows that others are
// answered all the same, every bound in time is an hour: nothing is there because somebody was waited for.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "server/http/http_server.h"
#include "tests/unit/server/http/raw_client.h"

namespace ampd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::hours kHour{1};
constexpr std::chrono::milliseconds kShort{300};
constexpr size_t kLarge = 16 << 20;

class HttpBoundsTest : public ::testing::Test {
 protected:
  ~HttpBoundsTest() override { Release(); }

  void Start(std::function<void(HttpServer::Options*)> set) {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.threads = 4;
    options.request_time = kHour;
    options.router.Add("GET", "/large", [](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Send({200, "text/plain", {}, std::string(kLarge, 'x')});
    });
    options.router.Add("GET", "/endless", [this](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Begin({}, std::nullopt);
      ++streams_;
      while (exchange.Write(std::string(1 << 20, 'x'))) {
      }
    });
    options.router.Add("GET", "/wait", [this](HttpExchange& exchange, const Router::Arguments&) {
      const MutexLock lock(&mutex_);
      ++waiting_;
      while (!released_) changed_.Wait(&mutex_);
      exchange.Send({});
    });
    options.router.Add("POST", "/body", [](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Send({200, "", {}, exchange.ReadBody(kMaxBodyBytes).value_or("none")});
    });
    options.on_refused = [this](const char* reason) {
      const MutexLock lock(&mutex_);
      ++closed_[reason];
    };
    options.listener = [this](const std::string&, int status) { refused_ += status == 503 ? 1 : 0; };
    set(&options);
    server_ = *HttpServer::Start(std::move(options));
  }
  void Release() {
    const MutexLock lock(&mutex_);
    released_ = true;
    changed_.NotifyAll();
  }
  int Waiting() {
    const MutexLock lock(&mutex_);
    return waiting_;
  }
  int Closed(const std::string& reason) {
    const MutexLock lock(&mutex_);
    return closed_[reason];
  }
  // To `begin`, and a byte at a time behind it, fewer than the request lacks. Once more where this machine was so slow
  // that the first byte came too late.
  std::string AnswerTo(const std::string& begin, bool drips) {
    std::string answer;
    for (int tries = 0; tries < 50 && answer.empty(); ++tries) {
      Client* const client = Connect();
      client->Send(begin);
      for (int sent = 0; drips && sent < 8000 && !client->IsReadable(5); ++sent) client->Send("x");
      answer = client->Read();
    }
    return answer;
  }
  // A minute at most.
  static void Until(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Client* Connect(int from = 1, int receive_buffer = 0) {
    clients_.push_back(std::make_unique<Client>(server_->address(), from, receive_buffer));
    return clients_.back().get();
  }
  void ExpectAnswers(int from = 1) { EXPECT_THAT(Get(server_->address(), "/healthz", from), EndsWith("ok\n")); }

  Mutex mutex_;
  CondVar changed_;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> closed_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> refused_{0};
  std::atomic<int> streams_{0};
  std::vector<std::unique_ptr<Client>> clients_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpBoundsTest, ARequestIsThereInTimeOrRefused) {
  Start([](HttpServer::Options* options) { options->request_time = kShort; });
  EXPECT_EQ(Connect()->Read(), "");
  for (const char* begin : {"G", "GET /healthz HTTP/1.1\r\nHost: x\r\n",
                            "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\nabc",
                            "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
                            "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"}) {
    EXPECT_THAT(AnswerTo(begin, false), StartsWith("HTTP/1.1 408")) << begin;
  }
}

TEST_F(HttpBoundsTest, DrippingBuysNoTime) {
  Start([](HttpServer::Options* options) { options->request_time = kShort; });
  for (const char* begin : {"G", "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n",
                            "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nea60\r\n"}) {
    EXPECT_THAT(AnswerTo(begin, true), StartsWith("HTTP/1.1 408")) << begin;
  }
}

TEST_F(HttpBoundsTest, BodiesThatDoNotComeKeepNobodyOut) {
  Start([](HttpServer::Options*) {});
  for (const char* head : {"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\nx",
                           "POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx",
                           "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nx",
                           "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nx"}) {
    for (int i = 0; i < 10; ++i) Connect()->Send(head);
    ExpectAnswers();
  }
  // Who says that too much will come is answered without it.
  EXPECT_THAT(Exchange(server_->address(), "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 17592186044416\r\n\r\n"),
              EndsWith("none"));
  EXPECT_FALSE(clients_.front()->IsReadable(0));
}

TEST_F(HttpBoundsTest, ConnectionsBeyondTheBoundPushOutTheirOldest) {
  Start([](HttpServer::Options* options) { options->max_connections = 16; });
  Client* const other = Connect(2);
  other->Send("GET /healthz HTTP/1.1\r\n");
  for (int i = 0; i < 100; ++i) {
    Connect();
    if (i % 20 == 0) ExpectAnswers();
  }
  ExpectAnswers();
  for (size_t i = 1; i < clients_.size() - 16; ++i) EXPECT_EQ(clients_[i]->Read(), "") << i;
  // The one of another address was there before all of them, and is.
  EXPECT_FALSE(other->IsReadable(0));
  other->Send("Host: x\r\n\r\n");
  EXPECT_THAT(other->Read(), EndsWith("ok\n"));
  EXPECT_GE(Closed("all"), 100 - 16);
  EXPECT_EQ(Closed("answers"), 0);
}

TEST_F(HttpBoundsTest, ReadersThatTakeNothingKeepNobodyOut) {
  Start([](HttpServer::Options*) {});
  for (int i = 0; i < 8; ++i) {
    Connect(1, 4096)->Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(clients_.back()->IsReadable(60'000));
  }
  ExpectAnswers();
  // 64 MiB of answers are kept: the first gave way to the others.
  EXPECT_LT(clients_.front()->Read().size(), kLarge);
  EXPECT_GT(clients_.back()->Read().size(), kLarge);
  EXPECT_GE(Closed("answers"), 1);
  EXPECT_EQ(Closed("all"), 0);
}

TEST_F(HttpBoundsTest, NoClientHasAllThreads) {
  Start([](HttpServer::Options*) {});
  for (int i = 0; i < 10; ++i) Connect()->Send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  Until([&] { return Waiting() == 3; });
  ExpectAnswers(2);
  EXPECT_EQ(Waiting(), 3);
  // 64 of a client wait; more are refused at once.
  for (int i = 0; i < 64; ++i) Connect()->Send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  Until([&] { return refused_ == 7; });
  ExpectAnswers(2);
  Release();
  int refused = 0;
  for (const auto& client : clients_) {
    const std::string answer = client->Read();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 ")) << answer;
    if (answer.find(" 503 ") != std::string::npos) {
      EXPECT_THAT(answer, HasSubstr("Retry-After: 1\r\n"));
      ++refused;
    }
  }
  EXPECT_EQ(refused, 7);
  ExpectAnswers();
}

TEST_F(HttpBoundsTest, StopsWhileOthersReadNothing) {
  Start([](HttpServer::Options*) {});
  Connect();
  Connect()->Send("GET /heal");
  Connect(1, 4096)->Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  Connect(1, 4096)->Send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
  Until([&] { return streams_ == 1; });
  server_.reset();
  for (const auto& client : clients_) client->Read();
}

TEST_F(HttpBoundsTest, AStreamThatNobodyTakesEnds) {
  Start([](HttpServer::Options* options) { options->threads = 1; });
  Connect(1, 4096)->Send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
  Until([&] { return streams_ == 1; });
  // The only thread is free again.
  ExpectAnswers();
}

}  // namespace
}  // namespace ampd
