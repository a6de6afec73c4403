#include "client/checkpoint_writer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

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
  EXPECT_EQ(writer_->Add(Chunk("MANIFEST", 1, 0, "m")), absl::OkStatus());
  EXPECT_EQ(writer_->Commit(), absl::OkStatus());
  EXPECT_EQ(Content("model.safetensors"), "abcde");
  EXPECT_EQ(Content("MANIFEST"), "m");
  EXPECT_EQ(EntriesOf(folder_), 3);
  EXPECT_EQ(EntriesOf(root_ + "/a"), 1);
  EXPECT_EQ(writer_->bytes(), 6);
  EXPECT_EQ(CheckpointWriter::Create(folder_).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CheckpointWriterTest, TakesAnEmptyFolder) {
  fs::create_directories(folder_);
  EXPECT_EQ(writer_->Add(Chunk("a", 1, 0, "a")), absl::OkStatus());
  EXPECT_EQ(writer_->Commit(), absl::OkStatus());
  EXPECT_EQ(Content("a"), "a");
}

TEST_F(CheckpointWriterTest, OverwritesNothingThatAppearedMeanwhile) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/mine") << "x";
  EXPECT_EQ(writer_->Add(Chunk("a", 1, 0, "a")), absl::OkStatus());
  EXPECT_FALSE(writer_->Commit().ok());
  EXPECT_EQ(Content("mine"), "x");
}

TEST_F(CheckpointWriterTest, LeavesNothingBehindWithoutCommit) {
  EXPECT_EQ(writer_->Add(Chunk("a", 2, 0, "a")), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(writer_->Commit()));
  writer_.reset();
  EXPECT_EQ(EntriesOf(root_ + "/a"), 0);
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
