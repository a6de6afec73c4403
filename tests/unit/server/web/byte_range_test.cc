#include "server/web/byte_range.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/http/fake_exchange.h"

namespace ampd {
namespace {

// "offset+length", "whole", or the error's code.
std::string Asked(HttpHeaders headers, int64_t size = 100, const std::string& method = "GET") {
  const FakeExchange exchange(method, "/file", std::move(headers));
  const absl::StatusOr<std::optional<ByteRange>> range = RangeOf(exchange.request(), size, "\"tag\"");
  if (!range.ok()) return absl::StatusCodeToString(range.status().code());
  return *range ? absl::StrCat((*range)->offset, "+", (*range)->length) : "whole";
}

std::string Asked(const std::string& range, int64_t size = 100) { return Asked({{"Range", range}}, size); }

TEST(RangeOf, OneRangeIsWhatRfc9110Says) {
  EXPECT_EQ(Asked("bytes=0-0"), "0+1");
  EXPECT_EQ(Asked("bytes=0-99"), "0+100");
  EXPECT_EQ(Asked("bytes=10-19"), "10+10");
  EXPECT_EQ(Asked("bytes=99-"), "99+1");
  EXPECT_EQ(Asked("BYTES= 5-6 "), "5+2");
  EXPECT_EQ(Asked("bytes=-1"), "99+1");
  EXPECT_EQ(Asked("bytes=-100"), "0+100");
}

TEST(RangeOf, WhatIsBeyondTheEndIsCutOrRefused) {
  EXPECT_EQ(Asked("bytes=90-100"), "90+10");
  EXPECT_EQ(Asked("bytes=90-99999999999999999999999999"), "90+10");
  EXPECT_EQ(Asked("bytes=-99999999999999999999999999"), "0+100");
  EXPECT_EQ(Asked("bytes=100-"), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=100-200"), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=99999999999999999999999999-"), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=-0"), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=0-", 0), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=-1", 0), "OUT_OF_RANGE");
  EXPECT_EQ(Asked("bytes=1-", INT64_MAX), absl::StrCat("1+", INT64_MAX - 1));
}

TEST(RangeOf, WhatIsNotUnderstoodIsTheWhole) {
  for (const char* range :
       {"", "bytes", "bytes=", "bytes=-", "bytes=--1", "bytes=5", "bytes=6-5", "bytes=0-1,5-6", "bytes=0x1-2",
        "bytes=+1-2", "bytes=1 -2", "bytes=-1-2", "bytes=a-b", "items=0-1", "bytes:0-1", "bytes=\xff-"}) {
    EXPECT_EQ(Asked(range), "whole") << range;
  }
  EXPECT_EQ(Asked(HttpHeaders{}), "whole");
  EXPECT_EQ(Asked({{"Range", "bytes=0-1"}}, 100, "HEAD"), "whole");
}

TEST(RangeOf, HoldsForTheBytesThatTheClientHas) {
  EXPECT_EQ(Asked({{"Range", "bytes=0-1"}, {"If-Range", "\"tag\""}}), "0+2");
  for (const char* kept : {"\"other\"", "W/\"tag\"", "tag", "Mon, 23 Nov 2026 02:00:00 GMT", ""}) {
    EXPECT_EQ(Asked({{"Range", "bytes=0-1"}, {"If-Range", kept}}), "whole") << kept;
  }
}

}  // namespace
}  // namespace ampd
