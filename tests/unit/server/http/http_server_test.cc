#include "server/http/http_server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/core/mutex.h"
#include "server/http/large_stack.h"
#include "server/http/request_reader.h"
#include "tests/unit/server/http/raw_client.h"

namespace ampd {
namespace {

int Sum(int depth);

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.metrics = [] { return std::string("ampd_up 1\n"); };
    options.router.Add("POST", "/echo/{}", [](HttpExchange& exchange, const Router::Arguments& arguments) {
      const absl::StatusOr<std::string> body = exchange.ReadBody(100);
      if (!body.ok()) return exchange.Send(ErrorResponse(body.status(), 413));
      exchange.Send({200, "text/plain", {{"X-Peer", exchange.request().peer}}, absl::StrCat(arguments[0], ":", *body)});
    });
    options.router.Add("POST", "/wait", [this](HttpExchange& exchange, const Router::Arguments&) {
      waits_.set_value(exchange.IsLeft());
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (!exchange.IsLeft() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      left_.set_value(exchange.IsLeft());
    });
    options.router.Add("GET", "/deep", [](HttpExchange& exchange, const Router::Arguments&) {
      int sum = 0;
      EXPECT_TRUE(RunOnLargeStack([&] { sum = Sum(4000); }));
      exchange.Send({200, "text/plain", {}, absl::StrCat(sum)});
    });
    options.listener = [this](const std::string& route, int status) {
      const MutexLock lock(&mutex_);
      answers_[absl::StrCat(route, " ", status)] += 1;
    };
    options.ready_note = [this] { return is_short_ ? std::string("no room") : ""; };
    options.ready = [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("draining"); };
    auto server = HttpServer::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int Answers(const std::string& what) {
    const MutexLock lock(&mutex_);
    return answers_[what];
  }

  Mutex mutex_;
  std::map<std::string, int> answers_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> ready_{true};
  std::atomic<bool> is_short_{false};
  // Of the one request of /wait: whether its client had gone at the beginning, and at the end.
  std::promise<bool> waits_, left_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, TellsThePortItPicked) {
  EXPECT_THAT(server_->address(), StartsWith("127.0.0.1:"));
  EXPECT_GT(PortOf(server_->address()), 0);
}

TEST_F(HttpServerTest, ServesMetricsAndHealth) {
  EXPECT_THAT(Get(server_->address(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("version=0.0.4"), EndsWith("\r\n\r\nampd_up 1\n")));
  EXPECT_THAT(Get(server_->address(), "/metrics?x=1"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(server_->address(), "/healthz"), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("ok\n")));
}

TEST_F(HttpServerTest, ReadinessFollowsTheDaemon) {
  EXPECT_THAT(Get(server_->address(), "/readyz"), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\nok\n")));
  is_short_ = true;
  EXPECT_THAT(Get(server_->address(), "/readyz"), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\nok; no room\n")));
  ready_ = false;
  EXPECT_THAT(Get(server_->address(), "/readyz"), AllOf(StartsWith("HTTP/1.1 503"), EndsWith("draining\n")));
  EXPECT_THAT(Get(server_->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, RefusesEverythingElse) {
  EXPECT_THAT(Get(server_->address(), "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(server_->address(), "/metrics/x"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(server_->address(), "/../etc/passwd"), Not(HasSubstr("root:")));
  EXPECT_THAT(Exchange(server_->address(), "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(Exchange(server_->address(), "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpServerTest, HandsBodiesToHandlers) {
  const auto post = [&](const std::string& rest) {
    return Exchange(server_->address(), absl::StrCat("POST /echo/a%20b HTTP/1.1\r\nHost: x\r\n", rest));
  };
  EXPECT_THAT(post("Content-Length: 3\r\n\r\nxyz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("X-Peer: ipv4:127.0.0.1:"), EndsWith("\r\n\r\na b:xyz")));
  EXPECT_THAT(post("Transfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n1\r\nz\r\n0\r\n\r\n"), EndsWith("a b:xyz"));
  EXPECT_THAT(post("\r\n"), EndsWith("a b:"));
  EXPECT_THAT(post(absl::StrCat("Content-Length: 101\r\n\r\n", std::string(101, 'x'))), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(post("Content-Length: 99999999999\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_EQ(Answers("/echo/{} 200"), 3);
  EXPECT_EQ(Answers("/echo/{} 413"), 2);
  // The answer comes whole, though nobody reads what the client sends.
  for (const size_t size : {kMaxBodyBytes + 1, size_t{200'000}}) {
    EXPECT_THAT(post(absl::StrCat("Content-Length: ", size, "\r\n\r\n", std::string(size, 'x'))),
                AllOf(StartsWith("HTTP/1.1 413"), EndsWith("}\n")));
  }
}

TEST_F(HttpServerTest, TellsWhoWaitsToGoOn) {
  Client client(server_->address());
  client.Send("POST /echo/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  ASSERT_TRUE(client.IsReadable(60'000));
  client.Send("hi");
  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), EndsWith("a:hi")));
}

TEST_F(HttpServerTest, AnswersOneRequestOfAConnection) {
  const std::string get = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n";
  EXPECT_THAT(Exchange(server_->address(), get + get + get), EndsWith("\r\n\r\nok\n"));
  EXPECT_EQ(Answers("/healthz 200"), 1);
}

TEST_F(HttpServerTest, TakesTargetsInAbsoluteForm) {
  EXPECT_THAT(Exchange(server_->address(), "GET http://x/metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
              EndsWith("ampd_up 1\n"));
}

TEST_F(HttpServerTest, SaysWhatItRefuses) {
  const auto answer = [&](const std::string& request) {
    Client client(server_->address());
    client.Send(request);
    client.Finish();
    return client.Read();
  };
  EXPECT_EQ(answer(""), "");
  EXPECT_THAT(answer("GET /heal"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("ends early")));
  EXPECT_THAT(answer("POST /echo/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("ends early")));
  EXPECT_THAT(answer("GET / HTTP/1.1\r\n\r\n"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("Host")));
  EXPECT_THAT(answer("GET http://x:y/metrics HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), StartsWith("HTTP/1.1 505"));
  EXPECT_EQ(Answers(" 400"), 4);
}

int Sum(int depth) {
  volatile char frame[1 << 10] = {1};
  return depth == 0 ? 0 : frame[0] + Sum(depth - 1);
}

TEST_F(HttpServerTest, AHandlerMayRecurse) { EXPECT_THAT(Get(server_->address(), "/deep"), EndsWith("\r\n\r\n4000")); }

TEST_F(HttpServerTest, JudgesPathsAsTheyWereSent) {
  for (const char* path : {"/x/../metrics", "/%2e%2e/metrics", "/metrics%00", "/metrics/.", "/%6detrics/../metrics"}) {
    EXPECT_THAT(Get(server_->address(), path), StartsWith("HTTP/1.1 400")) << path;
  }
  EXPECT_THAT(Get(server_->address(), "/%6detrics"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, TellsOtherSitesNothing) {
  EXPECT_THAT(Exchange(server_->address(),
                       "OPTIONS /echo/a HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n"
                       "Access-Control-Request-Method: POST\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), Not(HasSubstr("Access-Control-Allow"))));
}

TEST_F(HttpServerTest, RefusesHeadsThatAreTooLongInJson) {
  const std::string huge = absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(20000, 'a'), "\r\n\r\n");
  EXPECT_THAT(Exchange(server_->address(), huge), AllOf(StartsWith("HTTP/1.1 4"), HasSubstr("\"INVALID_ARGUMENT\"")));
}

TEST_F(HttpServerTest, SurvivesNonsense) {
  EXPECT_THAT(Exchange(server_->address(), "\x01\x02\xff nonsense\r\n\r\n"), Not(HasSubstr("200 OK")));
  const std::string huge = absl::StrCat("GET /", std::string(100000, 'a'), " HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(Exchange(server_->address(), huge), Not(HasSubstr("200 OK")));
  EXPECT_THAT(Get(server_->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, TellsAHandlerThatItsClientHasGone) {
  {
    Client client(server_->address());
    // What comes behind the request does not hide the end.
    ASSERT_TRUE(client.Send("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\naaa"));
    EXPECT_FALSE(waits_.get_future().get());
  }
  EXPECT_TRUE(left_.get_future().get());
}

TEST_F(HttpServerTest, ServesManyAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      if (Get(server_->address(), "/metrics").find("ampd_up 1") != std::string::npos) ++served;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 16);
}

TEST_F(HttpServerTest, ATakenPortIsAnErrorThatNamesIt) {
  HttpServer::Options options;
  options.listen = server_->address();
  const auto second = HttpServer::Start(std::move(options));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
}

TEST(HttpServerAddressTest, RefusesWhatIsNoAddress) {
  for (const char* listen : {"", "7071", ":7071", "host:", "host:x", "host:70000", "host:-1", "127.0.0.1:1,2:0",
                             "a b:1", "::1:70", "[::1]", "[::1"}) {
    HttpServer::Options options;
    options.listen = listen;
    EXPECT_EQ(HttpServer::Start(std::move(options)).status().code(), absl::StatusCode::kInvalidArgument) << listen;
  }
}

TEST(HttpServerAddressTest, ListensOnNames) {
  HttpServer::Options options;
  options.listen = "localhost:0";
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_GT(PortOf((*server)->address()), 0);
}

TEST(HttpServerAddressTest, ListensOnIpv6OrSaysThatItCannot) {
  HttpServer::Options options;
  options.listen = "[::1]:0";
  const auto server = HttpServer::Start(std::move(options));
  if (server.ok()) {
    EXPECT_THAT((*server)->address(), StartsWith("[::1]:"));
    EXPECT_GT(PortOf((*server)->address()), 0);
  } else {
    EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("[::1]:0"));
  }
}

}  // namespace
}  // namespace ampd
