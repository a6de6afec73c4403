#include "server/main/disk_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

TEST(SpaceJudgeTest, RoomIsShortBelowTheLeastAndEnoughAgainWithAQuarterMore) {
  SpaceJudge judge(1000);
  EXPECT_EQ(judge.Look(1000), "");
  const std::string shortage = judge.Look(999);
  EXPECT_THAT(shortage, HasSubstr("999 bytes"));
  EXPECT_THAT(shortage, HasSubstr("again with 1250"));
  EXPECT_NE(judge.Look(1000), "");
  EXPECT_NE(judge.Look(1249), "");
  EXPECT_EQ(judge.Look(1250), "");
  EXPECT_EQ(judge.Look(1000), "") << "the least alone is enough once it was enough";
}

TEST(SpaceJudgeTest, WhatCannotBeToldChangesNothing) {
  SpaceJudge judge(1000);
  EXPECT_EQ(judge.Look(std::nullopt), "");
  const std::string shortage = judge.Look(0);
  EXPECT_EQ(judge.Look(std::nullopt), shortage);
}

TEST(SpaceJudgeTest, WithoutALeastThereIsAlwaysRoom) { EXPECT_EQ(SpaceJudge(0).Look(0), ""); }

TEST(DiskWatchTest, TellsOfAShortageOfTheRealDisk) {
  const TempDir dir;
  SpaceJudge judge(int64_t{1} << 60);
  std::promise<std::string> told;
  DiskWatch::Options options;
  options.directory = dir.path();
  options.period = absl::Hours(1);
  options.report = [&](const std::string& shortage) { told.set_value(shortage); };
  const DiskWatch watch(std::move(options), &judge);
  EXPECT_THAT(told.get_future().get(), HasSubstr("min_free_bytes"));
}

TEST(DiskWatchTest, FreeBytesOfWhatIsNotThereAreUnknown) {
  EXPECT_FALSE(FreeBytes("/no/such/folder").has_value());
  EXPECT_GT(FreeBytes("/").value_or(-1), -1);
}

}  // namespace
}  // namespace ampd
