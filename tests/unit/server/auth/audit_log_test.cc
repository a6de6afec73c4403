#include "server/auth/audit_log.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

AuditRecord Record(const std::string& resource) {
  return {absl::FromUnixMillis(1'800'000'000'123),
          {"ann", v1::SUBMITTER, "01abc"},
          "ipv4:127.0.0.1:5",
          "CancelJob",
          resource,
          "",
          "OK"};
}

std::string FieldOf(const std::string& line, const std::string& name) {
  google::protobuf::Struct fields;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &fields).ok()) << line;
  const auto found = fields.fields().find(name);
  return found == fields.fields().end() ? "(none)" : found->second.string_value();
}

TEST(AuditLogTest, ALineIsAnObject) {
  EXPECT_EQ(FormatAuditLine(Record("01job")),
            R"({"time":"2027-01-15T08:00:00.123Z","user":"ann","token":"01abc","role":"SUBMITTER",)"
            R"("peer":"ipv4:127.0.0.1:5","method":"CancelJob","resource":"01job","code":"OK"})");
  EXPECT_EQ(FormatAuditLine({absl::UnixEpoch(), {}, "", "CreateJob", "", "01new", "UNAUTHENTICATED"}),
            R"({"time":"1970-01-01T00:00:00.000Z","method":"CreateJob","made":"01new","code":"UNAUTHENTICATED"})");
}

TEST(AuditLogTest, NoNameBreaksALine) {
  for (const std::string& name :
       {std::string("a\nb\"c\\"), std::string("\x00\x01\x7f", 3), std::string("\xff\xfe"), std::string(100'000, 'x')}) {
    const std::string line = FormatAuditLine(Record(name));
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_LT(line.size(), 2000u);
    EXPECT_EQ(FieldOf(line, "code"), "OK");
  }
  EXPECT_EQ(FieldOf(FormatAuditLine(Record("a\nb\"c")), "resource"), "a\nb\"c");
}

TEST(AuditLogTest, AppendsToAFileOfItsOwner) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  for (int run = 0; run < 2; ++run) {
    const auto log = AuditLog::Open({.path = path});
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Write(Record("01job"));
  }
  EXPECT_EQ(Lines(path).size(), 2u);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(AuditLog::Open({.path = dir.path()}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(AuditLog::Open({.path = dir.path() + "/no/audit.log"}).ok());
}

TEST(AuditLogTest, FilesMoveOnAndTheOldestGoes) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto size = static_cast<int64_t>(FormatAuditLine(Record("0")).size()) + 1;
  const auto log = *AuditLog::Open({.path = path, .max_bytes = 2 * size, .keep = 2});
  for (int i = 0; i < 9; ++i) log->Write(Record(absl::StrCat(i)));
  const auto resources = [](const std::string& file) {
    std::vector<std::string> names;
    for (const std::string& line : Lines(file)) names.push_back(FieldOf(line, "resource"));
    return names;
  };
  EXPECT_THAT(resources(path), ElementsAre("8"));
  EXPECT_THAT(resources(path + ".1"), ElementsAre("6", "7"));
  EXPECT_THAT(resources(path + ".2"), ElementsAre("4", "5"));
  EXPECT_FALSE(std::filesystem::exists(path + ".3"));
}

TEST(AuditLogTest, WhoMovesTheFileAwayGetsANewOne) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto log = *AuditLog::Open({.path = path});
  log->Write(Record("1"));
  std::filesystem::rename(path, path + ".old");
  log->Write(Record("2"));
  EXPECT_EQ(Lines(path + ".old").size(), 1u);
  EXPECT_EQ(Lines(path).size(), 1u);
}

TEST(AuditLogTest, WhatIsLostIsToldOnceAndCounted) {
  TempDir dir;
  const std::string folder = dir.path() + "/logs";
  std::filesystem::create_directory(folder);
  std::vector<std::string> told;
  const auto log =
      *AuditLog::Open({.path = folder + "/audit.log", .log = [&](const std::string& text) { told.push_back(text); }});
  log->Write(Record("1"));
  EXPECT_THAT(told, IsEmpty());
  std::filesystem::rename(folder, folder + ".away");
  for (int i = 0; i < 3; ++i) log->Write(Record("2"));
  ASSERT_EQ(told.size(), 1u);
  std::filesystem::rename(folder + ".away", folder);
  log->Write(Record("3"));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_THAT(told[1], testing::HasSubstr("misses 3 calls"));
  EXPECT_EQ(Lines(folder + "/audit.log").size(), 2u);
}

TEST(AuditLogTest, LinesOfSeveralThreadsAreWhole) {
  TempDir dir;
  const std::string path = dir.path() + "/audit.log";
  const auto log = *AuditLog::Open({.path = path});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) log->Write(Record("x"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines(path);
  ASSERT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) EXPECT_EQ(line, lines[0]);
}

}  // namespace
}  // namespace ampd
