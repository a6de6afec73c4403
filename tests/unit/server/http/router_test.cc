#include "server/http/router.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/resolve.h"
#include "server/http/target.h"
#include "tests/unit/server/http/fake_exchange.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    Add("GET", "/");
    Add("GET", "/jobs");
    Add("GET", "/jobs/first");
    Add("GET", "/jobs/{}");
    Add("POST", "/jobs/{}/cancel");
    Add("GET", "/session");
    Add("DELETE", "/session");
    Add("GET", "/jobs/{}/files/{}");
  }
  void Add(const std::string& method, const std::string& pattern) {
    router_.Add(method, pattern, [=](HttpExchange& exchange, const Router::Arguments& arguments) {
      exchange.Send({200, "text/plain", {}, absl::StrCat(method, " ", pattern, " ", absl::StrJoin(arguments, ","))});
    });
  }
  std::string Answer(const std::string& method, const std::string& path) {
    FakeExchange exchange(method, path);
    route_ = router_.Serve(exchange);
    status_ = exchange.status();
    allow_ = exchange.ResponseHeader("Allow");
    return exchange.response().body;
  }

  Router router_;
  std::string route_;
  int status_ = 0;
  std::string allow_;
};

TEST_F(RouterTest, FindsTheHandlerOfAPath) {
  EXPECT_EQ(Answer("GET", "/"), "GET / ");
  EXPECT_EQ(Answer("GET", "/jobs?x=1"), "GET /jobs ");
  EXPECT_EQ(Answer("HEAD", "/jobs"), "GET /jobs ");
  EXPECT_EQ(Answer("GET", "/jobs/01hq"), "GET /jobs/{} 01hq");
  EXPECT_EQ(route_, "/jobs/{}");
  EXPECT_EQ(Answer("GET", "/jobs/first"), "GET /jobs/first ");
  EXPECT_EQ(Answer("POST", "/jobs/01hq/cancel"), "POST /jobs/{}/cancel 01hq");
  EXPECT_EQ(Answer("GET", "/jobs/a/files/b%20c.png"), "GET /jobs/{}/files/{} a,b c.png");
}

TEST_F(RouterTest, RefusesOtherPathsAndMethods) {
  for (const char* path : {"/job", "/jobs/", "/jobs/a/", "/jobs/a/b", "//", "/jobs//cancel", "/Jobs"}) {
    EXPECT_THAT(Answer("GET", path), HasSubstr("\"NOT_FOUND\"")) << path;
    EXPECT_EQ(status_, 404) << path;
    EXPECT_EQ(route_, "");
  }
  EXPECT_THAT(Answer("POST", "/jobs"), HasSubstr("\"UNIMPLEMENTED\""));
  EXPECT_EQ(status_, 405);
  EXPECT_EQ(allow_, "GET, HEAD");
  EXPECT_EQ(route_, "/jobs");
  Answer("GET", "/jobs/a/cancel");
  EXPECT_EQ(allow_, "POST");
  Answer("PATCH", "/session");
  EXPECT_EQ(allow_, "GET, HEAD, DELETE");
}

TEST_F(RouterTest, RefusesWhatIsNoPath) {
  for (const char* path : {"/jobs/..", "/jobs/%2e%2E/x", "/./jobs", "/jobs/a%2fb", "/jobs/%", "/jobs/%4", "/jobs/%zz",
                           "/jobs/%00", "/jobs/a%0ab", "/jobs/%ff", "jobs", "", "*"}) {
    EXPECT_THAT(Answer("GET", path), HasSubstr("\"INVALID_ARGUMENT\"")) << path;
    EXPECT_EQ(status_, 400) << path;
  }
}

TEST(TargetTest, TakesQueriesApart) {
  EXPECT_THAT(*SplitQuery(""), ElementsAre());
  EXPECT_THAT(*SplitQuery("a=1&&b&a=%C3%A4+x%2B&c=d=e"),
              ElementsAre(Pair("a", "1"), Pair("b", ""), Pair("a", "\xC3\xA4 x+"), Pair("c", "d=e")));
  for (const char* query : {"a=%", "%g0=1", "a=%01", "a=%C3"}) {
    EXPECT_EQ(SplitQuery(query).status().code(), absl::StatusCode::kInvalidArgument) << query;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&many, "a=1&");
  EXPECT_FALSE(SplitQuery(many).ok());
}

TEST(ErrorResponseTest, HasCodeMessageAndFields) {
  const HttpResponse plain = ErrorResponse(absl::NotFoundError("no job \"x\"\n"));
  EXPECT_EQ(plain.status, 404);
  EXPECT_EQ(plain.body, "{\"code\": \"NOT_FOUND\", \"message\": \"no job \\\"x\\\"\\n\"}\n");
  const HttpResponse fields = ErrorResponse(InvalidFields({{"filter", "what"}, {"order_by", "why"}}));
  EXPECT_EQ(fields.status, 400);
  EXPECT_THAT(fields.body, HasSubstr("\"violations\": [{\"field\": \"filter\", \"description\": \"what\"}, {"));
  EXPECT_THAT(fields.body, StartsWith("{\"code\": \"INVALID_ARGUMENT\""));
  EXPECT_EQ(ErrorResponse(absl::InvalidArgumentError("long"), 413).status, 413);
}

std::string PartsOf(absl::string_view text) {
  const absl::StatusOr<Target> target = ParseTarget(text);
  if (!target.ok()) return absl::StatusCodeToString(target.status().code());
  return absl::StrCat(target->authority, " ", target->path, " ", target->query);
}

TEST(Target, HasThreeParts) {
  EXPECT_EQ(PartsOf("/"), " / ");
  EXPECT_EQ(PartsOf("/a/b%20c?d=e?f"), " /a/b%20c d=e?f");
  EXPECT_EQ(PartsOf("//h/a"), " //h/a ");
  EXPECT_EQ(PartsOf("/http://h/a"), " /http://h/a ");
  EXPECT_EQ(PartsOf("http://h"), "h / ");
  EXPECT_EQ(PartsOf("http://h?a"), "h / a");
  EXPECT_EQ(PartsOf("http://h:7071/a/../b?c=http://d"), "h:7071 /a/../b c=http://d");
  EXPECT_EQ(PartsOf("HTTPS://Some-Host.example:1//a"), "Some-Host.example:1 //a ");
  EXPECT_EQ(PartsOf("http://[::1]:7071/"), "[::1]:7071 / ");
  EXPECT_EQ(PartsOf("http://[fe80::1]"), "[fe80::1] / ");
}

TEST(Target, OfAnotherFormIsNoPath) {
  for (const char* text : {"*", "h:7071", "ftp://h/a", "http:/a", "http", "a/b"}) {
    EXPECT_EQ(PartsOf(text), absl::StrCat(" ", text, " ")) << text;
    EXPECT_FALSE(SplitPath(ParseTarget(text)->path).ok()) << text;
  }
}

TEST(Target, RefusesAuthoritiesThatAreNone) {
  for (const char* text :
       {"http://",     "http:///a",     "http://?a",   "http://#",         "http://a@h/",   "http://a:b@h/",
        "http://h:/",  "http://:7071/", "http://h:x/", "http://h:123456/", "http://h:-1/",  "http://[::1/",
        "http://[h/",  "http://[h:1/",  "http://::1/", "http://[]/",       "http://[a b]/", "http://h%41/",
        "http://h,g/", "http://h\\g/",  "http://h;g/", "http://\xc3\xa4/"}) {
    EXPECT_EQ(PartsOf(text), "INVALID_ARGUMENT") << text;
  }
}

}  // namespace
}  // namespace ampd
