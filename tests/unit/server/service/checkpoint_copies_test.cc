#include "server/service/checkpoint_copies.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/checkpoint_manifest.h"
#include "server/service/sha256.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointCopies : public testing::Test {
 protected:
  CheckpointCopies() : root_(absl::StrCat(testing::TempDir(), "/checkpoint_copies_test_", getpid())) {
    fs::remove_all(root_);
    folders_ = {root_ + "/own", root_ + "/mirror", ""};
  }
  ~CheckpointCopies() override { fs::remove_all(root_); }

  static void Spill(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  static void Make(const std::string& folder, const std::string& name, const std::string& model) {
    const std::string path = absl::StrCat(folder, "/", name);
    fs::create_directories(path);
    Spill(path + "/model.safetensors", model);
    const std::string line = absl::StrCat(Sha256Hex(model), " ", model.size(), " model.safetensors\n");
    Spill(path + "/MANIFEST", absl::StrCat(line, Sha256Hex(line), " ", line.size(), " MANIFEST\n"));
  }
  // In both.
  void MakeBoth(const std::string& name, const std::string& model) {
    Make(folders_.own, name, model);
    Make(folders_.mirror, name, model);
  }
  void Damage(const std::string& folder, const std::string& name) {
    Spill(absl::StrCat(folder, "/", name, "/model.safetensors"), "dAmage");
  }
  // The newest's or `name`'s, where it came from and its model; else the error.
  std::string Opened(const std::string& name = "", const std::string& only = "") {
    const auto opened = OpenAnyCopy(folders_, name, only);
    if (!opened.ok()) return std::string(opened.status().message());
    return absl::StrCat(opened->from_mirror ? "mirror " : "own ", opened->name, " ",
                        ReadChunk(opened->files[0], 0, 100).value());
  }

  const std::string root_;
  CheckpointFolders folders_;
};

TEST_F(CheckpointCopies, TheMirrorIsLeftAloneWhereAllIsWhole) {
  Make(folders_.own, "step-1", "first");
  folders_.newest = "step-1";
  folders_.mirror = "/dev/null/none";
  EXPECT_EQ(Opened(), "own step-1 first");
  EXPECT_EQ(DescribeCopies(folders_).size(), 1u);
}

TEST_F(CheckpointCopies, ACopyTakesThePlaceOfOneThatIsDamagedBeforeAnOlderOne) {
  MakeBoth("step-1", "first");
  MakeBoth("step-2", "second");
  Damage(folders_.own, "step-2");
  EXPECT_EQ(Opened(), "mirror step-2 second");
  EXPECT_EQ(Opened("step-2"), "mirror step-2 second");
  EXPECT_EQ(Opened("step-1"), "own step-1 first");
  EXPECT_EQ(Opened("step-2", "model.safetensors"), "mirror step-2 second");
  EXPECT_THAT(Opened("step-2", "MANIFEST"), HasSubstr("own step-2 "));
  Damage(folders_.mirror, "step-2");
  EXPECT_EQ(Opened(), "own step-1 first");
  EXPECT_THAT(Opened("step-2"), HasSubstr("step-2: model.safetensors does not match its checksum; the mirror's copy: "
                                          "checkpoint step-2: model.safetensors does not match its checksum"));
  folders_.mirror = "";
  EXPECT_THAT(Opened("step-2"), ::testing::EndsWith("step-2: model.safetensors does not match its checksum"));
}

TEST_F(CheckpointCopies, WhatIsGoneIsFoundByWhatTheJobTold) {
  MakeBoth("step-1", "first");
  Make(folders_.mirror, "step-2", "second");
  EXPECT_EQ(Opened(), "own step-1 first");
  EXPECT_EQ(Opened("step-2"), "mirror step-2 second");
  folders_.newest = "step-2";
  EXPECT_EQ(Opened(), "mirror step-2 second");
  // Training went back behind it.
  folders_.newest = "step-3";
  EXPECT_EQ(Opened(), "own step-1 first");
  fs::remove_all(folders_.own);
  EXPECT_EQ(Opened(), "mirror step-2 second");
  fs::remove_all(folders_.mirror);
  EXPECT_EQ(OpenAnyCopy(folders_, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenAnyCopy(folders_, "step-2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenAnyCopy(folders_, "../own").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointCopies, TheBestIsFoundByTheNewestWholeOne) {
  MakeBoth("step-1", "first");
  MakeBoth("step-2", "second");
  MakeBoth("step-3", "third");
  EXPECT_EQ(OpenAnyCopy(folders_, "best").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Opened("best"), HasSubstr("checkpoint.keep_best"));
  Spill(folders_.own + "/step-3/state.json", R"({"best": {"step": 2}})");
  Spill(folders_.mirror + "/step-3/state.json", R"({"best": {"step": 2, "metric": "0.25"}})");
  EXPECT_EQ(Opened("best"), "own step-2 second");
  EXPECT_EQ(Opened("best", "model.safetensors"), "own step-2 second");
  Damage(folders_.own, "step-2");
  EXPECT_EQ(Opened("best"), "mirror step-2 second");
  folders_.newest = "step-3";
  fs::remove_all(folders_.own);
  EXPECT_EQ(Opened("best"), "mirror step-2 second");
  for (const v1::Checkpoint& one : DescribeCopies(folders_)) {
    EXPECT_EQ(one.has_best_metric(), one.name() == "step-2") << one.name();
    EXPECT_EQ(one.best_metric(), one.best() ? 0.25 : 0) << one.name();
  }
}

TEST_F(CheckpointCopies, AFileOfAnotherWritingIsNoCopy) {
  Make(folders_.own, "step-1", "second");
  Make(folders_.mirror, "step-1", "fIrst!");
  Damage(folders_.own, "step-1");
  EXPECT_EQ(Opened("step-1"), "mirror step-1 fIrst!") << "all of it is";
  EXPECT_THAT(Opened("step-1", "model.safetensors"), HasSubstr("came by this step before"));
  // Nothing is left of the other.
  Spill(folders_.own + "/step-1/MANIFEST", "");
  EXPECT_EQ(Opened("step-1", "model.safetensors"), "mirror step-1 fIrst!");
}

TEST_F(CheckpointCopies, TheListTellsWhatTheMirrorHas) {
  for (const int step : {1, 2, 3, 4}) MakeBoth(absl::StrCat("step-", step), "model");
  fs::remove(folders_.own + "/step-2/model.safetensors");
  fs::remove(folders_.own + "/step-3/model.safetensors");
  fs::remove(folders_.mirror + "/step-3/model.safetensors");
  fs::remove_all(folders_.own + "/step-4");
  const auto list = [this] {
    std::string text;
    for (const v1::Checkpoint& one : DescribeCopies(folders_)) {
      absl::StrAppend(&text, one.name(), one.damage().empty() ? "" : " damaged", one.in_mirror() ? " mirrored" : "",
                      "\n");
    }
    return text;
  };
  EXPECT_EQ(list(), "step-3 damaged\nstep-2 damaged mirrored\nstep-1\n") << "copies of what was removed may go later";
  folders_.newest = "step-4";
  EXPECT_EQ(list(), "step-4 damaged mirrored\nstep-3 damaged\nstep-2 damaged mirrored\nstep-1\n");
  fs::remove_all(folders_.own + "/step-1");
  folders_.newest = "step-1";
  EXPECT_EQ(list(), "step-3 damaged\nstep-2 damaged mirrored\n") << "a newer one is there, of which is told later";
  fs::remove_all(folders_.own);
  EXPECT_EQ(list(), "step-4 damaged mirrored\nstep-2 damaged mirrored\nstep-1 damaged mirrored\n");
  folders_.newest = "";
  EXPECT_EQ(list(), "") << "the job told of none";
}

}  // namespace
}  // namespace ampd
