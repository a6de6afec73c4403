#include "server/files/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/files/unique_fd.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ampd_files_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::ofstream(Path("a")) << std::string(1 << 20, 'x') << "end";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(FilesTest, AnOpenFileGetsASecondName) {
  const UniqueFd fd(open(Path("a").c_str(), O_RDONLY));
  ASSERT_TRUE(LinkOrCopy(fd.get(), Path("b")).ok());
  EXPECT_TRUE(fs::equivalent(Path("a"), Path("b")));
  EXPECT_TRUE(absl::IsAlreadyExists(LinkOrCopy(fd.get(), Path("b"))));
  // It is the file that was opened, not what has its name now.
  fs::rename(Path("a"), Path("c"));
  std::ofstream(Path("a")) << "another";
  ASSERT_TRUE(LinkOrCopy(fd.get(), Path("d")).ok());
  EXPECT_TRUE(fs::equivalent(Path("c"), Path("d")));
}

TEST_F(FilesTest, AFileWithoutANameIsCopied) {
  const UniqueFd fd(open(Path("a").c_str(), O_RDONLY));
  const std::string before = Read("a");
  fs::remove(Path("a"));
  ASSERT_EQ(lseek(fd.get(), 7, SEEK_SET), 7);
  ASSERT_TRUE(LinkOrCopy(fd.get(), Path("b")).ok());
  EXPECT_EQ(Read("b"), before);
  EXPECT_EQ(lseek(fd.get(), 0, SEEK_CUR), 7);
  fs::remove(Path("b"));
  EXPECT_TRUE(absl::IsNotFound(LinkOrCopy(fd.get(), Path("none/b"))));
}

TEST_F(FilesTest, AFolderIsMadeWithThoseAboveIt) {
  for (int i = 0; i < 2; ++i) {
    const absl::Status made = MakeFolder(Path("b/c/d"));
    EXPECT_TRUE(made.ok()) << made;
    EXPECT_TRUE(fs::is_directory(Path("b/c/d")));
  }
  // Of a file system that knows no sync.
  EXPECT_TRUE(MakeFolder("/proc/self").ok());
  EXPECT_THAT(std::string(MakeFolder(Path("a/e")).message()),
              testing::StartsWith(absl::StrCat("cannot make the folder ", Path("a/e"), ": ")));
}

TEST_F(FilesTest, ErrorsNameWhatAndWhy) {
  EXPECT_THAT(std::string(SyncFolder(Path("none")).message()), testing::HasSubstr("none: No such file"));
  const UniqueFd full(open("/dev/full", O_WRONLY));
  const absl::Status status = WriteAll(full.get(), "text", "report");
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), "report: No space left on device");
}

}  // namespace
}  // namespace ampd
