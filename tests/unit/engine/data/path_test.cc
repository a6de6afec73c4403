#include "engine/data/path.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "gmock/gmock.h"
#include "proto/spec/dataset_path.h"
#include "tests/unit/engine/data/data_folder.h"

namespace ampd::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs `check` in a child whose kernel has no openat2; whether it held.
bool HoldsWithoutOpenat2(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      ::_exit(2);
    }
    ::_exit(check() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class PathTest : public DataFolder {
 protected:
  PathTest() {
    for (const char* d : {"/a", "/b", "/outside"}) std::filesystem::create_directory(root_ + d);
    roots_ = {root_ + "/a", root_ + "/b"};
    Write("a/first", "in a");
    Write("b/first", "in b");
    Write("b/second", "in b");
    Write("outside/secret", "secret");
  }
  void MakeDataset() {
    std::filesystem::create_directories(root_ + "/datasets/d/files/train");
    Write("datasets/d/MANIFEST", "secret");
    Write("datasets/d/files/train/x", "in d");
    roots_.push_back(DatasetRoot(root_ + "/datasets"));
  }
  std::string Content(const std::string& path) {
    const auto file = OpenBeneath(path, roots_);
    if (!file.ok()) return file.status().ToString();
    std::string text(static_cast<size_t>((*file)->size()), '\0');
    EXPECT_TRUE((*file)->ReadAt(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()}).ok());
    return text;
  }
  absl::StatusCode CodeOf(const std::string& path) { return OpenBeneath(path, roots_).status().code(); }
};

TEST_F(PathTest, TakesTheFirstRootThatHasTheFile) {
  EXPECT_EQ(Content("first"), "in a");
  EXPECT_EQ(Content("second"), "in b");
}

TEST_F(PathTest, TakesAbsolutePathsBeneathARoot) {
  EXPECT_EQ(Content(root_ + "/b/first"), "in b");
  EXPECT_EQ(CodeOf(root_ + "/outside/secret"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("/etc/passwd"), absl::StatusCode::kPermissionDenied);
}

TEST_F(PathTest, ARootsNameIsNoPrefixOfItsNeighbours) {
  std::filesystem::create_directory(root_ + "/ab");
  Write("ab/f", "x");
  EXPECT_EQ(CodeOf(root_ + "/ab/f"), absl::StatusCode::kPermissionDenied);
}

TEST_F(PathTest, RootsMayEndInASlashOrBeALink) {
  std::filesystem::create_directory_symlink(root_ + "/b", root_ + "/link");
  roots_ = {root_ + "/a/", root_ + "/link"};
  EXPECT_EQ(Content("first"), "in a");
  EXPECT_EQ(Content("second"), "in b");
  EXPECT_EQ(Content(root_ + "/link/second"), "in b");
  EXPECT_EQ(Content(root_ + "/b/second"), "in b");
}

TEST_F(PathTest, RefusesDotDotEvenWhereItStaysInside) {
  EXPECT_EQ(CodeOf("../outside/secret"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("x/../first"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf(root_ + "/a/../outside/secret"), absl::StatusCode::kPermissionDenied);
}

TEST_F(PathTest, RefusesLinksThatLeadOutsideAndFollowsOthers) {
  std::filesystem::create_symlink("../outside/secret", root_ + "/a/relative");
  std::filesystem::create_symlink(root_ + "/outside/secret", root_ + "/a/absolute");
  std::filesystem::create_directory_symlink(root_ + "/outside", root_ + "/a/folder");
  std::filesystem::create_symlink(root_ + "/b/second", root_ + "/a/other_root");
  EXPECT_EQ(CodeOf("relative"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("absolute"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("folder/secret"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Content("other_root"), "in b");
}

TEST_F(PathTest, LinksMayPassFromRootToRootButNotOut) {
  std::filesystem::create_directory_symlink(root_ + "/a", root_ + "/b/to_a");
  std::filesystem::create_symlink(root_ + "/b/to_a/back", root_ + "/a/twice");
  std::filesystem::create_symlink(root_ + "/b/second", root_ + "/a/back");
  std::filesystem::create_symlink(root_ + "/a/loop", root_ + "/a/loop");
  std::filesystem::create_symlink("/proc/self/root/etc/passwd", root_ + "/a/magic");
  EXPECT_EQ(Content("twice"), "in b");
  EXPECT_EQ(Content("to_a/back"), "in b");
  EXPECT_EQ(CodeOf("loop"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("magic"), absl::StatusCode::kPermissionDenied);
}

TEST_F(PathTest, HoldsAsWellWithoutOpenat2) {
  std::filesystem::create_symlink(root_ + "/outside/secret", root_ + "/a/absolute");
  std::filesystem::create_symlink(root_ + "/b/second", root_ + "/a/other_root");
  MakeDataset();
  std::filesystem::create_symlink("train", root_ + "/datasets/d/files/link");
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return Content("first") == "in a"; }));
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return Content(root_ + "/b/second") == "in b"; }));
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return Content("other_root") == "in b"; }));
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return CodeOf("absolute") == absl::StatusCode::kPermissionDenied; }));
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return Content("dataset:d/train/x") == "in d"; }));
  EXPECT_TRUE(HoldsWithoutOpenat2([&] { return CodeOf("dataset:d/link/x") == absl::StatusCode::kPermissionDenied; }));
}

TEST_F(PathTest, FindsUploadedDatasetsInTheirFolderAlone) {
  MakeDataset();
  EXPECT_EQ(Content("dataset:d/train/x"), "in d");
  EXPECT_EQ(ListBeneath("dataset:d", roots_)->at(0).name, "train");
  EXPECT_EQ(ListBeneath("dataset:d/train", roots_)->at(0).name, "x");
  EXPECT_EQ(CodeOf("dataset:d/MANIFEST"), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf("dataset:d/first"), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf("dataset:other/x"), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf("dataset:d"), absl::StatusCode::kPermissionDenied);
  for (const char* hostile : {"dataset:d/../MANIFEST", "dataset:../outside/secret", "dataset:/etc/passwd",
                              "dataset:d//etc/passwd", "dataset:", "dataset:."}) {
    EXPECT_EQ(CodeOf(hostile), absl::StatusCode::kInvalidArgument) << hostile;
  }
  // What they hold is found by no other name.
  EXPECT_EQ(CodeOf(root_ + "/datasets/d/files/train/x"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("train/x"), absl::StatusCode::kNotFound);
}

TEST_F(PathTest, FollowsNoLinkInADataset) {
  MakeDataset();
  const std::string files = root_ + "/datasets/d/files";
  std::filesystem::create_symlink("train", files + "/folder");
  std::filesystem::create_symlink("train/x", files + "/inside");
  std::filesystem::create_symlink(root_ + "/outside/secret", files + "/outside");
  for (const char* path : {"dataset:d/folder/x", "dataset:d/inside", "dataset:d/outside"}) {
    const absl::Status status = OpenBeneath(path, roots_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("symbolic link"));
    EXPECT_EQ(ListBeneath(path, roots_).status().code(), absl::StatusCode::kPermissionDenied) << path;
  }
}

TEST_F(PathTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo((root_ + "/a/fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(root_ + "/a/sub");
  std::filesystem::create_symlink("/dev/zero", root_ + "/a/zero");
  EXPECT_EQ(CodeOf("fifo"), absl::StatusCode::kPermissionDenied);  // and does not wait for a writer
  EXPECT_EQ(CodeOf("sub"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("zero"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CodeOf("."), absl::StatusCode::kPermissionDenied);
}

TEST_F(PathTest, NamesPathAndRootsOfAMissingFile) {
  const absl::Status status = OpenBeneath("no/such", roots_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no/such"), HasSubstr(root_ + "/a"), HasSubstr(root_ + "/b")));
  EXPECT_EQ(CodeOf("first/below_a_file"), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(OpenBeneath("first", {}).status().message()), HasSubstr("no data root"));
}

TEST_F(PathTest, RefusesOddSpellings) {
  EXPECT_EQ(CodeOf(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(std::string("first\0x", 7)), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(CodeOf(std::string(10000, 'x')), absl::StatusCode::kOk);
}

TEST_F(PathTest, ListsFoldersAsItOpensFiles) {
  for (const char* d : {"/b/sub", "/b/sub/z", "/outside/sub"}) std::filesystem::create_directory(root_ + d);
  for (const char* name : {"b/sub/b", "b/sub/.hidden", "b/sub/B"}) Write(name, "");
  std::filesystem::create_symlink("../second", root_ + "/b/sub/link");
  std::filesystem::create_symlink("nowhere", root_ + "/b/sub/broken");
  std::filesystem::create_directory_symlink(root_ + "/outside/sub", root_ + "/b/out");
  const auto names = [&](const std::string& path) {
    std::string names;
    const auto entries = ListBeneath(path, roots_);
    if (!entries.ok()) return entries.status().ToString();
    for (const FolderEntry& entry : *entries) names += entry.name + (entry.is_folder ? "/ " : " ");
    return names;
  };
  EXPECT_EQ(names("sub"), "B b broken link z/ ");
  EXPECT_EQ(names(root_ + "/b/sub"), "B b broken link z/ ");
  EXPECT_THAT(names("out"), HasSubstr("leads outside"));
  EXPECT_THAT(names("first"), HasSubstr("is not a folder"));
  EXPECT_THAT(names("none"), HasSubstr("none: no such folder"));
  EXPECT_THAT(names("../outside"), HasSubstr("PERMISSION_DENIED"));
}

TEST_F(PathTest, SaysWhenAFileMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  ASSERT_EQ(::chmod((root_ + "/a/first").c_str(), 0), 0);
  EXPECT_EQ(CodeOf("first"), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace ampd::data
