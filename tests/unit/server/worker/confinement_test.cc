// Each confinement in a process of its own, which then tries what it must not be able to do: nothing is taken back.
#include "server/worker/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
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

// What can be done to the parent's limits and scheduling, and which signals descriptors can send it; tried with what it
// has already.
std::vector<std::string> ReachesParent() {
  std::vector<std::string> done;
  const pid_t parent = getppid();
  const auto attempt = [&done](const std::string& what, bool succeeded) {
    if (succeeded) done.push_back(what);
  };
  rlimit files{};
  attempt("limits",
          prlimit(parent, RLIMIT_NOFILE, nullptr, &files) == 0 && prlimit(parent, RLIMIT_NOFILE, &files, nullptr) == 0);
  sched_param priority{};
  attempt("scheduler", sched_setscheduler(parent, SCHED_OTHER, &priority) == 0);
  attempt("parameters", sched_setparam(parent, &priority) == 0);
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {48, SCHED_OTHER, 0, getpriority(PRIO_PROCESS, static_cast<id_t>(parent)), 0, 0, 0, 0};
  attempt("attributes", syscall(SYS_sched_setattr, parent, &attributes, 0) == 0);
  attempt("priority", setpriority(PRIO_PROCESS, static_cast<id_t>(parent), attributes.nice) == 0);
  constexpr int kProcess = 1, kBestEffort4 = 2 << 13 | 4;
  attempt("i/o priority", syscall(SYS_ioprio_set, kProcess, parent, kBestEffort4) == 0);
  attempt("pages", syscall(SYS_move_pages, parent, 0, nullptr, nullptr, nullptr, 0) == 0);
  void* list = nullptr;
  size_t length = 0;
  attempt("locks", syscall(SYS_get_robust_list, parent, &list, &length) == 0);
  int fds[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0) {
    attempt("owner", fcntl(fds[0], F_SETOWN, parent) == 0);
    const f_owner_ex owner = {F_OWNER_PID, parent};
    attempt("exact owner", fcntl(fds[0], F_SETOWN_EX, &owner) == 0);
    attempt("owner by ioctl", ioctl(fds[0], FIOSETOWN, &parent) == 0);
    attempt("its signal", fcntl(fds[0], F_SETSIG, SIGUSR1) == 0);
  }
  return done;
}

bool MayRunOn(pid_t pid, size_t processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(pid, sizeof(set), &set) == 0 && static_cast<size_t>(CPU_COUNT(&set)) == processors;
}

cpu_set_t FirstOf(const cpu_set_t& from) {
  cpu_set_t first;
  CPU_ZERO(&first);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++i) {
    if (CPU_ISSET(i, &from)) CPU_SET(i, &first);
  }
  return first;
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
    for (const std::string& what : ReachesParent()) done.push_back(what);
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
  for (const char* what : {"truncate", "chmod",       "chown",          "link",        "symlink",     "mkdir",
                           "rename",   "unlink",      "socket 2",       "datagrams 2", "socket 1",    "signal",
                           "hold",     "limits",      "scheduler",      "parameters",  "attributes",  "priority",
                           "owner",    "exact owner", "owner by ioctl", "its signal",  "i/o priority"}) {
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

TEST_F(ConfinementTest, TheSandboxLeavesAProcessItsOwnLimits) {
  const auto said = InChild([&] {
    std::vector<std::string> failed;
    if (!Confine().ok() || !EnterSandbox("").ok()) return std::vector<std::string>{"cannot be entered"};
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || setrlimit(RLIMIT_NOFILE, &files) != 0) failed.push_back("getrlimit");
    if (prlimit(getpid(), RLIMIT_NOFILE, nullptr, &files) != 0) failed.push_back("prlimit");
    const sched_param priority{};
    if (sched_setscheduler(0, SCHED_OTHER, &priority) != 0) failed.push_back("sched_setscheduler");
    if (fcntl(0, F_GETFL) < 0 && errno == EPERM) failed.push_back("fcntl");
    return failed;
  });
  EXPECT_THAT(said, IsEmpty());
}

// As OpenMP does where OMP_PROC_BIND is set; it ends the process where that fails.
TEST_F(ConfinementTest, BindingAThreadIsAnsweredAndBindingOthersDoesNothing) {
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
  const size_t processors = static_cast<size_t>(CPU_COUNT(&own));
  if (processors < 2) GTEST_SKIP() << "there is one processor only";
  const cpu_set_t one = FirstOf(own);
  const auto said = InChild([&] {
    std::vector<std::string> failed;
    if (!Confine().ok() || !EnterSandbox("").ok()) return std::vector<std::string>{"cannot be entered"};
    if (sched_setaffinity(getppid(), sizeof(one), &one) != 0) failed.push_back("not answered");
    if (!MayRunOn(getppid(), processors)) failed.push_back("bound the parent");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setaffinity_np(&attributes, sizeof(one), &one);
    pthread_t thread{};
    const auto body = [](void*) -> void* { return nullptr; };
    if (pthread_create(&thread, &attributes, body, nullptr) != 0) return std::vector<std::string>{"no bound thread"};
    pthread_join(thread, nullptr);
    if (sched_setaffinity(0, sizeof(one), &one) != 0 || !MayRunOn(0, 1)) failed.push_back("not itself");
    return failed;
  });
  EXPECT_THAT(said, IsEmpty());
}

// Of the ways to open a file, those by which the child emptied "a".
std::vector<std::string> EmptiedBy(const std::string& path) {
  std::vector<std::string> done;
  const auto attempt = [&](const char* what, long fd) {
    struct stat info {};
    if (fd >= 0) close(static_cast<int>(fd));
    if (fd >= 0 && stat(path.c_str(), &info) == 0 && info.st_size == 0) done.push_back(what);
  };
  attempt("openat", openat(AT_FDCWD, path.c_str(), O_RDONLY | O_TRUNC));
#if defined(__x86_64__)
  attempt("open", syscall(SYS_open, path.c_str(), O_RDONLY | O_TRUNC));
  attempt("creat", syscall(SYS_creat, path.c_str(), 0600));
#endif
  const open_how how = {O_RDONLY | O_TRUNC, 0, 0};
  attempt("openat2", syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how)));
  return done;
}

// Versions 1 and 2 (Linux before 6.2) do not keep files from being emptied; nor does a kernel that has none of it.
TEST_F(ConfinementTest, NothingIsEmptiedWhereLandlockIsOld) {
  for (int version = 0; version <= LandlockVersion(); ++version) {
    SCOPED_TRACE(version);
    const auto done = InChild([&] {
      if (!Confine().ok() || !EnterSandbox(folder_ + "/out", version).ok()) {
        return std::vector<std::string>{"cannot be entered"};
      }
      std::vector<std::string> emptied = EmptiedBy(folder_ + "/a");
      if (!Opens(folder_ + "/out/new", O_WRONLY | O_CREAT | O_EXCL)) emptied.push_back("no new file");
      if (!Opens(folder_ + "/a", O_RDONLY)) emptied.push_back("no reading");
      const open_how how = {O_RDONLY, 0, 0};
      const bool is_there = syscall(SYS_openat2, AT_FDCWD, folder_.c_str(), &how, sizeof(how)) >= 0;
      if (is_there != (version >= 3) || (!is_there && errno != ENOSYS)) emptied.push_back("openat2");
      return emptied;
    });
    EXPECT_THAT(done, IsEmpty());
    fs::remove(folder_ + "/out/new");
  }
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
