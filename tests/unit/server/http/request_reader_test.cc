#include "server/http/request_reader.h"

#include <gmock/gmock.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kPost[] = "POST /a?b=c HTTP/1.1\r\nHost: x\r\n";

RequestReader ReadOf(absl::string_view text, size_t step = SIZE_MAX) {
  RequestReader reader;
  for (size_t i = 0; i < text.size(); i += std::min(step, text.size())) reader.Take(text.substr(i, step));
  return reader;
}

int StatusOf(absl::string_view text) {
  RequestReader reader = ReadOf(text);
  // However it is cut it means the same.
  for (const size_t step : {1, 2, 3, 7}) {
    RequestReader cut = ReadOf(text, step);
    EXPECT_EQ(cut.done(), reader.done()) << text;
    EXPECT_EQ(cut.http_status(), reader.http_status()) << text;
    EXPECT_EQ(cut.body(), reader.body()) << text;
    EXPECT_EQ(cut.request().headers, reader.request().headers) << text;
  }
  return reader.done() ? reader.http_status() : -1;
}

TEST(RequestReaderTest, TakesARequestApart) {
  RequestReader reader = ReadOf("GET /a/b%20c?d=e?f HTTP/1.1\r\nHost:h:1\r\nX-Y: \t a: b \t\r\nx-y:\r\n\r\nGET / ");
  ASSERT_TRUE(reader.done());
  ASSERT_TRUE(reader.status().ok()) << reader.status();
  EXPECT_EQ(reader.request().method, "GET");
  EXPECT_EQ(reader.request().path, "/a/b%20c");
  EXPECT_EQ(reader.request().query, "d=e?f");
  EXPECT_THAT(reader.request().headers, ElementsAre(Pair("Host", "h:1"), Pair("X-Y", "a: b"), Pair("x-y", "")));
  EXPECT_EQ(reader.body(), "");
  EXPECT_EQ(StatusOf("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: \r\n\r\n"), 0);
}

TEST(RequestReaderTest, TheAuthorityOfAnAbsoluteTargetTakesThePlaceOfHost) {
  RequestReader reader = ReadOf("GET HTTP://h:1/a/b%20c?d=e HTTP/1.1\r\nA: b\r\nhost: other\r\nC: d\r\n\r\n");
  ASSERT_TRUE(reader.done());
  ASSERT_TRUE(reader.status().ok()) << reader.status();
  EXPECT_EQ(reader.request().path, "/a/b%20c");
  EXPECT_EQ(reader.request().query, "d=e");
  EXPECT_THAT(reader.request().headers, ElementsAre(Pair("A", "b"), Pair("C", "d"), Pair("Host", "h:1")));
  reader = ReadOf("GET https://[::1] HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(reader.done() && reader.status().ok()) << reader.status();
  EXPECT_EQ(reader.request().path, "/");
  EXPECT_THAT(reader.request().headers, ElementsAre(Pair("Host", "[::1]")));
  // The rules about Host hold all the same.
  EXPECT_EQ(StatusOf("GET http://h/ HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http://h/ HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http://a@h/ HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
}

TEST(RequestReaderTest, IsNotDoneBeforeTheEnd) {
  const std::string head = absl::StrCat(kPost, "Content-Length: 3\r\n\r\n");
  EXPECT_FALSE(RequestReader().begun());
  for (size_t size = 0; size < head.size() + 3; ++size) {
    RequestReader reader = ReadOf(absl::StrCat(head, "xyz").substr(0, size));
    EXPECT_FALSE(reader.done()) << size;
    reader.TakeEnd();
    EXPECT_EQ(reader.http_status(), 400);
  }
}

TEST(RequestReaderTest, TakesBodies) {
  const auto body = [](const std::string& rest) {
    const std::string text = absl::StrCat(kPost, rest);
    EXPECT_EQ(StatusOf(text), 0) << rest;
    return ReadOf(text).body();
  };
  EXPECT_EQ(body("Content-Length: 3\r\n\r\nxyzw"), "xyz");
  EXPECT_EQ(body("Content-Length: 000\r\n\r\nxyz"), "");
  EXPECT_EQ(body("\r\nxyz"), "");
  EXPECT_EQ(body("Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n"), "");
  EXPECT_EQ(body("Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nx\r\n\r\n00a \r\n0123456789\r\n0\r\nA: b\r\n\r\n"),
            "x\r\n0123456789");
  const std::string most(kMaxBodyBytes, 'x');
  EXPECT_EQ(ReadOf(absl::StrCat(kPost, "Content-Length: ", most.size(), "\r\n\r\n", most)).body(), most);
}

TEST(RequestReaderTest, DoesNotReadWhatIsTooLong) {
  const std::string one_more = absl::StrCat("Content-Length: ", kMaxBodyBytes + 1, "\r\n\r\n");
  for (const std::string& rest : {one_more, std::string("Content-Length: 99999999999999999999999\r\n\r\n"),
                                  std::string("Transfer-Encoding: chunked\r\n\r\n10001\r\n"),
                                  std::string("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n10000\r\n"),
                                  std::string("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n")}) {
    RequestReader reader = ReadOf(absl::StrCat(kPost, rest));
    EXPECT_TRUE(reader.done()) << rest;
    EXPECT_TRUE(reader.status().ok()) << rest;
    EXPECT_TRUE(reader.is_body_too_long()) << rest;
  }
}

TEST(RequestReaderTest, RefusesWhatOthersCouldReadOtherwise) {
  const std::vector<std::string> bad_heads = {"\r\n",
                                              "GET\r\n",
                                              "GET /\r\n",
                                              "GET / HTTP/1.1 x\r\nHost: x\r\n",
                                              "GET  / HTTP/1.1\r\nHost: x\r\n",
                                              " GET / HTTP/1.1\r\nHost: x\r\n",
                                              "G(T / HTTP/1.1\r\nHost: x\r\n",
                                              "GET / http/1.1\r\nHost: x\r\n",
                                              "GET / HTTP/1.1\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n",
                                              "GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\r\n: b\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\nA: b\r\n",
                                              "GET / HTTP/1.1\r\nHost: x\rA: b\r\n"};
  for (const std::string& head : bad_heads) EXPECT_EQ(StatusOf(absl::StrCat(head, "\r\n")), 400) << head;
  for (const char* rest :
       {"Content-Length: \r\n\r\n", "Content-Length: -1\r\n\r\n", "Content-Length: +1\r\n\r\n",
        "Content-Length: 1x\r\n\r\n", "Content-Length: 0x1\r\n\r\n", "Content-Length: 1, 1\r\n\r\n",
        "Content-Length: 1\r\ncontent-length: 1\r\n\r\n", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    EXPECT_EQ(StatusOf(absl::StrCat(kPost, rest)), 400) << rest;
  }
  EXPECT_EQ(StatusOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  for (const char* coding : {"gzip, chunked", "xchunked", "identity", ""}) {
    EXPECT_EQ(StatusOf(absl::StrCat(kPost, "Transfer-Encoding: ", coding, "\r\n\r\n")), 501) << coding;
  }
  for (const char* body :
       {"\r\n", "x\r\n", "0x1\r\n", "-1\r\n", "+1\r\n", " ;\r\n", "1\n", "1\r\nxy\r\n", "1\r\nxy", "0\r\nA: b\n"}) {
    EXPECT_EQ(StatusOf(absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n", body, "\r\n\r\n")), 400) << body;
  }
  EXPECT_EQ(StatusOf("GET / HTTP/2.0\r\n\r\n"), 505);
}

TEST(RequestReaderTest, RefusesAtOnceWhatIsNoHead) {
  EXPECT_EQ(StatusOf(absl::string_view("\x16\x03\x01", 3)), 400);
  EXPECT_EQ(StatusOf(absl::string_view("GET /\0", 6)), 400);
  EXPECT_EQ(StatusOf(absl::StrCat(kPost, "A: \x7F")), 400);
  EXPECT_EQ(StatusOf(std::string(kMaxHeadBytes, 'a')), 431);
  EXPECT_EQ(StatusOf(std::string(kMaxHeadBytes - 1, 'a')), -1);
  std::string many = kPost;
  for (size_t i = 1; i < kMaxHeaders; ++i) absl::StrAppend(&many, "A:\r\n");
  EXPECT_EQ(StatusOf(absl::StrCat(many, "\r\n")), 0);
  EXPECT_EQ(StatusOf(absl::StrCat(many, "A:\r\n\r\n")), 431);
}

TEST(RequestReaderTest, WhatIsAroundChunksIsBounded) {
  const std::string head = absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(StatusOf(absl::StrCat(head, "1;", std::string(1000, 'x'))), 400);
  EXPECT_EQ(StatusOf(absl::StrCat(head, std::string(1000, '0'))), 400);
  std::string trailer = absl::StrCat(head, "0\r\n");
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&trailer, "A: bcd\r\n");
  EXPECT_EQ(StatusOf(trailer), 431);
}

TEST(RequestReaderTest, KnowsWhoWaitsForAWord) {
  const std::string expects = absl::StrCat(kPost, "Expect: 100-Continue\r\n");
  RequestReader reader = ReadOf(absl::StrCat(expects, "Content-Length: 3\r\n\r\n"));
  EXPECT_TRUE(reader.TakeExpectation());
  EXPECT_FALSE(reader.TakeExpectation());
  EXPECT_FALSE(ReadOf(absl::StrCat(expects, "Content-Length: 3\r\n\r\nabc")).TakeExpectation());
  EXPECT_FALSE(ReadOf(absl::StrCat(expects, "Content-Length: 99999999\r\n\r\n")).TakeExpectation());
  EXPECT_FALSE(ReadOf(absl::StrCat(expects, "\r\n")).TakeExpectation());
}

TEST(RequestReaderTest, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(ReadOf("GET / HTTP/1.1\r\nHost: x\r\nA b\r\n\r\n").status().message()),
              HasSubstr("NAME: VALUE"));
}

}  // namespace
}  // namespace ampd
