#include "client/checkpoint_writer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ampd::client {
namespace {

namespace fs = std::filesystem;

v1::FileChunk Chunk(const std::string& file, int64_t size, int64_t offset, const std::string& data) {
  v1::FileChunk chunk;
  chunk.set_file(file);
  chunk.set_file_size(size);
  chunk.set_offset(offset);
  chunk.set_data(data);
  chunk.set_checkpoint("step-1");
  return chunk;
}

// As sha256sum has it, of "abcde" and of nothing.
constexpr char kManifestOfTwo[] =
    "36bbe50ed96841d10443bcb670d6554f0a34b761be67ec9c4a8ad2c0c44ca42c 5 model.safetensors\n"
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 empty\n"
    "7506e4cec61796d608bb66ff87db9e380559d36f4ecbe7c82900095bff04120c 158 MANIFEST\n";
// Of the file "a", which is "a".
constexpr char kManifestOfA[] =
    "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb 1 a\n"
    "5b0b890bdcec80600ab3db6e6cdc12af1dd14ad079d8b75da33846a559a8b2cf 69 MANIFEST\n";

class CheckpointWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = (fs::temp_directory_path() / "checkpoint_writer_XXXXXX").string();
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    folder_ = root_ + "/a/out";
    absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer = CheckpointWriter::Create(folder_ + "/");
    ASSERT_TRUE(writer.ok()) << writer.status();
    writer_ = *std::move(writer);
  }
  absl::Status AddManifest(const std::string& text) {
    return writer_->Add(Chunk("MANIFEST", static_cast<int64_t>(text.size()), 0, text));
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Content(const std::string& name) {
    std::ifstream in(folder_ + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  int EntriesOf(const std::string& folder) {
    return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }

  std::string root_, folder_;
  std::unique_ptr<CheckpointWriter> writer_;
};

TEST_F(CheckpointWriterTest, PutsAllFilesInPlaceAtOnce) {
  EXPECT_EQ(writer_->Add(Chunk("model.safetensors", 5, 0, "abc")), absl::OkStatus());
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(writer_->Add(Chunk("model.safetensors", 5, 3, "de")), absl::OkStatus());
  EXPECT_EQ(writer_->Add(Chunk("empty", 0, 0, "")), absl::OkStatus());
  EXPECT_EQ(AddManifest(kManifestOfTwo), absl::OkStatus());
  EXPECT_EQ(writer_->Commit(), absl::OkStatus());
  EXPECT_EQ(Content("model.safetensors"), "abcde");
  EXPECT_EQ(Content("MANIFEST"), kManifestOfTwo);
  EXPECT_EQ(EntriesOf(folder_), 3);
  EXPECT_EQ(EntriesOf(root_ + "/a"), 1);
  EXPECT_EQ(writer_->bytes(), 5 + static_cast<int64_t>(sizeof(kManifestOfTwo) - 1));
  EXPECT_EQ(writer_->files(), 3);
  EXPECT_EQ(CheckpointWriter::Create(folder_).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CheckpointWriterTest, TakesAnEmptyFolder) {
  fs::create_directories(folder_);
  EXPECT_EQ(writer_->Add(Chunk("a", 1, 0, "a")), absl::OkStatus());
  EXPECT_EQ(AddManifest(kManifestOfA), absl::OkStatus());
  EXPECT_EQ(writer_->Commit(), absl::OkStatus());
  EXPECT_EQ(Content("a"), "a");
}

TEST_F(CheckpointWriterTest, OverwritesNothingThatAppearedMeanwhile) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/mine") << "x";
  EXPECT_EQ(writer_->Add(Chunk("a", 1, 0, "a")), absl::OkStatus());
  EXPECT_EQ(AddManifest(kManifestOfA), absl::OkStatus());
  EXPECT_EQ(writer_->Commit().code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(Content("mine"), "x");
}

TEST_F(CheckpointWriterTest, LeavesNothingBehindWithoutCommit) {
  EXPECT_EQ(writer_->Add(Chunk("a", 2, 0, "a")), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(writer_->Commit()));
  writer_.reset();
  EXPECT_EQ(EntriesOf(root_ + "/a"), 0);
}

TEST_F(CheckpointWriterTest, KeepsOnlyWhatTheManifestLists) {
  const std::string manifest = kManifestOfA;
  struct Case {
    std::vector<std::pair<std::string, std::string>> files;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{{"a", "b"}, {"MANIFEST", manifest}}, "a of 'step-1': its bytes are not those"},
      {{{"a", "aa"}, {"MANIFEST", manifest}}, "a of 'step-1': its bytes are not those"},
      {{{"a", "a"}}, "no MANIFEST"},
      {{{"MANIFEST", manifest}}, "no 'a'"},
      {{{"a", "a"}, {"b", "b"}, {"MANIFEST", manifest}}, "b of 'step-1': MANIFEST does not list it"},
      {{{"a", "a"}, {"MANIFEST", ""}}, "its own checksum"},
      {{{"a", "a"}, {"MANIFEST", manifest.substr(0, 69)}}, "its own checksum"},
      {{{"a", "a"}, {"MANIFEST", manifest.substr(69)}}, "its own checksum"},
      {{{"a", "a"}, {"MANIFEST", manifest.substr(0, 69) + manifest}}, "lists a file twice"},
      {{{"a", "a"}, {"MANIFEST", manifest + "x"}}, "has a line that is not"},
      {{{"a", "a"}, {"MANIFEST", manifest.substr(0, 65) + "-" + manifest.substr(65)}}, "has a line that is not"},
  };
  for (const Case& one : cases) {
    writer_ = *CheckpointWriter::Create(folder_);
    for (const auto& [name, data] : one.files) {
      ASSERT_EQ(writer_->Add(Chunk(name, static_cast<int64_t>(data.size()), 0, data)), absl::OkStatus());
    }
    const absl::Status status = writer_->Commit();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(one.error), std::string::npos) << status << " instead of " << one.error;
    EXPECT_FALSE(fs::exists(folder_));
  }
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("MANIFEST", (1 << 20) + 1, 0, "x")))) << "too large";
}

TEST_F(CheckpointWriterTest, RefusesHostileNames) {
  for (const char* name : {"", ".", "..", "../a", "/etc/passwd", "a/b", ".bashrc", "a\nb", "a\\b", "\x1b[2J"}) {
    EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk(name, 1, 0, "a")))) << name;
  }
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk(std::string(201, 'a'), 1, 0, "a"))));
}

TEST_F(CheckpointWriterTest, ChecksOffsetsAndSizes) {
  EXPECT_EQ(writer_->Add(Chunk("a", 4, 0, "ab")), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("a", 4, 1, "c"))));
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("a", 4, 3, "d"))));
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("a", 5, 2, "c"))));
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("a", 4, 2, "cde"))));
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("b", 1, 0, "b")))) << "a is not complete";
  EXPECT_EQ(writer_->Add(Chunk("a", 4, 2, "cd")), absl::OkStatus());
  EXPECT_EQ(writer_->Add(Chunk("b", 1, 0, "b")), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("a", 1, 0, "a")))) << "a came before";
  v1::FileChunk other = Chunk("c", 1, 0, "c");
  other.set_checkpoint("step-2");
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(other)));
  EXPECT_TRUE(absl::IsDataLoss(writer_->Add(Chunk("d", -1, 0, ""))));
}

TEST_F(CheckpointWriterTest, RefusesAnEmptyDownload) { EXPECT_TRUE(absl::IsDataLoss(writer_->Commit())); }

}  // namespace
}  // namespace ampd::client
