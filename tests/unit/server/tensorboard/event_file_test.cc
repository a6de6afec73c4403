#include "server/tensorboard/event_file.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

tensorboard::Event Scalar(int64_t step) {
  tensorboard::Event event;
  event.set_step(step);
  tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag("loss");
  value->set_simple_value(0.5f);
  return event;
}

class EventFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<EventFile> Open() {
    absl::StatusOr<std::unique_ptr<EventFile>> file = EventFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  TempDir dir_;
  const std::string path_ = dir_.path() + "/job/events.out.tfevents.1.ampd";
};

// RFC 3720, B.4.
TEST(Crc32cTest, GivesTheStandardsValues) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending.push_back(c);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

TEST_F(EventFileTest, GoesOnBehindWhatIsThere) {
  {
    const auto file = Open();
    EXPECT_EQ(file->sequence(), 0u);
    ASSERT_TRUE(file->Append({Scalar(1), Scalar(2)}, 7).ok());
    ASSERT_TRUE(file->Append({}, 9).ok());
    EXPECT_EQ(file->sequence(), 9u);
  }
  // 8 and 9 became nothing, so that reading them again is harmless.
  EXPECT_EQ(Open()->sequence(), 7u);
  ASSERT_TRUE(Open()->Append({Scalar(3)}, 12).ok());
  EXPECT_EQ(Open()->sequence(), 12u);
}

TEST_F(EventFileTest, GoesOnAfterItWasClosedWithoutReadingAnythingAgain) {
  const auto file = Open();
  ASSERT_TRUE(file->Append({Scalar(1)}, 7).ok());
  ASSERT_TRUE(file->Append({}, 9).ok());
  file->Close();
  EXPECT_FALSE(file->is_open());
  EXPECT_EQ(file->sequence(), 9u);
  ASSERT_TRUE(file->Append({Scalar(2)}, 12).ok());
  EXPECT_TRUE(file->is_open());
  const std::string bytes = ReadBytes(path_);
  std::filesystem::remove(path_);
  const auto other = Open();
  ASSERT_TRUE(other->Append({Scalar(1)}, 7).ok());
  ASSERT_TRUE(other->Append({Scalar(2)}, 12).ok());
  EXPECT_EQ(ReadBytes(path_), bytes);
}

TEST_F(EventFileTest, AFileThatWasChangedWhileItWasClosedIsLeftAlone) {
  const auto file = Open();
  ASSERT_TRUE(file->Append({Scalar(1)}, 7).ok());
  file->Close();
  const std::string shorter = ReadBytes(path_).substr(1);
  std::ofstream(path_, std::ios::binary | std::ios::trunc) << shorter;
  EXPECT_EQ(file->Append({Scalar(2)}, 12).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadBytes(path_), shorter);
  std::filesystem::remove(path_);
  EXPECT_EQ(file->Append({Scalar(2)}, 12).code(), absl::StatusCode::kNotFound);
}

// Whatever a crash left of the last Append, and whatever byte of it is wrong: the file goes on behind the one before.
TEST_F(EventFileTest, CutsOffWhatIsNotWhole) {
  ASSERT_TRUE(Open()->Append({Scalar(1)}, 5).ok());
  const std::string whole = ReadBytes(path_);
  ASSERT_TRUE(Open()->Append({Scalar(2), Scalar(3)}, 8).ok());
  const std::string longer = ReadBytes(path_);
  for (size_t size = whole.size(); size < longer.size(); ++size) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << longer.substr(0, size);
    EXPECT_EQ(Open()->sequence(), 5u);
    EXPECT_EQ(ReadBytes(path_), whole) << size;
  }
  for (size_t i = whole.size(); i < longer.size(); ++i) {
    std::string damaged = longer;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << damaged;
    EXPECT_EQ(Open()->sequence(), 5u) << i;
  }
}

TEST_F(EventFileTest, RefusesALinkAndAFolder) {
  std::filesystem::create_directories(path_);
  EXPECT_FALSE(EventFile::Open(path_).ok());
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(dir_.path() + "/elsewhere", path_);
  EXPECT_FALSE(EventFile::Open(path_).ok());
}

TEST_F(EventFileTest, WhatHasNoRoomIsNamedAndLeavesTheFileWhole) {
  const auto file = Open();
  ASSERT_TRUE(file->Append({Scalar(1)}, 5).ok());
  const std::string whole = ReadBytes(path_);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = whole.size() + 10;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &limit);
  const absl::Status status = file->Append({Scalar(2)}, 6);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path_));
  EXPECT_EQ(ReadBytes(path_), whole);
  EXPECT_EQ(Open()->sequence(), 5u);
}

}  // namespace
}  // namespace ampd
