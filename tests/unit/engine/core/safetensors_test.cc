#include "engine/core/safetensors.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using testing::HasSubstr;

std::string File(absl::string_view header, absl::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return absl::StrCat(file, header, data);
}

TensorSource Source(const std::string& name, DType dtype, Shape shape, const std::string* bytes) {
  return {name, dtype, std::move(shape), [bytes]() -> absl::string_view { return *bytes; }};
}

std::string Written(const std::vector<TensorSource>& tensors) {
  std::string file;
  const absl::Status status = WriteSafetensors(tensors, [&](absl::string_view bytes) {
    absl::StrAppend(&file, bytes);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return file;
}

TEST(Safetensors, WhatIsWrittenComesBack) {
  const std::string floats("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40", 12), count("\x05\0\0\0\0\0\0\0", 8),
      none;
  const std::string file =
      Written({Source("a \"quoted\" name", DType::kF32, {3, 1}, &floats), Source("empty", DType::kF16, {0, 4}, &none),
               Source("count", DType::kI64, {}, &count)});
  const auto parsed = Safetensors::Parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->entries().size(), 3u);
  const auto& a = parsed->entries().at("a \"quoted\" name");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(a.shape, (Shape{3, 1}));
  EXPECT_EQ(parsed->Bytes(a), floats);
  EXPECT_EQ(parsed->Bytes(parsed->entries().at("count")), count);
  EXPECT_EQ(parsed->entries().at("empty").shape, (Shape{0, 4}));
}

TEST(Safetensors, TheLayoutIsTheFormats) {
  const std::string data("\x01\x02\x03\x04", 4);
  const std::string file = Written({Source("w", DType::kF32, {1}, &data)});
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_THAT(file.substr(8, length),
              testing::StartsWith("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"));
  EXPECT_EQ(file.substr(8 + length), data);
}

TEST(Safetensors, ASourceOfTheWrongSizeIsAnError) {
  const std::string data = "abc";
  const auto append = [](absl::string_view) { return absl::OkStatus(); };
  EXPECT_FALSE(WriteSafetensors({Source("w", DType::kF32, {1}, &data)}, append).ok());
}

TEST(Safetensors, MetadataIsAllowed) {
  const auto parsed = Safetensors::Parse(File(
      "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "ab"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->entries().size(), 1u);
}

struct Bad {
  std::string header;
  std::string data;
  std::string why;
};

std::string Entry(absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat("{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}");
}

TEST(Safetensors, RefusesHostileHeaders) {
  const std::string good = Entry("U8", "[2]", "[0,2]");
  const std::vector<Bad> rows = {
      {"[]", "", "no object"},
      {"{\"w\":3}", "", "needs exactly"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":[0]}}", "", "needs exactly"},
      {"{\"w\":" + Entry("F8", "[2]", "[0,2]") + "}", "ab", "unknown dtype"},
      {"{\"w\":" + Entry("U8", "[-2]", "[0,2]") + "}", "ab", "extent"},
      {"{\"w\":" + Entry("U8", "[2.0]", "[0,2]") + "}", "ab", "integer"},
      {"{\"w\":" + Entry("U8", "[4294967296,4294967296,4]", "[0,2]") + "}", "ab", "overflows"},
      {"{\"w\":" + Entry("F32", "[4611686018427387904]", "[0,2]") + "}", "ab", "overflows"},
      {"{\"w\":" + Entry("U8", "[2]", "[0,3]") + "}", "ab", "beyond"},
      {"{\"w\":" + Entry("U8", "[2]", "[2,0]") + "}", "ab", "beyond"},
      {"{\"w\":" + Entry("U8", "[2]", "[18446744073709551615,1]") + "}", "ab", "beyond"},
      {"{\"w\":" + Entry("U8", "[3]", "[0,2]") + "}", "ab", "2 bytes for"},
      {"{\"w\":" + Entry("U8", "[2]", "[0,2,3]") + "}", "ab", "not two"},
      {"{\"w\":" + good + ",\"w\":" + good + "}", "ab", "twice"},
      {"{\"v\":" + good + ",\"w\":" + good + "}", "ab", "overlap"},
      {"{\"w\":" + good + "}", "abc", "belong to no tensor"},
      {"{\"w\":" + Entry("U8", "[2]", "[1,3]") + "}", "abc", "belong to no tensor"},
      {"{\"w\":" + good, "ab", "JSON"},
  };
  for (const Bad& row : rows) {
    const auto parsed = Safetensors::Parse(File(row.header, row.data));
    ASSERT_FALSE(parsed.ok()) << row.header;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(row.why)) << row.header;
  }
}

TEST(Safetensors, RefusesHeaderLengthsBeyondTheFile) {
  EXPECT_FALSE(Safetensors::Parse("").ok());
  EXPECT_FALSE(Safetensors::Parse("1234567").ok());
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::string file(reinterpret_cast<const char*>(&length), 8);
    EXPECT_FALSE(Safetensors::Parse(file + "{}").ok()) << length;
  }
}

TEST(Safetensors, NoMutationOfAFileIsReadOutOfBounds) {
  const std::string floats(24, '\x3f'), count(8, '\0');
  const std::string good =
      Written({Source("w", DType::kF32, {2, 3}, &floats), Source("count", DType::kI64, {}, &count)});
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % file.size();
      if (random() % 4 == 0) {
        file.erase(at, random() % 5);
        if (file.empty()) file = good;
      } else {
        file[at] = static_cast<char>(random() % 2 == 0 ? random() : "0123456789,[]{}\""[random() % 16]);
      }
    }
    const auto parsed = Safetensors::Parse(file);
    if (!parsed.ok()) continue;
    ++accepted;
    for (const auto& [name, entry] : parsed->entries()) {
      ASSERT_EQ(static_cast<int64_t>(parsed->Bytes(entry).size()), NumElements(entry.shape) * SizeOf(entry.dtype));
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace ampd
