#include "server/web/access.h"

#include <gmock/gmock.h>

#include "proto/spec/event_kinds.h"
#include "server/web/assets.h"
#include "server/web/fleet_feed.h"
#include "server/web/query.h"
#include "server/web/sessions.h"
#include "server/web/slots.h"
#include "tests/unit/server/http/fake_exchange.h"
#include "tests/unit/server/jobs/fake_clock.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusCode Checked(const std::string& method, HttpHeaders headers, WebPlace place = {}) {
  const FakeExchange exchange(method, "/api/v1/jobs", std::move(headers));
  return CheckOrigin(exchange.request(), place).code();
}

constexpr absl::StatusCode kRefused = absl::StatusCode::kPermissionDenied;

TEST(CheckOriginTest, WithoutTokensOnlyNamesOfThisMachineAreTaken) {
  for (const char* host :
       {"localhost", "localhost:7071", "LocalHost:1", "127.0.0.1", "127.9.9.9:80", "[::1]:7071", "[::1]"}) {
    EXPECT_EQ(Checked("GET", {{"Host", host}}), absl::StatusCode::kOk) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example:7071", "127.0.0.1.evil.example", "10.0.0.1:7071", "",
                           "128.0.0.1", "[::2]", "localhost@evil.example"}) {
    EXPECT_EQ(Checked("GET", {{"Host", host}}), kRefused) << host;
    EXPECT_EQ(Checked("GET", {{"Host", host}}, {.tokens = true}), absl::StatusCode::kOk) << host;
    EXPECT_EQ(Checked("GET", {{"Host", host}}, {.is_loopback = false, .insecure = true, .tokens = true}),
              absl::StatusCode::kOk);
  }
  EXPECT_EQ(Checked("GET", {}), kRefused);
}

TEST(CheckOriginTest, BeyondLoopbackItIsToBeAcceptedFirst) {
  EXPECT_EQ(Checked("GET", {{"Host", "a"}}, {.is_loopback = false}), kRefused);
  EXPECT_EQ(Checked("GET", {{"Host", "a"}}, {.is_loopback = false, .tokens = true}), kRefused);
  EXPECT_EQ(Checked("GET", {{"Host", "a"}}, {.is_loopback = false, .insecure = true, .tokens = true}),
            absl::StatusCode::kOk);
}

TEST(CheckOriginTest, WhereOnlyACertificateLetsClientsInThereIsNoOtherWay) {
  for (const bool insecure : {false, true}) {
    EXPECT_EQ(Checked("GET", {{"Host", "localhost"}}, {.insecure = insecure, .certificates = true}), kRefused);
    EXPECT_EQ(Checked("GET", {{"Host", "localhost"}}, {.insecure = insecure, .tokens = true, .certificates = true}),
              absl::StatusCode::kOk);
  }
}

TEST(CheckOriginTest, BeyondLoopbackItIsThereWithTlsAndTokensBoth) {
  const auto checked = [](bool tls, bool tokens) {
    return Checked("GET", {{"Host", "gpu.example"}}, {.is_loopback = false, .tls = tls, .tokens = tokens});
  };
  EXPECT_EQ(checked(true, true), absl::StatusCode::kOk);
  EXPECT_EQ(checked(true, false), kRefused);
  EXPECT_EQ(checked(false, true), kRefused);
}

TEST(CheckOriginTest, ByTlsNoPageInPlainTextIsOfTheSameSite) {
  FakeExchange exchange("POST", "/", {{"Host", "localhost:7071"}, {"Origin", "http://localhost:7071"}});
  HttpRequest request = exchange.request();
  EXPECT_EQ(CheckOrigin(request, {}).code(), absl::StatusCode::kOk);
  request.is_tls = true;
  EXPECT_EQ(CheckOrigin(request, {.tls = true}).code(), kRefused);
  request.headers[1].second = "https://localhost:7071";
  EXPECT_EQ(CheckOrigin(request, {.tls = true}).code(), absl::StatusCode::kOk);
}

TEST(CheckOriginTest, ACertificateThatThePortAskedForWillDo) {
  EXPECT_EQ(Checked("GET", {{"Host", "localhost"}}, {.tls = true, .certificates = true}), absl::StatusCode::kOk);
}

TEST(CheckOriginTest, BeyondLoopbackWithoutTokensNoNameOfASiteWillDo) {
  const WebPlace place = {.is_loopback = false, .insecure = true};
  for (const char* host : {"10.1.2.3:7071", "[fd00::1]:7071", "gpu-vm", "gpu-vm:7071", "localhost:7071"}) {
    EXPECT_EQ(Checked("GET", {{"Host", host}}, place), absl::StatusCode::kOk) << host;
  }
  for (const char* host : {"evil.example", "evil.example:7071", "10.1.2.3.evil.example", "1.2.3", "a.", ""}) {
    EXPECT_EQ(Checked("GET", {{"Host", host}}, place), kRefused) << host;
  }
}

TEST(CheckOriginTest, OtherSitesAreRefused) {
  const std::pair<std::string, std::string> host = {"Host", "localhost:7071"};
  for (const char* origin : {"http://evil.example", "http://localhost:7072", "null", "https://localhost", ""}) {
    EXPECT_EQ(Checked("POST", {host, {"Origin", origin}}), kRefused) << origin;
  }
  EXPECT_EQ(Checked("POST", {host, {"Origin", "http://localhost:7071"}}), absl::StatusCode::kOk);
  EXPECT_EQ(Checked("POST", {host, {"Origin", "https://LOCALHOST:7071"}}), absl::StatusCode::kOk);
  EXPECT_EQ(Checked("POST", {host}), absl::StatusCode::kOk);
  for (const char* site : {"cross-site", "same-site", "nonsense"}) {
    EXPECT_EQ(Checked("POST", {host, {"Sec-Fetch-Site", site}}), kRefused) << site;
    EXPECT_EQ(Checked("GET", {host, {"Sec-Fetch-Site", site}}), kRefused) << site;
    EXPECT_EQ(Checked("GET", {host, {"Sec-Fetch-Site", site}, {"Sec-Fetch-Mode", "navigate"}}), absl::StatusCode::kOk);
    EXPECT_EQ(Checked("POST", {host, {"Sec-Fetch-Site", site}, {"Sec-Fetch-Mode", "navigate"}}), kRefused);
  }
  EXPECT_EQ(Checked("POST", {host, {"Sec-Fetch-Site", "same-origin"}}), absl::StatusCode::kOk);
}

TEST(BearerTest, IsOneSecretOrNone) {
  const auto bearer = [](HttpHeaders headers) {
    return BearerOf(FakeExchange("GET", "/", std::move(headers)).request());
  };
  EXPECT_EQ(*bearer({}), std::nullopt);
  EXPECT_EQ(*bearer({{"authorization", "bearer ampd_1"}}), "ampd_1");
  for (const char* value : {"ampd_1", "Basic YTpi", "Bearer ", "Bearer a b", "Bearer a\x01", "Bearer \xC3\xA4"}) {
    EXPECT_EQ(bearer({{"Authorization", value}}).status().code(), absl::StatusCode::kUnauthenticated) << value;
  }
  EXPECT_FALSE(bearer({{"Authorization", "Bearer a"}, {"authorization", "Bearer a"}}).ok());
  EXPECT_FALSE(bearer({{"Authorization", "Bearer " + std::string(201, 'a')}}).ok());
}

TEST(CookieTest, IsFoundByItsWholeName) {
  const FakeExchange exchange(
      "GET", "/", {{"Host", "localhost:7071"}, {"Cookie", "xampd_session_7071=1; ampd_session_7071=abc;y=2"}});
  EXPECT_EQ(SessionCookie(exchange.request()), "ampd_session_7071");
  EXPECT_EQ(CookieOf(exchange.request(), "ampd_session_7071"), "abc");
  EXPECT_EQ(CookieOf(exchange.request(), "ampd_session"), std::nullopt);
  EXPECT_EQ(SessionCookie(FakeExchange("GET", "/", {{"Host", "h:80;x"}}).request()), "ampd_session");
  EXPECT_EQ(SessionCookie(FakeExchange("GET", "/", {{"Host", "[::1]"}}).request()), "ampd_session");
}

TEST(SessionsTest, HoldUntilTheyAreClosedOrOld) {
  FakeClock clock;
  Sessions sessions(&clock);
  const std::string cookie = sessions.Open("ampd_1", "id");
  EXPECT_EQ(cookie.size(), 64u);
  EXPECT_NE(cookie, sessions.Open("ampd_1", "id"));
  EXPECT_EQ(sessions.Find(cookie), "ampd_1");
  EXPECT_EQ(sessions.Find("ampd_1"), std::nullopt);
  clock.Advance(absl::Hours(11));
  EXPECT_EQ(sessions.Find(cookie), "ampd_1");
  clock.Advance(absl::Hours(11));
  EXPECT_EQ(sessions.Find(cookie), "ampd_1");
  clock.Advance(absl::Hours(12) + absl::Seconds(1));
  EXPECT_EQ(sessions.Find(cookie), std::nullopt);
  const std::string other = sessions.Open("ampd_2", "id2");
  sessions.Close(other);
  EXPECT_EQ(sessions.Find(other), std::nullopt);
}

TEST(SessionsTest, OneTokenCannotPushOthersOut) {
  FakeClock clock;
  Sessions sessions(&clock);
  const std::string ann = sessions.Open("ampd_ann", "ann");
  std::string first;
  for (size_t i = 0; i < 2000; ++i) {
    clock.Advance(absl::Milliseconds(1));
    const std::string cookie = sessions.Open("ampd_bob", "bob");
    if (i == 2000 - Sessions::kMaxOfToken) first = cookie;
  }
  EXPECT_EQ(sessions.Find(ann), "ampd_ann");
  EXPECT_EQ(sessions.Find(first), "ampd_bob");
  sessions.Open("ampd_bob", "bob");
  EXPECT_EQ(sessions.Find(ann), "ampd_ann");
}

TEST(SlotsTest, AreBoundedByClientAndInAll) {
  Slots slots(3);
  auto a = slots.Take("a", 2), b = slots.Take("a", 2);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(slots.Take("a", 2), nullptr);
  auto c = slots.Take("b", 2);
  EXPECT_NE(c, nullptr);
  EXPECT_EQ(slots.Take("c", 2), nullptr);
  a.reset();
  EXPECT_NE(slots.Take("c", 2), nullptr);
}

TEST(QueryTest, RefusesWhatItDoesNotKnow) {
  const auto query = Query::Parse("points=10&kinds=log,step", {"points", "kinds"});
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(*query->Integer("points", 1, 10, 5), 10);
  EXPECT_EQ(*query->Integer("other", 1, 10, 5), 5);
  EXPECT_THAT(query->List("kinds"), ElementsAre("log", "step"));
  EXPECT_THAT(*PayloadsOf(query->List("kinds")), ElementsAre(v1::JobEvent::kLog, v1::JobEvent::kStep));
  EXPECT_FALSE(PayloadsOf({"sequence"}).ok());
  EXPECT_FALSE(PayloadsOf({"nonsense"}).ok());
  EXPECT_FALSE(query->Integer("points", 1, 9, 5).ok());
  EXPECT_FALSE(query->Integer("kinds", 1, 9, 5).ok());
  for (const char* text : {"x=1", "points=1&points=2", "points=%", "=1"}) {
    EXPECT_EQ(Query::Parse(text, {"points"}).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  for (const char* number : {"", "1.5", "0x10", "99999999999999999999", "-1", "1 2", "NaN"}) {
    const auto wrong = Query::Parse(absl::StrCat("points=", number), {"points"});
    EXPECT_FALSE(wrong->Integer("points", 0, 100, 5).ok()) << number;
  }
}

TEST(FleetFeedTest, TellsWhichJobsChangedToWhoMaySeeThem) {
  FleetFeed feed;
  const auto all = feed.Subscribe(std::nullopt), ann = feed.Subscribe("ann");
  const auto write = [&](const std::string& id, const std::string& user) {
    JobWrite write;
    write.record.job.set_id(id);
    write.record.job.set_user(user);
    feed.OnWrite(write);
  };
  write("a", "ann");
  write("b", "bob");
  write("a", "ann");
  EXPECT_THAT(ann->TakeAfter(absl::ZeroDuration()).jobs, ElementsAre("a"));
  EXPECT_THAT(all->TakeAfter(absl::ZeroDuration()).jobs, ElementsAre("a", "b"));
  EXPECT_TRUE(all->TakeAfter(absl::ZeroDuration()).jobs.empty());
  for (size_t i = 0; i <= FleetFeed::kMaxJobs; ++i) write(absl::StrCat("c", i), "bob");
  const FleetFeed::Changes missed = all->TakeAfter(absl::ZeroDuration());
  EXPECT_TRUE(missed.missed);
  EXPECT_LT(missed.jobs.size(), FleetFeed::kMaxJobs);
  EXPECT_FALSE(ann->TakeAfter(absl::ZeroDuration()).stopped);
  feed.Stop();
  EXPECT_TRUE(ann->TakeAfter(absl::Minutes(1)).stopped);
}

TEST(AssetsTest, AreServedWithATagAndAPolicy) {
  static constexpr Asset kAssets[] = {{"/", "text/html; charset=utf-8", "<p>"},
                                      {"/app.js", "text/javascript", "1", true}};
  Router router;
  AddAssets(kAssets, &router);
  FakeExchange page("GET", "/");
  EXPECT_EQ(router.Serve(page), "/");
  EXPECT_EQ(page.response().body, "<p>");
  EXPECT_EQ(page.response().content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.ResponseHeader("Content-Security-Policy"), HasSubstr("script-src 'self'"));
  FakeExchange again("GET", "/", {{"If-None-Match", page.ResponseHeader("ETag")}});
  router.Serve(again);
  EXPECT_EQ(again.status(), 304);
  EXPECT_EQ(again.response().body, "");
  FakeExchange other("GET", "/app.js", {{"If-None-Match", page.ResponseHeader("ETag")}});
  router.Serve(other);
  EXPECT_EQ(other.response().body, "1");
  EXPECT_EQ(page.ResponseHeader("Cache-Control"), "no-cache");
  EXPECT_THAT(other.ResponseHeader("Cache-Control"), HasSubstr("immutable"));
}

}  // namespace
}  // namespace ampd
