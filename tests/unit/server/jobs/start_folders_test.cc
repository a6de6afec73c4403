#include "server/jobs/start_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

class StartFoldersTest : public testing::Test {
 protected:
  StartFoldersTest() : folder_(absl::StrCat(testing::TempDir(), "/start_folders_test_", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(Source() + "/step-1");
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "MANIFEST"}) {
      std::ofstream(Source() + "/step-1/" + name) << name;
    }
  }
  ~StartFoldersTest() override { fs::remove_all(folder_); }

  std::string Source() const { return folder_ + "/checkpoints"; }
  std::string Root() const { return folder_ + "/starts"; }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  // Once what was let go of is removed.
  size_t Held() const {
    starts_.Flush();
    return fs::exists(Root()) ? static_cast<size_t>(std::distance(fs::directory_iterator(Root()), {})) : 0;
  }

  const std::string folder_;
  const StartFolders starts_{folder_ + "/starts"};
};

TEST_F(StartFoldersTest, WhatAJobWasGivenOutlivesTheCheckpoint) {
  const auto held = starts_.Hold(Source(), "step-1");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ((*held)->checkpoint_dir(), (*held)->folder() + "/step-1");
  // The room is shared while both are there.
  EXPECT_EQ(fs::hard_link_count((*held)->checkpoint_dir() + "/model.safetensors"), 2u);
  fs::remove_all(Source());
  ASSERT_TRUE((*held)->GiveTo("job1").ok());
  EXPECT_EQ(starts_.PathOf("job1", "step-1"), Root() + "/job1/step-1");
  EXPECT_EQ(Read(starts_.PathOf("job1", "step-1") + "/model.safetensors"), "model.safetensors");
  EXPECT_EQ(Read(starts_.PathOf("job1", "step-1") + "/MANIFEST"), "MANIFEST");
  EXPECT_FALSE(fs::exists(starts_.PathOf("job1", "step-1") + "/optimizer.safetensors"));
  starts_.Release("job1");
  EXPECT_FALSE(fs::exists(Root() + "/job1")) << "it may be given another at once";
  EXPECT_EQ(Held(), 0u);
  starts_.Release("job1");
}

TEST_F(StartFoldersTest, ATrainingIsHeldWithAllItsFiles) {
  EXPECT_TRUE(absl::IsNotFound(starts_.Hold(Source(), "step-1", HeldFiles::kAll).status())) << "it has no state.json";
  std::ofstream(Source() + "/step-1/state.json") << "state.json";
  std::ofstream(Source() + "/step-1/of-nobody") << "x";
  for (const bool average : {false, true}) {
    if (average) std::ofstream(Source() + "/step-1/ema.safetensors") << "ema.safetensors";
    const auto held = starts_.Hold(Source(), "step-1", HeldFiles::kAll);
    ASSERT_TRUE(held.ok()) << held.status();
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST"}) {
      EXPECT_EQ(Read((*held)->checkpoint_dir() + "/" + name), name);
    }
    EXPECT_EQ(Read((*held)->checkpoint_dir() + "/ema.safetensors"), average ? "ema.safetensors" : "");
    EXPECT_FALSE(fs::exists((*held)->checkpoint_dir() + "/of-nobody"));
  }
}

TEST_F(StartFoldersTest, AJobMayBeGivenItsWeightsAnewWhileTheOldAreRemoved) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE((*starts_.Hold(Source(), "step-1"))->GiveTo("job1").ok());
    ASSERT_TRUE(starts_.Sync().ok());
    EXPECT_EQ(Read(starts_.PathOf("job1", "step-1") + "/MANIFEST"), "MANIFEST");
    starts_.Release("job1");
  }
  ASSERT_TRUE((*starts_.Hold(Source(), "step-1"))->GiveTo("job1").ok());
  EXPECT_EQ(Held(), 1u);
  EXPECT_TRUE(fs::exists(starts_.PathOf("job1", "step-1") + "/model.safetensors"));
}

TEST_F(StartFoldersTest, WhatAnEarlierDaemonDidNotRemoveIsInNobodysWay) {
  for (int i = 0; i < 99; ++i) fs::create_directories(absl::StrCat(Root(), "/.old-job1.", i, "/step-1"));
  ASSERT_TRUE((*starts_.Hold(Source(), "step-1"))->GiveTo("job1").ok());
  starts_.Release("job1");
  EXPECT_FALSE(fs::exists(Root() + "/job1"));
  EXPECT_EQ(Held(), 99u);
}

TEST_F(StartFoldersTest, WhatNoJobGotIsGone) {
  { const auto held = starts_.Hold(Source(), "step-1"); }
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(fs::exists(Source() + "/step-1/model.safetensors"));
  EXPECT_TRUE(absl::IsNotFound(starts_.Hold(Source(), "step-2").status()));
  EXPECT_EQ(Held(), 0u);
  fs::remove(Source() + "/step-1/MANIFEST");
  EXPECT_TRUE(absl::IsNotFound(starts_.Hold(Source(), "step-1").status()));
  EXPECT_EQ(Held(), 0u);
}

// As a job's code could leave it; opened like a file it waits for one who writes.
TEST_F(StartFoldersTest, WhatIsNoFileIsNotWaitedFor) {
  for (const char* name : {"model.safetensors", "MANIFEST"}) {
    const std::string path = absl::StrCat(Source(), "/step-1/", name);
    fs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const absl::Status status = starts_.Hold(Source(), "step-1").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("checkpoint step-1: ", name, " is not a regular file")),
              std::string::npos)
        << status;
    fs::remove(path);
    std::ofstream(path) << name;
  }
  EXPECT_EQ(Held(), 0u);
}

TEST_F(StartFoldersTest, NoNameLeadsOutOfTheFolder) {
  for (const char* name : {"", ".", "..", "../step-1", "step-1/../../checkpoints/step-1", "step-", "step-1a", "/tmp"}) {
    EXPECT_TRUE(absl::IsNotFound(starts_.Hold(Source() + "/step-1", name).status())) << name;
    EXPECT_TRUE(absl::IsNotFound(starts_.Hold(Source(), name).status())) << name;
  }
  EXPECT_EQ(Held(), 0u);
}

TEST_F(StartFoldersTest, ADaemonThatStartsKeepsWhatItsJobsNeed) {
  for (const char* job : {"job1", "job2"}) ASSERT_TRUE((*starts_.Hold(Source(), "step-1"))->GiveTo(job).ok());
  fs::create_directories(Root() + "/.new-crashed/step-1");
  fs::create_directories(Root() + "/.old-1-1/step-1");
  starts_.KeepOnly({"job2"});
  EXPECT_EQ(Held(), 1u);
  EXPECT_TRUE(fs::exists(starts_.PathOf("job2", "step-1")));
}

}  // namespace
}  // namespace ampd
