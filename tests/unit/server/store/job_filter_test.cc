#include "server/store/job_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ampd/v1/job.pb.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

std::string Parsed(absl::string_view text) {
  const absl::StatusOr<JobFilter> filter = ParseJobFilter(text);
  return filter.ok() ? ToString(*filter) : std::string(filter.status().message());
}

void ExpectRefused(absl::string_view text, absl::string_view message) {
  const absl::StatusOr<JobFilter> filter = ParseJobFilter(text);
  ASSERT_FALSE(filter.ok()) << text;
  EXPECT_EQ(filter.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(filter.status().message()), HasSubstr(std::string(message))) << text;
}

TEST(JobFilterTest, ConditionsAreUnderstood) {
  EXPECT_EQ(Parsed(""), "");
  EXPECT_EQ(Parsed("  "), "");
  EXPECT_EQ(Parsed("state=running"), "state = RUNNING");
  EXPECT_EQ(Parsed("user != 'ann'"), "user != \"ann\"");
  EXPECT_EQ(Parsed("name:net-2"), "name : \"net-2\"");
  EXPECT_EQ(Parsed("labels.team = vision"), "labels.\"team\" = \"vision\"");
  EXPECT_EQ(Parsed("label.team:*"), "labels.\"team\" : *");
  EXPECT_EQ(Parsed("labels.'a \"b' != \"c\\\\d\""), "labels.\"a \\\"b\" != \"c\\\\d\"");
  EXPECT_EQ(Parsed("priority>=-5"), "priority >= -5");
  EXPECT_EQ(Parsed("create_time < \"2026-01-31T12:00:00.5+02:00\""), "create_time < \"2026-01-31T10:00:00.5+00:00\"");
}

TEST(JobFilterTest, AndOrNotAndParenthesesNest) {
  EXPECT_EQ(Parsed("state = QUEUED AND user = a AND (name = b OR name = c)"),
            "state = QUEUED AND user = \"a\" AND (name = \"b\" OR name = \"c\")");
  EXPECT_EQ(Parsed("NOT NOT (user=a OR NOT user=b)"), "NOT NOT (user = \"a\" OR NOT user = \"b\")");
  EXPECT_EQ(Parsed("((user=a))"), "user = \"a\"");
}

TEST(JobFilterTest, ErrorsTellWhereAndWhat) {
  ExpectRefused("user = a OR name = b AND name = c", "at byte 21: AND and OR side by side: use parentheses");
  ExpectRefused("state = SLEEPING", "at byte 8: no state \"SLEEPING\"");
  ExpectRefused("colour = red", "at byte 0: no field \"colour\"; there are state");
  ExpectRefused("priority = high", "at byte 11: \"high\" is not a whole number");
  ExpectRefused("priority = 99999999999", "is not a whole number");
  ExpectRefused("create_time > yesterday", "at byte 14: \"yesterday\" is no time like");
  ExpectRefused("create_time > \"1950-01-01T00:00:00Z\"", "is no time");
  ExpectRefused("create_time > \"9950-01-01T00:00:00Z\"", "is no time");
  ExpectRefused("user > a", "at byte 5: user cannot be asked for by >");
  ExpectRefused("user:a", "user cannot be asked for by :");
  ExpectRefused("labels.a : b", "only * can stand");
  ExpectRefused("labels. = b", "a label has a name");
  ExpectRefused("user = ", "at byte 7: expected a value");
  ExpectRefused("user", "at byte 4: expected =");
  ExpectRefused("user = a user = b", "at byte 9: expected AND or OR");
  ExpectRefused("(user = a", "at byte 9: no ) for the ( at byte 0");
  ExpectRefused("user = a)", "at byte 8: a ) without its (");
  ExpectRefused("user = 'a", "at byte 7: a quote without its end");
  ExpectRefused("user = \"a\\", "a \\ stands before");
  ExpectRefused("user = \"a\\n\"", "a \\ stands before");
  ExpectRefused("user = ;", "at byte 7: unexpected \";\"");
  ExpectRefused(std::string("user = \0", 8), "at byte 7: unexpected \"\\x00\"");
  ExpectRefused("AND", "no field \"AND\"");
  ExpectRefused("user = a AND", "expected a condition");
}

TEST(JobFilterTest, SizeDepthAndNumberAreBounded) {
  ExpectRefused(std::string(kMaxFilterBytes + 1, ' '), "has 4097 bytes, at most 4096");
  const auto nested = [](int depth) { return std::string(depth, '(') + "user=a" + std::string(depth, ')'); };
  EXPECT_EQ(Parsed(nested(kMaxFilterDepth)), "user = \"a\"");
  ExpectRefused(nested(kMaxFilterDepth + 1), "within one another");
  ExpectRefused(nested(2000), "within one another");
  const auto chain = [](int conditions) {
    std::string text = "user=a";
    for (int i = 1; i < conditions; ++i) text += " OR user=b";
    return text;
  };
  EXPECT_TRUE(ParseJobFilter(chain(kMaxFilterConditions)).ok());
  ExpectRefused(chain(kMaxFilterConditions + 1), "more than 100 conditions");
}

TEST(JobOrderTest, IsAFieldAndADirection) {
  EXPECT_TRUE(ParseJobOrder("")->descending);
  EXPECT_EQ(ParseJobOrder("")->field, JobOrder::Field::kCreateTime);
  EXPECT_FALSE(ParseJobOrder("create_time")->descending);
  EXPECT_FALSE(ParseJobOrder(" name  asc ")->descending);
  EXPECT_EQ(ParseJobOrder("priority desc")->field, JobOrder::Field::kPriority);
  for (const char* wrong : {"loss", "name up", "name desc desc", "name, user", "desc"}) {
    EXPECT_THAT(std::string(ParseJobOrder(wrong).status().message()), HasSubstr("is not one of create_time")) << wrong;
  }
}

}  // namespace
}  // namespace ampd
