#include "engine/core/json.h"

#include <cfloat>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using testing::HasSubstr;

TEST(Json, ReadsEveryKind) {
  const auto json =
      ParseJson(" {\"a\": [1, -2.5e3, true, false, null], \"b\": {\"c\": \"x\\n\\u00e9\\ud83d\\ude00\\\"\"}} ");
  ASSERT_TRUE(json.ok()) << json.status();
  const auto& list = json->Find("a")->items();
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(*list[0].AsInt64(), 1);
  EXPECT_EQ(*list[1].AsFloat(), -2500.0f);
  EXPECT_EQ(list[2].kind(), Json::Kind::kBool);
  EXPECT_EQ(list[4].kind(), Json::Kind::kNull);
  EXPECT_EQ(*json->Find("b")->Find("c")->AsString(), "x\n\xc3\xa9\xf0\x9f\x98\x80\"");
  EXPECT_EQ(json->Find("z"), nullptr);
}

TEST(Json, IntegersAreExact) {
  EXPECT_EQ(*ParseJson("18446744073709551615")->AsUint64(), UINT64_MAX);
  EXPECT_EQ(*ParseJson("-9223372036854775808")->AsInt64(), INT64_MIN);
  EXPECT_FALSE(ParseJson("18446744073709551616")->AsUint64().ok());
  EXPECT_FALSE(ParseJson("-1")->AsUint64().ok());
  EXPECT_FALSE(ParseJson("1.0")->AsInt64().ok());
  EXPECT_FALSE(ParseJson("\"1\"")->AsInt64().ok());
  EXPECT_FALSE(ParseJson("1e999")->AsFloat().ok());
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",          " ",           "{",
                           "[",         "[1,]",        "{\"a\":1,}",
                           "{a:1}",     "{\"a\" 1}",   "01",
                           "1.",        ".5",          "1e",
                           "+1",        "-",           "nul",
                           "\"",        "\"\n\"",      "\"\\x\"",
                           "\"\\u12\"", "\"\\ud800\"", "\"\\ude00\"",
                           "1 2",       "[1 2]",       "NaN",
                           "Infinity",  "'a'",         "{\"a\":1,\"a\":2}"}) {
    EXPECT_EQ(ParseJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseJson("{\"a\":1,\"a\":2}").status().message()), HasSubstr("twice"));
}

TEST(Json, NestingIsBounded) {
  EXPECT_TRUE(ParseJson(std::string(16, '[') + std::string(16, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).ok());
}

TEST(Json, QuotedTextComesBack) {
  std::string text = "a\"b\\c/\t\n\x01 \xc3\xa9";
  EXPECT_EQ(*ParseJson(JsonQuoted(text))->AsString(), text);
}

}  // namespace
}  // namespace ampd
