#include "server/worker/spool_file.h"

#include <sys/stat.h>

#include <deque>
#include <filesystem>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

std::string Directory(const std::string& name) { return testing::TempDir() + "/spool_file_test_" + name; }

TEST(SpoolFile, GivesRecordsBackInOrder) {
  SpoolFile spool(Directory("order"), 1 << 20);
  std::deque<std::string> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    if (!expected.empty() && random() % 3 == 0) {
      auto record = spool.Pop();
      ASSERT_TRUE(record.ok()) << record.status();
      ASSERT_EQ(*record, expected.front());
      expected.pop_front();
    } else {
      std::string record(random() % 200, static_cast<char>('a' + i % 26));
      ASSERT_TRUE(spool.Push(record).ok());
      expected.push_back(record);
    }
  }
  for (const std::string& record : expected) ASSERT_EQ(spool.Pop().value(), record);
  EXPECT_TRUE(spool.empty());
}

TEST(SpoolFile, RefusesBeyondItsBoundAndKeepsWhatItHas) {
  SpoolFile spool(Directory("bound"), 100);
  ASSERT_TRUE(spool.Push(std::string(90, 'x')).ok());
  EXPECT_EQ(spool.Push("1234567").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(spool.Pop().value(), std::string(90, 'x'));
  EXPECT_TRUE(spool.Push(std::string(96, 'y')).ok());
  EXPECT_EQ(spool.Pop().value(), std::string(96, 'y'));
}

TEST(SpoolFile, LeavesNoFileBehind) {
  const std::string directory = Directory("nameless");
  {
    SpoolFile spool(directory, 1000);
    ASSERT_TRUE(spool.Push("record").ok());
    EXPECT_TRUE(std::filesystem::is_empty(directory));
  }
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST(SpoolFile, SaysWhyItCannotBeMade) {
  SpoolFile spool("/proc/no/such/folder", 1000);
  const absl::Status status = spool.Push("record");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/proc/no/such/folder"));
}

TEST(SpoolFile, AnEmptyOneHasNothingToGive) {
  EXPECT_EQ(SpoolFile(Directory("empty"), 10).Pop().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ampd
