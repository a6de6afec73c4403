// Each confinement in a process of its own, which then tries what it must not be able to do: nothing is taken back.
#include "server/worker/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/launch/landlock.h"
#include "server/launch/sanitized.h"
#include "server/worker/system_call_filter.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What `body` says, line by line, in a child with one thread.
std::vector<std::string> InChild(const std::function<std::vector<std::string>()>& body) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string text = absl::StrJoin(body(), "\n");
    _exit(write(fds[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(fds[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t n = 0; (n = read(fds[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

bool Opens(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

class ConfinementTest : public testing::Test {
 protected:
  ConfinementTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/out");
    fs::create_directories(folder_ + "/data/deep");
    for (const char* name : {"/a", "/b", "/c", "/data/deep/file", "/out/old"}) std::ofstream(folder_ + name) << "text";
  }
  ~ConfinementTest() override { fs::remove_all(folder_); }

  // What of this a process can do, of what it must not. With `all` also that after which it is another one.
  std::vector<std::string> Attempts(bool all = true) const {
    std::vector<std::string> done;
    const auto attempt = [&done](const std::string& what, bool succeeded) {
      if (succeeded) done.push_back(what);
    };
    const auto file = [this](const char* name) { return absl::StrCat(folder_, "/", name); };
    // Without it the kernel opens what the user can.
    if (LandlockVersion() > 0) {
      attempt("overwrite", Opens(file("a"), O_WRONLY));
      attempt("create", Opens(file("new"), O_WRONLY | O_CREAT));
      attempt("empty", Opens(file("a"), O_RDWR | O_TRUNC));
    }
    attempt("truncate", truncate(file("a").c_str(), 0) == 0);
    attempt("chmod", chmod(file("a").c_str(), 0700) == 0);
    attempt("chown", chown(file("a").c_str(), getuid(), getgid()) == 0);
    attempt("link", link(file("a").c_str(), file("linked").c_str()) == 0);
    attempt("symlink", symlink("/etc", file("symlinked").c_str()) == 0);
    attempt("mkdir", mkdir(file("made").c_str(), 0700) == 0);
    attempt("rename", rename(file("b").c_str(), file("renamed").c_str()) == 0);
    attempt("unlink", unlink(file("c").c_str()) == 0);
    for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK}) {
      attempt(absl::StrCat("socket ", family), socket(family, SOCK_STREAM, 0) >= 0);
      attempt(absl::StrCat("datagrams ", family), socket(family, SOCK_DGRAM, 0) >= 0);
    }
    attempt("io_uring", syscall(425, 1, folder_.data()) >= 0 || errno != EPERM);
    attempt("signal", kill(getppid(), 0) == 0 || syscall(SYS_tgkill, getppid(), getppid(), 0) == 0);
    attempt("hold", syscall(434, getppid(), 0) >= 0);
    if (!kSanitized) {
      const pid_t pid = fork();
      if (pid == 0) _exit(0);
      attempt("fork", pid > 0);
    }
    if (!all) return done;
    attempt("trace", !kSanitized && ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0);
    attempt("namespace", syscall(SYS_unshare, 0x10000000) == 0);
    char* const argv[] = {const_cast<char*>("/bin/sh"), const_cast<char*>("-c"), const_cast<char*>("exit 3"), nullptr};
    execv(argv[0], argv);
    return done;
  }

  const std::string folder_ = absl::StrCat("/tmp/confinement_test_", getpid());
};

TEST_F(ConfinementTest, EveryWorkerGivesUpMorePrivilegesAndCores) {
  const auto said = InChild([] {
    if (!Confine().ok()) return std::vector<std::string>{"failed"};
    rlimit core{1, 1};
    getrlimit(RLIMIT_CORE, &core);
    std::ifstream score("/proc/self/oom_score_adj");
    std::string text;
    score >> text;
    return std::vector<std::string>{absl::StrCat(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)),
                                    absl::StrCat(core.rlim_cur, core.rlim_max), text, absl::StrCat(umask(0))};
  });
  EXPECT_THAT(said, ElementsAre("1", "00", "500", absl::StrCat(077)));
}

TEST_F(ConfinementTest, WithoutItTheAttemptsSucceed) {
  // Else their failure would prove nothing.
  const auto done = InChild([&] { return Attempts(/*all=*/false); });
  for (const char* what : {"truncate", "chmod", "chown", "link", "symlink", "mkdir", "rename", "unlink", "socket 2",
                           "datagrams 2", "socket 1", "signal", "hold"}) {
    EXPECT_THAT(done, Contains(what));
  }
}

TEST_F(ConfinementTest, TheSandboxRefusesThemAll) {
  const auto done = InChild([&] {
    if (!Confine().ok() || !EnterSandbox("").ok()) return std::vector<std::string>{"cannot be entered"};
    return Attempts();
  });
  EXPECT_THAT(done, IsEmpty());
  std::ifstream file(folder_ + "/a");
  std::string text;
  file >> text;
  EXPECT_EQ(text, "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 5);
}

TEST_F(ConfinementTest, TheSandboxLeavesWhatPlanningNeeds) {
  const auto said = InChild([&] {
    std::vector<std::string> failed;
    if (!Confine().ok() || !EnterSandbox(folder_ + "/out").ok()) return std::vector<std::string>{"cannot be entered"};
    if (!Opens(folder_ + "/out/new", O_WRONLY | O_CREAT | O_EXCL)) failed.push_back("the new file");
    if (!Opens(folder_ + "/data/deep/file", O_RDONLY)) failed.push_back("reading");
    if (!Opens("/dev/null", O_WRONLY)) failed.push_back("/dev/null");
    int in_thread = 0;
    std::thread([&] { in_thread = 1; }).join();
    if (in_thread != 1) failed.push_back("threads");
    return failed;
  });
  EXPECT_THAT(said, IsEmpty());
  EXPECT_TRUE(fs::exists(folder_ + "/out/new"));
}

TEST_F(ConfinementTest, ThreadsAreConfinedToo) {
  const auto done = InChild([&] {
    if (!Confine().ok() || !EnterSandbox("").ok()) return std::vector<std::string>{"cannot be entered"};
    std::vector<std::string> all;
    std::thread([&] { all = Attempts(); }).join();
    return all;
  });
  EXPECT_THAT(done, IsEmpty());
}

TEST_F(ConfinementTest, ReadsOnlyWhatItIsTold) {
  if (LandlockVersion() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  std::ofstream(folder_ + "/secret") << "secret";
  fs::create_symlink(folder_ + "/secret", folder_ + "/data/link");
  const auto read = InChild([&] {
    std::vector<std::string> opened;
    if (!Confine().ok() || !EnterSandbox("").ok() || !ReadOnlyBeneath({folder_ + "/data", "", "/none"}).ok()) {
      return std::vector<std::string>{"cannot be entered"};
    }
    for (const std::string& path :
         {folder_ + "/secret", folder_ + "/data/link", folder_ + "/out/old", std::string("/etc/passwd"),
          std::string("/root"), std::string("/home"), absl::StrCat("/proc/", getppid(), "/environ"),
          folder_ + "/data/deep/file", folder_ + "/data/deep", std::string("/proc/self/status"),
          std::string("/usr/lib")}) {
      if (Opens(path, O_RDONLY)) opened.push_back(path);
    }
    return opened;
  });
  EXPECT_THAT(read, ElementsAre(folder_ + "/data/deep/file", folder_ + "/data/deep", "/proc/self/status", "/usr/lib"));
}

TEST_F(ConfinementTest, RefusesToBecomeRootOrNobodyInParticular) {
  for (const char* text : {"", "0:0:", "1000", "1000:0:", "0:1000:", "1000:1000:0", "1000:1000:x", "-1:5:", "a:b:c",
                           "1000:1000:1:2", "4294967296:1:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunAs(text))) << text;
  }
}

TEST_F(ConfinementTest, BecomesAnotherUserForGood) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  chmod(folder_.c_str(), 0700);
  const auto said = InChild([&] {
    std::vector<std::string> lines;
    if (!Confine().ok() || !RunAs("54321:54322:54323,54324").ok()) return std::vector<std::string>{"failed"};
    uid_t r = 0, e = 0, s = 0;
    getresuid(&r, &e, &s);
    lines.push_back(absl::StrCat(r, " ", e, " ", s));
    gid_t groups[8];
    const int count = getgroups(8, groups);
    for (int i = 0; i < count; ++i) lines.push_back(absl::StrCat("group ", groups[i]));
    if (setuid(0) == 0 || setresuid(0, 0, 0) == 0 || setgid(0) == 0 || setgroups(0, nullptr) == 0) {
      lines.push_back("came back");
    }
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, "Cap") && !absl::StartsWith(line, "CapBnd")) lines.push_back(line);
    }
    if (Opens(folder_ + "/a", O_RDONLY)) lines.push_back("read root's");
    if (!Opens("/proc/self/fd", O_RDONLY)) lines.push_back("not its own /proc");
    return lines;
  });
  EXPECT_THAT(said, ElementsAre("54321 54321 54321", "group 54323", "group 54324", "CapInh:\t0000000000000000",
                                "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000"));
}

}  // namespace
}  // namespace ampd
