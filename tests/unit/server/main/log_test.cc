#include "server/main/log.h"

#include "gtest/gtest.h"

namespace ampd {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1'769'860'800'123);

std::string Line(v1::ServerConfig::LogFormat format, absl::string_view text, const LogSubject& subject = {}) {
  return FormatLogLine(format, kTime, Severity::kWarning, text, subject);
}

TEST(Log, Text) {
  EXPECT_EQ(Line(v1::ServerConfig::TEXT, "a\nb\x01"), "2026-01-31T12:00:00.123Z WARNING a b?");
  EXPECT_EQ(Line(v1::ServerConfig::TEXT, "RUNNING", {"01hz", 2}),
            "2026-01-31T12:00:00.123Z WARNING job 01hz attempt 2 RUNNING");
  EXPECT_EQ(Line(v1::ServerConfig::TEXT, "QUEUED", {"01hz", 0}), "2026-01-31T12:00:00.123Z WARNING job 01hz QUEUED");
}

TEST(Log, Json) {
  EXPECT_EQ(Line(v1::ServerConfig::JSON, "say \"a\"\n\xff\xc3\xa4"),
            "{\"time\":\"2026-01-31T12:00:00.123Z\",\"severity\":\"WARNING\","
            "\"text\":\"say \\\"a\\\"\\n\xEF\xBF\xBD\xc3\xa4\"}");
  EXPECT_EQ(Line(v1::ServerConfig::JSON, "RUNNING", {"01hz", 2}),
            "{\"time\":\"2026-01-31T12:00:00.123Z\",\"severity\":\"WARNING\",\"job\":\"01hz\",\"attempt\":2,"
            "\"text\":\"RUNNING\"}");
}

}  // namespace
}  // namespace ampd
