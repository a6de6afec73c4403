#include "engine/train/model_file.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/train/sha256.h"
#include "gmock/gmock.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

class ModelFileTest : public ::testing::Test {
 protected:
  ModelFileTest() {
    for (const char* folder : {"roots", "uploads"}) std::filesystem::create_directory(folder_.path() + "/" + folder);
    roots_ = {folder_.path() + "/roots"};
    uploads_ = folder_.path() + "/uploads";
    Write("roots/net.onnx", "in a root");
    Write("secret", "outside");
    checksum_ = Sha256Hex(content_);
    Write("uploads/" + checksum_, content_);
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << content;
  }
  absl::StatusOr<std::string> Read(const std::string& path, int64_t max_bytes = 1 << 20) {
    return ReadModelFile(path, roots_, uploads_, max_bytes);
  }
  // Code and message of reading what cannot be read.
  std::string Refused(const std::string& path, int64_t max_bytes = 1 << 20) {
    const auto bytes = Read(path, max_bytes);
    if (bytes.ok()) return absl::StrCat("read ", bytes->size(), " bytes");
    return absl::StrReplaceAll(bytes.status().ToString(), {{folder_.path(), "FOLDER"}});
  }

  ScratchFolder folder_;
  std::vector<std::string> roots_;
  std::string uploads_;
  const std::string content_ = std::string("onnx\0bytes", 10);
  std::string checksum_;
};

TEST_F(ModelFileTest, ReadsBeneathADataRootAndWhatWasUploaded) {
  EXPECT_EQ(*Read("net.onnx"), "in a root");
  EXPECT_EQ(*Read(roots_[0] + "/net.onnx"), "in a root");
  EXPECT_EQ(*Read("upload:" + checksum_), content_);
  Write("roots/empty", "");
  EXPECT_EQ(*Read("empty"), "");
  EXPECT_TRUE(IsUpload("upload:"));
  EXPECT_FALSE(IsUpload("uploads/net.onnx"));
}

TEST_F(ModelFileTest, LeavesNeitherFolder) {
  EXPECT_THAT(Refused("../secret"), HasSubstr("PERMISSION_DENIED: ../secret: '..' is not allowed"));
  EXPECT_THAT(Refused(folder_.path() + "/secret"), HasSubstr("PERMISSION_DENIED: FOLDER/secret: lies outside"));
  EXPECT_THAT(Refused("upload:../secret"), HasSubstr("INVALID_ARGUMENT: 'upload:../secret': an upload is named by"));
}

TEST_F(ModelFileTest, AnUploadsNameIsItsChecksum) {
  const std::string why = ": an upload is named by its SHA-256, 64 lower-case hex digits";
  EXPECT_EQ(Refused("upload:"), "INVALID_ARGUMENT: 'upload:'" + why);
  std::string upper = checksum_;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  for (const std::string& wrong : {upper, checksum_ + "0", checksum_.substr(1), checksum_.substr(1) + "g"}) {
    EXPECT_THAT(Refused("upload:" + wrong), HasSubstr(why)) << wrong;
  }
  const std::string other = Sha256Hex("something else");
  EXPECT_EQ(Refused("upload:" + other), "NOT_FOUND: upload:" + other + ": no such file was uploaded");
  Write("uploads/" + other, "damaged");
  EXPECT_THAT(
      Refused("upload:" + other),
      HasSubstr("DATA_LOSS: upload:" + other + ": is damaged, its 7 bytes have the checksum " + Sha256Hex("damaged")));
  uploads_.clear();
  EXPECT_EQ(Refused("upload:" + checksum_), "NOT_FOUND: upload:" + checksum_ + ": no such file was uploaded");
}

TEST_F(ModelFileTest, RefusesWhatIsTooLargeOrMissing) {
  EXPECT_EQ(*Read("net.onnx", 9), "in a root");
  EXPECT_EQ(Refused("net.onnx", 8), "OUT_OF_RANGE: net.onnx: 9 bytes, at most 8 can be read");
  EXPECT_THAT(Refused("upload:" + checksum_, 9), HasSubstr("OUT_OF_RANGE: upload:" + checksum_));
  EXPECT_THAT(Refused("other.onnx"), HasSubstr("NOT_FOUND: other.onnx: no such file (data roots: "));
  EXPECT_THAT(Refused(""), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(Refused("."), HasSubstr("PERMISSION_DENIED: ."));
}

}  // namespace
}  // namespace ampd::train
