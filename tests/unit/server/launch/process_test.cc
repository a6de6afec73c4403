#include "server/launch/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/launch/exit_watcher.h"

namespace ampd {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Runs a shell script to its end, once its limits hold, and returns what it printed.
std::string Output(const std::string& script, std::vector<std::string> environment = {},
                   const ProcessLimits& limits = {}) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  int go[2];
  EXPECT_EQ(pipe2(go, O_CLOEXEC), 0);
  SpawnOptions options{.argv = {"/bin/sh", "-c", "read go; " + script}, .environment = std::move(environment)};
  options.stdin_fd = go[0];
  options.stdout_fd = fds[1];
  options.limits = limits;
  auto process = Spawn(options);
  EXPECT_TRUE(process.ok()) << process.status();
  close(go[0]);
  EXPECT_EQ(write(go[1], "\n", 1), 1);
  close(go[1]);
  close(fds[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) > 0;) output.append(buffer, n);
  close(fds[0]);
  process->Reap();
  return output;
}

ProcessHandle Sleeper() { return Spawn({.argv = {"/bin/sleep", "1000"}}).value(); }

TEST(Spawn, GivesTheChildItsOwnSessionAndOnlyTheEnvironmentAsked) {
  EXPECT_EQ(Output("echo $0 $A $HOME", {"A=b"}), "/bin/sh b\n");
  // pid, process group and session of the shell itself: fields 1, 5 and 6.
  const std::string stat = Output("read -r p n s pp pg ss rest < /proc/$$/stat; echo $p $pg $ss $$");
  int pid, group, session, self;
  ASSERT_EQ(sscanf(stat.c_str(), "%d %d %d %d", &pid, &group, &session, &self), 4) << stat;
  EXPECT_EQ(pid, self);
  EXPECT_EQ(group, self);
  EXPECT_EQ(session, self);
}

TEST(Spawn, ChildInheritsNoDescriptorNoMaskAndDumpsNoCore) {
  const int leaky = open("/dev/null", O_RDONLY);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  // The shell's own glob of its descriptors opens one more, 3.
  EXPECT_EQ(Output("cd /proc/self/fd; echo *"), "0 1 2 3\n");
  EXPECT_THAT(Output("grep SigBlk /proc/self/status"), HasSubstr("0000000000000000"));
  EXPECT_EQ(Output("ulimit -c"), "0\n");
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  close(leaky);
}

TEST(Spawn, LimitsTheChildAndNotThisProcess) {
  const ProcessLimits limits{.cpu_seconds = 77,
                             .address_space_bytes = uint64_t{3} << 30,
                             .data_bytes = uint64_t{2} << 30,
                             .open_files = 123,
                             .processes = 4321,
                             .file_bytes = 4096};
  const std::string text = Output("cat /proc/self/limits", {}, limits);
  for (const char* line : {"Max cpu time +77 +77 ", "Max address space +3221225472 +3221225472 ",
                           "Max data size +2147483648 +2147483648 ", "Max open files +123 +123 ",
                           "Max processes +4321 +4321 ", "Max file size +4096 +4096 ", "Max core file size +0 +0 "}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
  rlimit own{};
  getrlimit(RLIMIT_NOFILE, &own);
  EXPECT_GT(own.rlim_cur, 123u);
  // Nothing is raised.
  EXPECT_THAT(Output("cat /proc/self/limits", {}, {.open_files = UINT64_MAX / 2}),
              ContainsRegex(absl::StrCat("Max open files +", own.rlim_max, " +", own.rlim_max, " ")));
}

TEST(Spawn, AChildThatMayWriteNoFileWritesNone) {
  const std::string path = absl::StrCat(testing::TempDir(), "/spawn_test_", getpid());
  EXPECT_THAT(Output("echo told; (echo written > " + path + ") 2>/dev/null; wc -c < " + path, {"PATH=/usr/bin:/bin"},
                     {.file_bytes = 0}),
              ContainsRegex("told\n0\n"));
  unlink(path.c_str());
}

TEST(Spawn, SaysWhenThereIsNoProgram) {
  const absl::Status status = Spawn({.argv = {"/no/such/program"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/program"));
  EXPECT_EQ(Spawn({.argv = {"/etc/passwd"}}).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(ProcessHandle, TellsHowAChildEnded) {
  EXPECT_EQ(Spawn({.argv = {"/bin/sh", "-c", "exit 7"}})->Reap().exit_code, 7);
  const ProcessHandle killed = Sleeper();
  ASSERT_TRUE(killed.Signal(SIGKILL).ok());
  const ProcessExit exit = killed.Reap();
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_EQ(DescribeExit(exit), "was ended by signal 9 (Killed)");
  EXPECT_EQ(killed.Signal(SIGKILL).code(), absl::StatusCode::kNotFound);
}

TEST(ProcessHandle, AnotherProcessUnderThatPidIsNotIt) {
  const ProcessHandle process = Sleeper();
  ProcessIdentity recycled = process.identity();
  --recycled.start_time;
  EXPECT_EQ(ProcessHandle::Open(recycled).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(process.running());
  EXPECT_TRUE(ProcessHandle::Open(process.identity()).ok());
  process.Signal(SIGKILL).IgnoreError();
  process.Reap();
  EXPECT_EQ(ProcessHandle::Open(process.identity()).status().code(), absl::StatusCode::kNotFound);
}

TEST(IdentifyProcess, AgreesWithTheKernelAboutThisProcess) {
  const auto self = IdentifyProcess(getpid());
  ASSERT_TRUE(self.ok());
  EXPECT_EQ(self->pid, getpid());
  // Booted before, started after it: in ticks of 1/100 s.
  EXPECT_GT(self->start_time, 0u);
  EXPECT_EQ(IdentifyProcess(1 << 30).status().code(), absl::StatusCode::kNotFound);
}

TEST(ScrubbedEnvironment, KeepsLittle) {
  setenv("AMPD_TEST_SECRET", "x", 1);
  setenv("OMP_NUM_THREADS", "3", 1);
  const std::vector<std::string> environment = ScrubbedEnvironment();
  EXPECT_THAT(environment, Contains("OMP_NUM_THREADS=3"));
  EXPECT_THAT(environment, Contains(StartsWith("PATH=")));
  EXPECT_THAT(environment, Not(Contains(HasSubstr("SECRET"))));
}

TEST(LimitThisProcess, DoesWhatTheTextSays) {
  const ProcessLimits limits{.cpu_seconds = 7000,
                             .address_space_bytes = uint64_t{1} << 40,
                             .data_bytes = uint64_t{1} << 39,
                             .open_files = 123,
                             .processes = 4321,
                             .file_bytes = 4096};
  const std::string text = LimitsText(limits);
  EXPECT_EQ(text, "cpu=7000,as=1099511627776,data=549755813888,nofile=123,nproc=4321,fsize=4096");
  EXPECT_EQ(LimitsText({}), "");
  const pid_t pid = fork();
  if (pid == 0) {
    // The second asks for more, and is given no more.
    if (!LimitThisProcess(text).ok() || !LimitThisProcess("nofile=200").ok()) _exit(1);
    rlimit files{}, size{}, cpu{};
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_FSIZE, &size);
    getrlimit(RLIMIT_CPU, &cpu);
    _exit(files.rlim_max == 123 && files.rlim_cur == 123 && size.rlim_max == 4096 && cpu.rlim_cur == 7000 ? 0 : 2);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  for (const char* wrong : {"cpu", "cpu=", "cpu=x", "cpu=-1", "stack=1", "cpu=1=2", "=1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(LimitThisProcess(wrong))) << wrong;
  }
}

TEST(RunAsAccount, TellsTheWorkerAndGivesItAHomeOfItsOwn) {
  SpawnOptions options{.argv = {"worker", "--plan"}, .environment = {"HOME=/root", "HOMEY=1"}};
  RunAsAccount(std::nullopt, &options);
  EXPECT_EQ(options.argv.size(), 2u);
  EXPECT_FALSE(options.limits_itself);
  options.limits = {.cpu_seconds = 7, .file_bytes = 0};
  RunAsAccount(WorkerAccount{12, 34, {34, 56}, "/nowhere/worker"}, &options);
  EXPECT_THAT(options.argv,
              testing::ElementsAre("worker", "--plan", "--run-as", "12:34:34,56", "--limits", "cpu=7,fsize=0"));
  EXPECT_TRUE(options.limits_itself);
  EXPECT_THAT(options.environment, testing::ElementsAre("HOMEY=1", "HOME=/nowhere/worker"));
}

TEST(ScrubbedEnvironment, IsAListOfWhatIsKnownWithoutSecrets) {
  for (const char* name : {"CUDA_CACHE_PATH", "NVIDIA_TF32_OVERRIDE", "NCCL_DEBUG", "DNNL_VERBOSE", "LC_TIME", "TMPDIR",
                           "LD_LIBRARY_PATH"}) {
    setenv(name, "kept", 1);
    EXPECT_THAT(ScrubbedEnvironment(), Contains(absl::StrCat(name, "=kept")));
    unsetenv(name);
  }
  for (const char* name : {"AMPD_TOKEN", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "NVIDIA_API_KEY", "NCCL_Password",
                           "CUDA_TOKEN", "CUDA_VISIBLE_DEVICES", "GITHUB_PAT", "PATHS", "http_proxy"}) {
    setenv(name, "told", 1);
    EXPECT_THAT(ScrubbedEnvironment(), Not(Contains(HasSubstr("told")))) << name;
    unsetenv(name);
  }
}

TEST(ExitWatcher, TellsOfChildren) {
  auto watcher = ExitWatcher::Create().value();
  std::promise<ProcessExit> exited, killed;
  ASSERT_TRUE(watcher
                  ->Watch(Spawn({.argv = {"/bin/sh", "-c", "exit 3"}}).value(),
                          [&](const ProcessExit& exit) { exited.set_value(exit); })
                  .ok());
  ProcessHandle sleeper = Sleeper();
  const ProcessIdentity identity = sleeper.identity();
  ASSERT_TRUE(watcher->Watch(std::move(sleeper), [&](const ProcessExit& exit) { killed.set_value(exit); }).ok());
  EXPECT_EQ(exited.get_future().get().exit_code, 3);
  ASSERT_TRUE(watcher->Signal(identity, SIGKILL).ok());
  EXPECT_EQ(killed.get_future().get().signal, SIGKILL);
  EXPECT_EQ(watcher->Signal(identity, SIGKILL).code(), absl::StatusCode::kNotFound);
}

TEST(ExitWatcher, TellsOfAProcessThatIsNotItsChild) {
  // The shell starts a sleeper and exits at once, so that the sleeper is somebody else's child.
  const std::string printed = Output("sleep 1000 >/dev/null 2>&1 & echo $!");
  const ProcessIdentity orphan = IdentifyProcess(atoi(printed.c_str())).value();
  auto watcher = ExitWatcher::Create().value();
  std::promise<ProcessExit> ended;
  ASSERT_TRUE(
      watcher->Watch(ProcessHandle::Open(orphan).value(), [&](const ProcessExit& exit) { ended.set_value(exit); })
          .ok());
  ASSERT_TRUE(watcher->Signal(orphan, SIGKILL).ok());
  EXPECT_FALSE(ended.get_future().get().status_known);
}

}  // namespace
}  // namespace ampd
