#include "proto/spec/utf8.h"

#include <string>

#include "ampd/v1/event.pb.h"
#include "ampd/v1/worker_link.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

TEST(ValidUtf8, KeepsWhatIsWellFormed) {
  const std::string text(
      "a\n\0\x7f\xC2\x80\xC3\xA9\xE2\x82\xAC\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", 25);
  EXPECT_EQ(ValidUtf8(text), text);
  EXPECT_EQ(ValidUtf8(""), "");
}

TEST(ValidUtf8, ReplacesEachByteThatIsPartOfNoCharacter) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ValidUtf8("\x80"), r);
  EXPECT_EQ(ValidUtf8("a\xFFz"), "a" + r + "z");
  // Cut off, at the end and in the middle.
  EXPECT_EQ(ValidUtf8("\xE2\x82"), r + r);
  EXPECT_EQ(ValidUtf8("\xC3z"), r + "z");
  // Overlong, a surrogate, above U+10FFFF.
  EXPECT_EQ(ValidUtf8("\xC0\x80"), r + r);
  EXPECT_EQ(ValidUtf8("\xE0\x9F\xBF"), r + r + r);
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(ValidUtf8("\xF0\x8F\xBF\xBF"), r + r + r + r);
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80"), r + r + r + r);
}

// protobuf's own reader is the judge: it takes no message with such a text.
TEST(MakeValidUtf8, WhatProtobufWouldNotReadAgainIsRead) {
  v1::PlanResponse response;
  response.set_data_error("caf\xE9.csv");
  response.add_errors()->set_description("column 'n\xC3'");
  response.add_errors()->set_field("\xFF");
  v1::PlanResponse parsed;
  ASSERT_FALSE(parsed.ParseFromString(response.SerializeAsString()));
  MakeValidUtf8(&response);
  ASSERT_TRUE(parsed.ParseFromString(response.SerializeAsString()));
  EXPECT_EQ(parsed.data_error(), "caf\xEF\xBF\xBD.csv");
  EXPECT_EQ(parsed.errors(0).description(), "column 'n\xEF\xBF\xBD'");
  EXPECT_EQ(parsed.errors(1).field(), "\xEF\xBF\xBD");
}

TEST(MakeValidUtf8, WhatIsValidStays) {
  v1::JobEvent event;
  event.mutable_corrupt_sample()->set_file("caf\xC3\xA9.png");
  event.mutable_corrupt_sample()->set_corrupt(3);
  const v1::JobEvent before = event;
  MakeValidUtf8(&event);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(event, before)) << event.DebugString();
}

}  // namespace
}  // namespace ampd
