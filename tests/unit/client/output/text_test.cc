#include "client/output/text.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"
#include "tests/unit/client/time_zone.h"

namespace ampd::client {
namespace {

TEST(TextTest, Figures) {
  EXPECT_EQ(Figure(0.3121456), "0.3121");
  EXPECT_EQ(Figure(0.91), "0.91");
  EXPECT_EQ(Figure(65536), "65536");
  EXPECT_EQ(Figure(1e30), "1e+30");
  EXPECT_EQ(Figure(0), "0");
  EXPECT_EQ(Figure(std::nan("")), "nan");
  EXPECT_EQ(Figure(-std::nan("")), "nan");
  EXPECT_EQ(Figure(-INFINITY), "-inf");
}

TEST(TextTest, Counts) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(950.4), "950");
  EXPECT_EQ(Count(999.9), "1.0k");
  EXPECT_EQ(Count(9100), "9.1k");
  EXPECT_EQ(Count(123456), "123k");
  EXPECT_EQ(Count(12e6), "12.0M");
  EXPECT_EQ(Count(1e30), "1000000000000000000T");
}

TEST(TextTest, ByteCounts) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Bytes(int64_t{139} << 30), "139 GiB");
  EXPECT_EQ(Bytes(INT64_MAX), "8192 PiB");
}

TEST(TextTest, StepTimesAndShares) {
  EXPECT_EQ(StepTime(9.87654e-6), "9.88 us");
  EXPECT_EQ(StepTime(0.00125), "1.25 ms");
  EXPECT_EQ(StepTime(2.1), "2.1 s");
  EXPECT_EQ(Percent(0.4125), "41.2%");
  EXPECT_EQ(Percent(0), "0.0%");
}

TEST(TextTest, Durations) {
  EXPECT_EQ(Duration(0), "0:00");
  EXPECT_EQ(Duration(7.4), "0:07");
  EXPECT_EQ(Duration(59.6), "1:00");
  EXPECT_EQ(Duration(725), "12:05");
  EXPECT_EQ(Duration(10807), "3:00:07");
  EXPECT_EQ(Duration(500000), "5d 18h");
  EXPECT_EQ(Duration(-1), "-");
  EXPECT_EQ(Duration(std::nan("")), "-");
  EXPECT_EQ(Duration(INFINITY), "-");
}

// Zones by rules, which need no data of the machine's.
TEST(TextTest, TimesAreOfTheZoneInTheEnvironment) {
  google::protobuf::Timestamp time;
  EXPECT_EQ(DateAndTime(time), "-");
  EXPECT_EQ(UtcTime(time), "-");
  time.set_seconds(1769860801);
  {
    const ScopedTimeZone utc("UTC");
    EXPECT_EQ(DateAndTime(time), "2026-01-31 12:00:01");
    EXPECT_EQ(TimeOfDay(time), "12:00:01");
    EXPECT_EQ(ZoneOf(time), "UTC");
  }
  {
    const ScopedTimeZone india("IST-5:30");
    EXPECT_EQ(DateAndTime(time), "2026-01-31 17:30:01");
    EXPECT_EQ(TimeOfDay(time), "17:30:01");
    EXPECT_EQ(ZoneOf(time), "IST");
    EXPECT_EQ(UtcTime(time), "2026-01-31T12:00:01Z");
  }
  // Half a year later the clocks of this one are an hour ahead.
  const ScopedTimeZone berlin("CET-1CEST,M3.5.0,M10.5.0/3");
  EXPECT_EQ(DateAndTime(time), "2026-01-31 13:00:01");
  EXPECT_EQ(ZoneOf(time), "CET");
  time.set_seconds(1769860801 + 181 * 86400);
  EXPECT_EQ(DateAndTime(time), "2026-07-31 14:00:01");
  EXPECT_EQ(ZoneOf(time), "CEST");
}

TEST(TextTest, TimesThatNoCalendarHas) {
  google::protobuf::Timestamp time;
  time.set_seconds(INT64_MAX);
  EXPECT_EQ(DateAndTime(time), "-");
}

TEST(TextTest, DollarsAreAsExactAsTheyMatter) {
  EXPECT_EQ(Dollars(0), "$0");
  EXPECT_EQ(Dollars(0.022345), "$0.0223");
  EXPECT_EQ(Dollars(12.345678), "$12.35");
  EXPECT_EQ(Dollars(12345.6), "$12345.60");
}

TEST(TextTest, CleanTakesTheTerminalOutOfForeignHands) {
  EXPECT_EQ(Clean("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(Clean("a\x1b[2Jb\x07"), "a?[2Jb?");
  EXPECT_EQ(Clean("a\nb\tc\r\n"), "a b c?");
  EXPECT_EQ(Clean("a\xc2\x9b"
                  "2J"),
            "a?2J");
  EXPECT_EQ(Clean("\xc2\xa0"), "\xc2\xa0");
}

TEST(TextTest, TruncateCountsCharacters) {
  EXPECT_EQ(Truncate("abc", 5), "abc");
  EXPECT_EQ(Truncate("abc", 2), "ab");
  EXPECT_EQ(Truncate("\xc3\xa9\xc3\xa9\xc3\xa9", 2), "\xc3\xa9\xc3\xa9");
  EXPECT_EQ(Truncate("abc", 0), "");
}

}  // namespace
}  // namespace ampd::client
