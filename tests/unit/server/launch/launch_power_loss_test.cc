// What a worker of another user has written and synced is there after a power loss: tests/support/power_loss.h says
// what a disk keeps.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "server/files/files.h"
#include "server/launch/local_process.h"
#include "tests/support/power_loss.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

class LaunchPowerLossTest : public testing::Test {
 protected:
  void SetUp() override {
    // Disks that lose power are many here, and how fast one syncs is not what is tested.
    const std::string root = fs::is_directory("/dev/shm") ? "/dev/shm" : testing::TempDir();
    std::string pattern = root + "/ampd_launch_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    scratch_ = pattern;
    folder_ = scratch_ + "/recorded";
    fs::create_directory(folder_);
    std::ofstream(scratch_ + "/worker.sh") << "#!/bin/sh\n";
    chmod((scratch_ + "/worker.sh").c_str(), 0700);
  }
  void TearDown() override { fs::remove_all(scratch_); }

  // Launches a worker whose user, so that this test may do its part, is this process's own.
  void Launch() {
    const OtherUser user{WorkerAccount{getuid(), getgid(), {}, ""},
                         {folder_ + "/checkpoints", "", folder_ + "/mirror"}};
    auto launcher = LocalProcessLauncher::Create(scratch_ + "/worker.sh", folder_, user);
    ASSERT_TRUE(launcher.ok()) << launcher.status();
    std::promise<void> ended;
    (*launcher)->SetExitHandler([&](const WorkerProcess&, const WorkerExit&) { ended.set_value(); });
    const auto process = (*launcher)->Launch({"job", 1, "token"});
    ASSERT_TRUE(process.ok()) << process.status();
    ended.get_future().wait();
  }
  // As the worker does: what it made is synced, and the folders that are its own.
  static void WriteCheckpoint(const std::string& folder) {
    ASSERT_EQ(mkdir((folder + "/step-1").c_str(), 0700), 0);
    const std::string path = folder + "/step-1/model";
    const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600));
    ASSERT_TRUE(WriteAll(file.get(), "weights", path).ok());
    ASSERT_EQ(fsync(file.get()), 0);
    ASSERT_TRUE(SyncFolder(folder + "/step-1").ok());
    ASSERT_TRUE(SyncFolder(folder).ok());
  }
  // In how many of 50 power losses after all of it a checkpoint is gone.
  int Lost(bool syncs_nothing) {
    int lost = 0;
    for (int i = 0; i < 50; ++i) {
      const std::string disk = scratch_ + "/disk";
      fs::remove_all(disk);
      loss_->Restore(loss_->position(), random_, disk, syncs_nothing);
      const bool whole =
          fs::exists(disk + "/checkpoints/job/step-1/model") && fs::exists(disk + "/mirror/job/step-1/model");
      lost += whole ? 0 : 1;
    }
    return lost;
  }

  std::string scratch_, folder_;
  std::unique_ptr<PowerLoss> loss_;
  std::mt19937 random_{17};
};

TEST_F(LaunchPowerLossTest, WhatAWorkerSyncedInAFolderOfItsOwnIsThere) {
  loss_ = std::make_unique<PowerLoss>(folder_);
  ASSERT_NO_FATAL_FAILURE(Launch());
  for (const char* root : {"/checkpoints/job", "/mirror/job"}) ASSERT_NO_FATAL_FAILURE(WriteCheckpoint(folder_ + root));
  EXPECT_EQ(Lost(/*syncs_nothing=*/false), 0);
  EXPECT_GT(Lost(/*syncs_nothing=*/true), 10);
}

TEST_F(LaunchPowerLossTest, ALaunchAfterOneThatWasCutShortSyncsTheNames) {
  loss_ = std::make_unique<PowerLoss>(folder_);
  // Made, and no more, by a daemon that was killed then.
  for (const char* root : {"/checkpoints", "/mirror"}) ASSERT_TRUE(MakeFolder(folder_ + root).ok());
  for (const char* root : {"/checkpoints/job", "/mirror/job"}) ASSERT_EQ(mkdir((folder_ + root).c_str(), 0700), 0);
  ASSERT_NO_FATAL_FAILURE(Launch());
  for (const char* root : {"/checkpoints/job", "/mirror/job"}) ASSERT_NO_FATAL_FAILURE(WriteCheckpoint(folder_ + root));
  EXPECT_EQ(Lost(/*syncs_nothing=*/false), 0);
}

}  // namespace
}  // namespace ampd
