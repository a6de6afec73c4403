#include "server/service/checkpoint_files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointFiles : public testing::Test {
 protected:
  CheckpointFiles() : directory_(absl::StrCat(testing::TempDir(), "/checkpoint_files_test_", getpid())) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~CheckpointFiles() override { fs::remove_all(directory_); }

  static std::string Sha256(const std::string& path) {
    FILE* pipe = popen(absl::StrCat("sha256sum ", path).c_str(), "r");
    char hex[65] = {};
    EXPECT_EQ(fread(hex, 1, 64, pipe), 64u);
    pclose(pipe);
    return hex;
  }

  void Write(const std::string& path, const std::string& text) {
    std::ofstream(absl::StrCat(directory_, "/", path), std::ios::binary) << text;
  }

  // A whole checkpoint with one file of `content`, sealed with coreutils' sha256sum.
  void MakeCheckpoint(const std::string& name, const std::string& content,
                      const std::string& file = "model.safetensors") {
    fs::create_directories(absl::StrCat(directory_, "/", name));
    Write(name + "/model.safetensors", content);
    const std::string line = absl::StrCat(Sha256(absl::StrCat(directory_, "/", name, "/model.safetensors")), " ",
                                          content.size(), " ", file, "\n");
    Write("body", line);
    Write(name + "/MANIFEST", absl::StrCat(line, Sha256(directory_ + "/body"), " ", line.size(), " MANIFEST\n"));
  }

  std::string directory_;
};

TEST_F(CheckpointFiles, OpensTheNewestByNumber) {
  MakeCheckpoint("step-000000009", "old");
  MakeCheckpoint("step-1000000000", "newest");
  MakeCheckpoint("step-000000010", "new");
  const auto checkpoint = OpenCheckpointFiles(directory_, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->name, "step-1000000000");
  ASSERT_EQ(checkpoint->files.size(), 2u);
  EXPECT_EQ(ReadChunk(checkpoint->files[0], 0, 100).value(), "newest");
  EXPECT_EQ(ReadChunk(checkpoint->files[0], 2, 3).value(), "wes");
  EXPECT_EQ(checkpoint->files[1].name, "MANIFEST");
}

TEST_F(CheckpointFiles, StaysReadableWhenItIsDeleted) {
  MakeCheckpoint("step-000000001", "content");
  const auto checkpoint = OpenCheckpointFiles(directory_, "step-000000001");
  ASSERT_TRUE(checkpoint.ok());
  fs::remove_all(directory_);
  EXPECT_EQ(ReadChunk(checkpoint->files[0], 0, 100).value(), "content");
}

TEST_F(CheckpointFiles, PassesOverADamagedOneButNamesItWhenAskedForIt) {
  MakeCheckpoint("step-000000001", "first");
  MakeCheckpoint("step-000000002", "second");
  Write("step-000000002/model.safetensors", "sEcond");
  EXPECT_EQ(OpenCheckpointFiles(directory_, "")->name, "step-000000001");
  const absl::Status status = OpenCheckpointFiles(directory_, "step-000000002").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("step-000000002: model.safetensors does not match its checksum"));
}

TEST_F(CheckpointFiles, NamesTheNewestWhenAllAreDamaged) {
  MakeCheckpoint("step-000000001", "first");
  MakeCheckpoint("step-000000002", "second");
  Write("step-000000001/model.safetensors", "fir");
  Write("step-000000002/MANIFEST", "");
  const absl::Status status = OpenCheckpointFiles(directory_, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step-000000002"));
}

TEST_F(CheckpointFiles, ACutManifestIsDamage) {
  MakeCheckpoint("step-000000001", "first");
  std::string text;
  std::getline(std::ifstream(directory_ + "/step-000000001/MANIFEST"), text);
  Write("step-000000001/MANIFEST", text + "\n");
  EXPECT_THAT(std::string(OpenCheckpointFiles(directory_, "").status().message()), HasSubstr("its own checksum"));
}

TEST_F(CheckpointFiles, AChecksumIsHexadecimal) {
  fs::create_directories(directory_ + "/step-000000001");
  const std::string line = absl::StrCat(std::string(62, 'a'), "\r\"", " 5 model.safetensors\n");
  Write("body", line);
  Write("step-000000001/MANIFEST", absl::StrCat(line, Sha256(directory_ + "/body"), " ", line.size(), " MANIFEST\n"));
  EXPECT_THAT(std::string(OpenCheckpointFiles(directory_, "").status().message()), HasSubstr("has a line that is not"));
}

TEST_F(CheckpointFiles, FollowsNoSymbolicLink) {
  MakeCheckpoint("step-000000001", "first");
  Write("secret", "first");
  fs::remove(directory_ + "/step-000000001/model.safetensors");
  fs::create_symlink(directory_ + "/secret", directory_ + "/step-000000001/model.safetensors");
  EXPECT_EQ(OpenCheckpointFiles(directory_, "").status().code(), absl::StatusCode::kDataLoss);
  MakeCheckpoint("step-000000002", "second");
  fs::create_directory_symlink(directory_ + "/step-000000002", directory_ + "/step-000000003");
  EXPECT_EQ(OpenCheckpointFiles(directory_, "step-000000003").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointFiles, AcceptsNoPathsAsNames) {
  for (const char* name : {"..", "step-", "step-1/../step-1", "step-1x", "/etc", "step-000000001/"}) {
    EXPECT_EQ(OpenCheckpointFiles(directory_, name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  MakeCheckpoint("step-000000001", "first", "../secret");
  EXPECT_EQ(OpenCheckpointFiles(directory_, "").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFiles, SaysWhenThereIsNone) {
  EXPECT_EQ(OpenCheckpointFiles(directory_, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenCheckpointFiles(directory_, "step-000000007").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenCheckpointFiles(directory_ + "/absent", "").status().code(), absl::StatusCode::kNotFound);
}

std::string BestOf(const std::string& directory) {
  std::string best;
  for (const v1::Checkpoint& checkpoint : DescribeCheckpoints(directory)) {
    if (checkpoint.best()) absl::StrAppend(&best, checkpoint.name(), " ");
    if (checkpoint.has_best_metric()) absl::StrAppendFormat(&best, "%.17g ", checkpoint.best_metric());
  }
  return best;
}

TEST_F(CheckpointFiles, TheBestIsTheOneThatTheStateNames) {
  MakeCheckpoint("step-7", "a");
  MakeCheckpoint("step-12", "b");
  for (const auto& [state, best] : std::vector<std::pair<std::string, std::string>>{
           {R"({"step": 12, "best": {"step": 7, "metric": "0.5"}, "phases": []})", "step-7 0.5 "},
           {R"({"best":{"metric":"7","step":12}})", "step-12 7 "},
           {R"({"spec": "{\"best\": {\"step\": 12}}", "best": {"step": 7}})", "step-7 "},
           {R"({"spec": "\\", "best": {"at": {"step": 12}, "of": [12, {"step": 12}], "step": 7}})", "step-7 "},
           {R"({"a": {"step": 12}, "best": {"step": 7}})", "step-7 "},
           {R"({"a": [{"best": {"step": 12}}], "best": {"step": 7.0e0}})", "step-7 "},
           {R"({"step": 12, "best": ["step", 12]})", ""},
           {R"({"best": {"step": "12"}})", ""},
           {R"({"best": {"step": -12}})", ""},
           {R"({"best": {"step": 1e300}})", ""},
           {R"({"best": {"step": twelve}})", ""},
           {R"({"best": {"metric": "1"}})", ""},
           {R"({"best": {"step": 7, "metric": "0.10000000000000001"}})", "step-7 0.10000000000000001 "},
           {R"({"best": {"step": 7, "metric": "-inf"}})", "step-7 -inf "},
           {R"({"best": {"step": 7, "metric": "nan"}})", "step-7 nan "},
           {R"({"best": {"step": 7, "metric": 0.5}})", "step-7 "},
           {R"({"best": {"step": 7, "metric": ["0.5"], "more": {"metric": "0.5"}}, "metric": "0.5"})", "step-7 "},
           {R"({"best": {"step": 7, "metric": "much"}})", "step-7 "},
           {R"({"best": {"step": 7, "metric": ""}})", "step-7 "},
           {R"({"best": {"step": 7, "metric": "0.5\u0030"}})", "step-7 "},
           {R"({"best": {"step": 7, "metric": ")" + std::string(62, '0') + R"(7"}})", "step-7 7 "},
           {R"({"best": {"step": 7, "metric": ")" + std::string(63, '0') + R"(7"}})", "step-7 "},
           {R"({"best": {"step": 9, "metric": "0.5"}})", ""},
           {R"({"early_stopping": {"metric": "3"}, "best": {"note": "metric", "metric": "0.5", "step": 7}})",
            "step-7 0.5 "},
           {"", ""}}) {
    Write("step-12/state.json", state);
    EXPECT_EQ(BestOf(directory_), best) << state;
  }
}

// The worker, whose file it is, runs models that nobody vouches for.
TEST_F(CheckpointFiles, ALargeStateIsReadInLittleMemory) {
  MakeCheckpoint("step-7", "a");
  std::string many = "{\"x\": [1";
  for (int i = 0; i < 4'000'000; ++i) many += ",1";
  Write("step-7/state.json", many + "], \"best\": {\"step\": 7}}");
  many = std::string();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(BestOf(directory_), "step-7 ");
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
}

// Bytes that this process has read.
int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

class ComparedFiles : public CheckpointFiles {
 protected:
  // Opens the checkpoint of MakeCheckpoint() and tells how many of its bytes were read, about.
  int64_t ReadToOpen(const Comparison& comparison) {
    const int64_t before = BytesRead();
    const auto checkpoint = OpenCheckpointFiles(directory_, "step-000000001", "model.safetensors", comparison);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return BytesRead() - before;
  }
  // Until it is no longer read.
  void AwaitKnown(const Comparison& comparison) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (ReadToOpen(comparison) >= kBytes) ASSERT_LT(absl::Now(), deadline) << "read again and again";
  }

  static constexpr int64_t kBytes = 3 << 20;
  VerifiedFiles verified_{2};
};

TEST_F(ComparedFiles, OneThatStaysAsItIsIsReadOnce) {
  MakeCheckpoint("step-000000001", std::string(kBytes, 'w'));
  AwaitKnown({.verified = &verified_});
  EXPECT_LT(ReadToOpen({.verified = &verified_}), kBytes / 10);
  EXPECT_GE(ReadToOpen({}), kBytes) << "who does not say what is known";
}

TEST_F(ComparedFiles, OneThatWasDamagedSinceIsRefusedByName) {
  MakeCheckpoint("step-000000001", std::string(kBytes, 'w'));
  AwaitKnown({.verified = &verified_});
  const std::string path = directory_ + "/step-000000001/model.safetensors";
  const auto written = fs::last_write_time(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kBytes / 2);
    file << 'W';
  }
  // As by a tool that restores files, times and all.
  fs::last_write_time(path, written);
  const absl::Status status =
      OpenCheckpointFiles(directory_, "step-000000001", "model.safetensors", {.verified = &verified_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors does not match its checksum"));
}

TEST_F(ComparedFiles, OneOfWhichTheManifestSaysAnotherChecksumIsRefused) {
  MakeCheckpoint("step-000000001", std::string(kBytes, 'w'));
  AwaitKnown({.verified = &verified_});
  const std::string line = absl::StrCat(std::string(64, '0'), " ", kBytes, " model.safetensors\n");
  Write("body", line);
  Write("step-000000001/MANIFEST", absl::StrCat(line, Sha256(directory_ + "/body"), " ", line.size(), " MANIFEST\n"));
  EXPECT_EQ(OpenCheckpointFiles(directory_, "", "", {.verified = &verified_}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(ComparedFiles, WhoIsLeftReadsNoFurtherAndLooksAtNoOther) {
  MakeCheckpoint("step-000000001", "whole");
  MakeCheckpoint("step-000000002", std::string(kBytes, 'w'));
  int asked = 0;
  const Comparison comparison{.is_left = [&asked] { return ++asked == 2; }};
  const int64_t before = BytesRead();
  EXPECT_EQ(OpenCheckpointFiles(directory_, "", "", comparison).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 2);
  EXPECT_LT(BytesRead() - before, kBytes / 2);
}

VerifiedFiles::Version VersionAt(uint64_t inode, absl::Time changed) {
  return {{1, inode, 10}, absl::UnixEpoch(), changed};
}

TEST(VerifiedFilesTest, KnowsTheLastOnesAndNoneThatMightChangeUnseen) {
  VerifiedFiles files(2);
  const absl::Time begin = absl::UnixEpoch() + absl::Hours(1);
  const absl::Time long_ago = absl::UnixEpoch();
  files.Add(VersionAt(1, long_ago), begin, "a");
  EXPECT_TRUE(files.Knows(VersionAt(1, long_ago), "a"));
  EXPECT_FALSE(files.Knows(VersionAt(1, long_ago), "b"));
  EXPECT_FALSE(files.Knows(VersionAt(1, long_ago + absl::Nanoseconds(1)), "a"));
  files.Add(VersionAt(2, begin), begin, "b");
  EXPECT_FALSE(files.Knows(VersionAt(2, begin), "b")) << "changed in the moment in which it was read";
  files.Add(VersionAt(3, long_ago), begin, "c");
  files.Add(VersionAt(3, long_ago), begin, "c");
  EXPECT_TRUE(files.Knows(VersionAt(1, long_ago), "a"));
  files.Add(VersionAt(4, long_ago), begin, "d");
  EXPECT_FALSE(files.Knows(VersionAt(1, long_ago), "a")) << "two at most";
  EXPECT_TRUE(files.Knows(VersionAt(3, long_ago), "c"));
  EXPECT_TRUE(files.Knows(VersionAt(4, long_ago), "d"));
}

}  // namespace
}  // namespace ampd
