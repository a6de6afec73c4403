#include "proto/spec/dataset_path.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

TEST(DatasetPathTest, IsANameAndAPath) {
  const DatasetPath file = ParseDatasetPath("dataset:mnist-2.1_x/train/a.idx").value();
  EXPECT_EQ(file.name, "mnist-2.1_x");
  EXPECT_EQ(file.path, "train/a.idx");
  for (const char* whole : {"dataset:mnist", "dataset:mnist/"}) {
    EXPECT_EQ(ParseDatasetPath(whole)->name, "mnist");
    EXPECT_EQ(ParseDatasetPath(whole)->path, "");
  }
  EXPECT_TRUE(NamesDataset("dataset:"));
  EXPECT_FALSE(NamesDataset("datasets/x"));
  EXPECT_FALSE(NamesDataset("/dataset:x"));
}

TEST(DatasetPathTest, HostileSpellingsAreRefused) {
  const std::string zero("dataset:x/a\0b", 13);
  for (const std::string& path :
       {std::string("x"), std::string("dataset:"), std::string("dataset:/x"), std::string("dataset:../x"),
        std::string("dataset:.new/x"), std::string("dataset:a b/x"), std::string("dataset:x//y"),
        std::string("dataset:x/../y"), std::string("dataset:x/."), std::string("dataset:x/y/"),
        std::string("dataset:x/y/.."), zero, std::string("dataset:x/a\nb"),
        absl::StrCat("dataset:", std::string(101, 'a')), absl::StrCat("dataset:x/", std::string(256, 'a')),
        absl::StrCat("dataset:x/", absl::StrJoin(std::vector<std::string>(17, "a"), "/")),
        absl::StrCat("dataset:x/", absl::StrJoin(std::vector<std::string>(5, std::string(250, 'a')), "/"))}) {
    EXPECT_EQ(ParseDatasetPath(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_THAT(std::string(ParseDatasetPath("dataset:x/../y").status().message()), HasSubstr("has a part \"..\""));
}

TEST(DatasetPathTest, BytesThatAreNoTextAreRefused) {
  EXPECT_EQ(WrongDatasetFile("train/caf\xe9.png"), "is no UTF-8");
  EXPECT_EQ(WrongDatasetFile("train/caf\xc3\xa9.png"), "");
}

TEST(DatasetPathTest, LongestNamesAreTaken) {
  EXPECT_EQ(WrongDatasetName(std::string(100, 'a')), "");
  EXPECT_EQ(WrongDatasetFile(std::string(255, 'a')), "");
  EXPECT_EQ(WrongDatasetFile(absl::StrJoin(std::vector<std::string>(16, "...a"), "/")), "");
}

TEST(DatasetPathTest, ARootIsToldFromOthers) {
  EXPECT_EQ(FolderOfDatasetRoot(DatasetRoot("/state/datasets")), "/state/datasets");
  EXPECT_EQ(FolderOfDatasetRoot("/data"), std::nullopt);
  EXPECT_EQ(DatasetFilesFolder("/state/datasets", "x"), "/state/datasets/x/files");
}

}  // namespace
}  // namespace ampd
