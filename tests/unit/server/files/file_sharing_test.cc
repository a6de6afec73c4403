// What another user can reach is tried as that user, in processes of its own; only root can have such.
#include "server/files/file_sharing.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

// Ids of nobody's: no account is needed.
constexpr uid_t kUid = 54321, kStranger = 54322;
constexpr gid_t kGid = 54321;

class FileSharingTest : public testing::Test {
 protected:
  FileSharingTest() {
    umask(077);
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/a/b");
    std::ofstream(folder_ + "/a/b/file") << "text";
  }
  ~FileSharingTest() override { fs::remove_all(folder_); }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give files to another user";
  }

  static bool As(uid_t uid, const std::function<bool()>& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      const bool done = setgroups(0, nullptr) == 0 && setgid(uid == kUid ? kGid : uid) == 0 && setuid(uid) == 0;
      _exit(done && body() ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  static bool Opens(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }
  static bool Reads(uid_t uid, const std::string& path) {
    return As(uid, [&] { return Opens(path, O_RDONLY); });
  }
  static bool Writes(uid_t uid, const std::string& path) {
    return As(uid, [&] { return Opens(path, O_WRONLY | O_CREAT); });
  }

  const FileSharing sharing_{kUid, kGid};
  const std::string folder_ = absl::StrCat("/tmp/file_sharing_test_", getpid());
};

TEST_F(FileSharingTest, PassingShowsNothing) {
  ASSERT_TRUE(sharing_.LetPass(folder_).ok());
  ASSERT_TRUE(sharing_.LetRead(folder_ + "/a").ok());
  EXPECT_FALSE(Reads(kUid, folder_));
  EXPECT_TRUE(Reads(kUid, folder_ + "/a"));
  EXPECT_FALSE(Reads(kStranger, folder_ + "/a"));
  EXPECT_FALSE(Writes(kUid, folder_ + "/new"));
}

TEST_F(FileSharingTest, WhatIsReadIsNotChanged) {
  ASSERT_TRUE(sharing_.LetPass(folder_).ok());
  EXPECT_FALSE(Reads(kUid, folder_ + "/a/b/file"));
  ASSERT_TRUE(sharing_.LetReadAllIn(folder_).ok());
  EXPECT_TRUE(Reads(kUid, folder_ + "/a/b/file"));
  EXPECT_TRUE(Reads(kUid, folder_ + "/a/b"));
  EXPECT_FALSE(Reads(kStranger, folder_ + "/a/b/file"));
  EXPECT_FALSE(Writes(kUid, folder_ + "/a/b/file"));
  EXPECT_FALSE(Writes(kUid, folder_ + "/a/b/new"));
  EXPECT_TRUE(sharing_.LetReadAllIn(folder_ + "/none").ok());
  EXPECT_FALSE(sharing_.LetRead(folder_ + "/none").ok());
}

TEST_F(FileSharingTest, WhatIsGivenIsTheirs) {
  ASSERT_TRUE(sharing_.LetPass(folder_).ok());
  ASSERT_TRUE(sharing_.Give(folder_ + "/a").ok());
  EXPECT_TRUE(Writes(kUid, folder_ + "/a/b/file"));
  EXPECT_TRUE(Writes(kUid, folder_ + "/a/b/new"));
  EXPECT_FALSE(Reads(kStranger, folder_ + "/a"));
  EXPECT_TRUE(sharing_.Give(folder_ + "/a").ok()) << "again is harmless";
  const absl::Status third = FileSharing(kStranger, kStranger).Give(folder_ + "/a");
  EXPECT_TRUE(absl::IsFailedPrecondition(third)) << third;
  EXPECT_FALSE(Writes(kStranger, folder_ + "/a/b/file"));
}

TEST_F(FileSharingTest, LinksLeadNowhere) {
  const std::string secret = absl::StrCat(folder_, ".secret");
  std::ofstream(secret) << "secret";
  fs::create_symlink(secret, folder_ + "/a/link");
  fs::create_symlink(folder_ + "/a", folder_ + "/whole");
  EXPECT_TRUE(sharing_.LetRead(folder_ + "/whole").ok());
  EXPECT_FALSE(sharing_.Give(folder_ + "/none").ok());
  ASSERT_TRUE(sharing_.Give(folder_).ok());
  struct stat info {};
  ASSERT_EQ(stat(secret.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, geteuid());
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(lstat((folder_ + "/a/link").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kUid);
  fs::remove(secret);
}

TEST_F(FileSharingTest, WithNobodyNothingChanges) {
  const FileSharing none;
  EXPECT_TRUE(none.LetPass(folder_).ok() && none.LetRead(folder_).ok() && none.Give(folder_).ok());
  EXPECT_TRUE(none.Give("/no/such/folder").ok());
  struct stat info {};
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(info.st_uid, geteuid());
}

}  // namespace
}  // namespace ampd
