#include "server/launch/worker_account.h"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerAccount, IsFoundByNameAndNumber) {
  const passwd* nobody = getpwnam("nobody");
  if (nobody == nullptr) GTEST_SKIP() << "this machine has no user nobody";
  const uid_t uid = nobody->pw_uid;
  const gid_t gid = nobody->pw_gid;
  const std::string home = nobody->pw_dir;
  for (const std::string& text : {std::string("nobody"), absl::StrCat(uid)}) {
    const WorkerAccount account = FindWorkerAccount(text).value();
    EXPECT_EQ(account.uid, uid);
    EXPECT_EQ(account.gid, gid);
    EXPECT_EQ(account.home, home);
    EXPECT_THAT(account.groups, Contains(gid));
    EXPECT_THAT(account.groups, Each(Not(0u)));
  }
}

TEST(WorkerAccount, RootAndWhoIsNotThereAreRefused) {
  for (const char* root : {"root", "0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(FindWorkerAccount(root).status())) << root;
  }
  for (const char* none : {"no-such-user", "4000000001", "-1", " ", "99999999999"}) {
    const absl::Status status = FindWorkerAccount(none).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(none));
  }
}

TEST(WorkerAccount, TextsAreReadAsTheyAreWritten) {
  const WorkerAccount account{1000, 1001, {1001, 44}, "/nowhere/x"};
  EXPECT_EQ(RunAsText(account), "1000:1001:1001,44");
  const WorkerAccount read = ParseRunAs(RunAsText(account)).value();
  EXPECT_EQ(read.uid, 1000u);
  EXPECT_EQ(read.gid, 1001u);
  EXPECT_THAT(read.groups, ElementsAre(1001, 44));
  EXPECT_TRUE(ParseRunAs("1:2:").has_value());
}

TEST(WorkerAccount, WhatTheDaemonLacksIsNamed) {
  if (geteuid() != 0) {
    const absl::Status status = CheckMayRunAsOthers();
    EXPECT_TRUE(absl::IsPermissionDenied(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("CAP_SETUID"));
    return;
  }
  const pid_t pid = fork();
  if (pid == 0) _exit(setuid(54321) == 0 && absl::IsPermissionDenied(CheckMayRunAsOthers()) ? 0 : 1);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(WorkerAccount, FoldersThatAreInTheWayAreNamed) {
  const std::string folder = absl::StrCat("/tmp/worker_account_test_", getpid());
  std::filesystem::create_directories(folder + "/closed/open");
  chmod(folder.c_str(), 0755);
  chmod((folder + "/closed").c_str(), 0700);
  const WorkerAccount stranger{54321, 54321, {54321}, ""};
  EXPECT_THAT(FoldersThatKeepOut(stranger, folder + "/closed/open"), ElementsAre(folder + "/closed"));
  EXPECT_THAT(FoldersThatKeepOut({getuid(), 54321, {}, ""}, folder + "/closed/open"), testing::IsEmpty());
  chmod((folder + "/closed").c_str(), 0710);
  EXPECT_THAT(FoldersThatKeepOut({54321, getgid(), {}, ""}, folder + "/closed/open"), testing::IsEmpty());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ampd
