#include "server/launch/local_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/launch/sanitized.h"
#include "server/launch/worker_contract.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class LocalProcess : public testing::Test {
 protected:
  LocalProcess() : state_dir_(absl::StrCat(testing::TempDir(), "/local_process_test_", getpid())) {
    fs::create_directories(state_dir_);
  }
  ~LocalProcess() override { fs::remove_all(state_dir_); }

  // A launcher whose worker is this shell script, in a file of its own: another's shell may not have read its script
  // yet.
  std::unique_ptr<LocalProcessLauncher> WithWorker(const std::string& script) {
    const std::string path = absl::StrCat(state_dir_, "/worker-", ++scripts_, ".sh");
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0700);
    return LocalProcessLauncher::Create(path, state_dir_).value();
  }

  // A launcher of workers that are another user's, who is this process's own, with a mirror.
  std::unique_ptr<LocalProcessLauncher> WithMirror(const std::string& mirror, MirrorFolders::Give give,
                                                   std::function<void(const std::string&)> log = nullptr,
                                                   const std::string& script = "") {
    const std::string path = absl::StrCat(state_dir_, "/worker-", ++scripts_, ".sh");
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0700);
    OtherUser user;
    user.account = WorkerAccount{getuid(), getgid(), {}, ""};
    user.mirror_root = mirror;
    user.log = std::move(log);
    user.give_in_mirror = std::move(give);
    return LocalProcessLauncher::Create(path, state_dir_, user).value();
  }

  // A worker of each job, to its end.
  static void RunAll(LocalProcessLauncher& launcher, const std::vector<std::string>& jobs) {
    std::promise<void> ended;
    size_t ends = 0;
    launcher.SetExitHandler([&](const WorkerProcess&, const WorkerExit&) {
      if (++ends == jobs.size()) ended.set_value();
    });
    for (const std::string& job : jobs) {
      const auto process = launcher.Launch({job, 1, "token"});
      ASSERT_TRUE(process.ok()) << process.status();
    }
    ended.get_future().wait();
    launcher.SetExitHandler(nullptr);
  }

  std::string LogOf(uint32_t attempt) {
    std::ifstream file(absl::StrCat(state_dir_, "/jobs/job/worker-", attempt, ".log"));
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }

  std::string state_dir_;
  int scripts_ = 0;
};

TEST_F(LocalProcess, RunsTheWorkerAndReportsItsEnd) {
  auto launcher = WithWorker("echo \"$@\"; echo token $AMPD_WORKER_TOKEN secret $AMPD_SECRET >&2; exit 5");
  setenv("AMPD_SECRET", "hidden", 1);
  std::promise<std::pair<WorkerProcess, WorkerExit>> ended;
  launcher->SetExitHandler([&](const WorkerProcess& p, const WorkerExit& e) { ended.set_value({p, e}); });
  const auto process = launcher->Launch({"job", 3, "s3cret-token"});
  ASSERT_TRUE(process.ok()) << process.status();
  const auto [who, how] = ended.get_future().get();
  EXPECT_EQ(who, *process);
  EXPECT_EQ(how.exit_status, 5);
  EXPECT_EQ(how.signal, 0);
  EXPECT_FALSE(launcher->IsAlive(*process));
  EXPECT_THAT(LogOf(3), HasSubstr("--job job --attempt 3"));
  EXPECT_THAT(LogOf(3), HasSubstr("token s3cret-token secret\n"));
}

TEST_F(LocalProcess, TheWorkerSeesItsGpusAlone) {
  setenv("CUDA_VISIBLE_DEVICES", "0,1,2", 1);
  for (const std::vector<std::string>& gpus : {std::vector<std::string>{"GPU-1234"}, {"GPU-1", "GPU-2"}, {}}) {
    auto launcher = WithWorker("echo sees ${CUDA_VISIBLE_DEVICES-everything}.");
    std::promise<WorkerExit> ended;
    launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
    ASSERT_TRUE(launcher->Launch({"job", 1, "token", gpus}).ok());
    ended.get_future().wait();
    EXPECT_THAT(LogOf(1), HasSubstr(absl::StrCat("sees ", absl::StrJoin(gpus, ","), ".\n")));
  }
}

TEST_F(LocalProcess, WorkersAreLimited) {
  for (const std::vector<std::string>& gpus : {std::vector<std::string>{}, {"GPU-1"}}) {
    // Its limits hold once it is launched, and not when its first line runs.
    const std::string go = state_dir_ + "/go";
    ASSERT_EQ(mkfifo(go.c_str(), 0600), 0);
    auto launcher = WithWorker("read go < " + go + "; ulimit -n; ulimit -c; ulimit -p; ulimit -d");
    std::promise<WorkerExit> ended;
    launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
    ASSERT_TRUE(launcher->Launch({"job", 1, "token", gpus}).ok());
    std::ofstream(go) << "\n";
    ended.get_future().wait();
    const bool unlimited = kSanitized || !gpus.empty();
    rlimit processes{};
    getrlimit(RLIMIT_NPROC, &processes);
    const long kib = sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / 1024);
    unlink(go.c_str());
    EXPECT_EQ(LogOf(1), absl::StrCat("4096\n0\n", std::min<rlim_t>(32768, processes.rlim_max), "\n",
                                     unlimited ? "unlimited" : absl::StrCat(kib), "\n"));
  }
}

TEST_F(LocalProcess, WithoutDescriptorsTheDiskIsNotFull) {
  auto launcher = WithWorker("exit 0");
  rlimit own{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  const rlimit none{0, own.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = launcher->Launch({"job", 1, "token"}).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &own), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker-1.log"));
}

// What `answer` is while so many more descriptors can be had.
template <typename Answer>
auto WithDescriptors(int more, Answer answer) {
  rlimit own{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  const int next = dup(STDERR_FILENO);
  close(next);
  const rlimit few{static_cast<rlim_t>(next + more), own.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto said = answer();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &own), 0);
  return said;
}

TEST_F(LocalProcess, WithoutDescriptorsALivingWorkerIsAlive) {
  auto launcher = WithWorker("exec sleep 1000");
  const WorkerProcess process = launcher->Launch({"job", 1, "t"}).value();
  auto next = WithWorker("true");
  // A process is held open, then its start time is read: without the one, without the other, with both.
  for (const int more : {0, 1, 2}) {
    EXPECT_TRUE(WithDescriptors(more, [&] { return next->IsAlive(process); })) << more;
    const absl::Status status = WithDescriptors(more, [&] { return next->Identify(process.pid).status(); });
    EXPECT_EQ(status.code(), more == 0 ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk) << status;
    if (more == 2) break;
    // One of another launcher is not killed, and still counts as alive.
    WithDescriptors(more, [&] { return next->Kill(process), 0; });
    EXPECT_TRUE(next->IsAlive(process));
  }
  std::promise<WorkerExit> ended;
  launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
  WithDescriptors(0, [&] { return launcher->Kill(process), 0; });
  auto exit = ended.get_future();
  ASSERT_EQ(exit.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "its own is";
  EXPECT_EQ(exit.get().signal, SIGKILL);
  EXPECT_FALSE(next->IsAlive(process));
  EXPECT_EQ(next->Identify(process.pid).status().code(), absl::StatusCode::kNotFound);
}

// Of this process, those included that have ended and were not reaped.
std::set<int> Children() {
  std::set<int> children;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    // PID (NAME) STATE PARENT
    const size_t name_end = stat.rfind(')');
    int parent = 0;
    if (name_end != std::string::npos && sscanf(stat.c_str() + name_end, ") %*c %d", &parent) == 1 &&
        parent == getpid()) {
      children.insert(pid);
    }
  }
  return children;
}

std::set<int> EpollDescriptors() {
  std::set<int> descriptors;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    int fd = 0;
    if (fs::read_symlink(entry.path(), closed) == "anon_inode:[eventpoll]" &&
        absl::SimpleAtoi(entry.path().filename().string(), &fd)) {
      descriptors.insert(fd);
    }
  }
  return descriptors;
}

TEST_F(LocalProcess, OneThatCannotBeWatchedIsEndedAndReaped) {
  const std::set<int> before = EpollDescriptors();
  auto launcher = WithWorker("exec sleep 1000");
  int epoll = -1;
  for (const int fd : EpollDescriptors()) epoll = before.contains(fd) ? epoll : fd;
  ASSERT_GE(epoll, 0);
  const std::set<int> children = Children();
  // In its place something that watches nothing; the watcher's thread still waits on the one it had.
  const int kept = dup(epoll), null = open("/dev/null", O_RDONLY);
  ASSERT_EQ(dup2(null, epoll), epoll);
  const absl::Status status = launcher->Launch({"job", 1, "t"}).status();
  ASSERT_EQ(dup2(kept, epoll), epoll);
  close(kept);
  close(null);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot watch the worker"));
  for (const int child : Children()) EXPECT_TRUE(children.contains(child)) << child;
  std::promise<WorkerExit> ended;
  launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
  launcher->Kill(launcher->Launch({"job", 2, "t"}).value());
  EXPECT_EQ(ended.get_future().get().signal, SIGKILL) << "another is watched";
}

TEST_F(LocalProcess, TheTokenIsNotOnTheCommandLine) {
  auto launcher = WithWorker("exec sleep 1000");
  const auto process = launcher->Launch({"job", 1, "s3cret-token"}).value();
  std::ifstream file(absl::StrCat("/proc/", process.pid, "/cmdline"));
  const std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(command, Not(HasSubstr("s3cret")));
  launcher->Kill(process);
}

TEST_F(LocalProcess, KillsByIdentity) {
  auto launcher = WithWorker("exec sleep 1000");
  std::promise<WorkerExit> ended;
  launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
  const WorkerProcess process = launcher->Launch({"job", 1, "t"}).value();
  EXPECT_EQ(launcher->Identify(process.pid).value(), process);
  WorkerProcess other = process;
  ++other.start_time;
  launcher->Kill(other);
  EXPECT_FALSE(launcher->IsAlive(other));
  EXPECT_TRUE(launcher->IsAlive(process));
  launcher->Kill(process);
  EXPECT_EQ(ended.get_future().get().signal, SIGKILL);
  EXPECT_FALSE(launcher->IsAlive(process));
  launcher->Kill(process);
}

TEST_F(LocalProcess, AnEndBeforeTheHandlerIsNotLost) {
  auto launcher = WithWorker("exit 1");
  const WorkerProcess process = launcher->Launch({"job", 1, "t"}).value();
  while (launcher->IsAlive(process)) {
  }
  std::promise<WorkerExit> ended;
  launcher->SetExitHandler([&](const WorkerProcess&, const WorkerExit& e) { ended.set_value(e); });
  EXPECT_EQ(ended.get_future().get().exit_status, 1);
}

TEST_F(LocalProcess, WorkersOutliveTheirLauncher) {
  auto launcher = WithWorker("exec sleep 1000");
  const WorkerProcess process = launcher->Launch({"job", 1, "t"}).value();
  launcher.reset();
  launcher = WithWorker("true");
  EXPECT_TRUE(launcher->IsAlive(process));
  launcher->Kill(process);
  while (launcher->IsAlive(process)) {
  }
}

TEST_F(LocalProcess, FindsItsWorkersAndNoOthers) {
  // Opens what nobody writes to. The shell's own command line stays, and no fork of it has the same for a moment.
  const std::string never = state_dir_ + "/never";
  ASSERT_EQ(mkfifo(never.c_str(), 0600), 0);
  auto launcher = WithWorker("read line < " + never);
  const WorkerProcess first = launcher->Launch({"job", 1, "t"}).value();
  const WorkerProcess second = launcher->Launch({"other", 7, "t"}).value();
  auto elsewhere = LocalProcessLauncher::Create("/no/such/worker", state_dir_ + "/jobs").value();
  EXPECT_THAT(elsewhere->FindWorkers(), testing::IsEmpty());
  const auto names = [&] {
    std::vector<std::string> found;
    for (const FoundWorker& worker : launcher->FindWorkers()) {
      found.push_back(
          absl::StrCat(worker.job_id, " ", worker.attempt, " ", worker.process == first ? "first" : "second"));
    }
    return found;
  };
  // A process that has just been started has no command line for a moment: the kernel closes the pipe that tells of the
  // exec before it has one.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (names().size() < 2 && absl::Now() < deadline) {
  }
  EXPECT_THAT(names(), testing::UnorderedElementsAre("job 1 first", "other 7 second"));
  launcher->Kill(first);
  while (launcher->IsAlive(first)) {
  }
  EXPECT_THAT(names(), testing::ElementsAre("other 7 second"));
  launcher->Kill(second);
  while (launcher->IsAlive(second)) {
  }
}

TEST_F(LocalProcess, NeitherALaunchNorTheEndWaitsForAMirrorThatHangs) {
  struct Calls {
    std::promise<void> called, answer, returned;
  };
  const auto calls = std::make_shared<Calls>();
  auto launcher = WithMirror(state_dir_ + "/mirror", [calls](const std::string&, std::vector<std::string>*) {
    calls->called.set_value();
    calls->answer.get_future().wait();
    calls->returned.set_value();
    return absl::OkStatus();
  });
  calls->called.get_future().wait();
  ASSERT_NO_FATAL_FAILURE(RunAll(*launcher, {"job", "other"}));
  launcher.reset();
  calls->answer.set_value();
  calls->returned.get_future().wait();
}

TEST_F(LocalProcess, AMirrorThatFailsStopsNoJob) {
  std::ofstream(state_dir_ + "/file") << "in the way";
  std::promise<std::string> told;
  auto launcher =
      WithMirror(state_dir_ + "/file/mirror", nullptr, [&](const std::string& text) { told.set_value(text); });
  EXPECT_THAT(told.get_future().get(), HasSubstr("/file/mirror: Not a directory"));
  // Told a second time, the promise would throw.
  ASSERT_NO_FATAL_FAILURE(RunAll(*launcher, {"job", "other"}));
}

TEST_F(LocalProcess, AWorkerHasItsFolderInTheMirror) {
  const std::string mirror = state_dir_ + "/some/mirror";
  const MirrorFolders::Give give = GiveIn(mirror, WorkerAccount{getuid(), getgid(), {}, ""});
  const auto given = std::make_shared<std::promise<void>>();
  auto launcher = WithMirror(
      mirror,
      [give, given](const std::string& job_id, std::vector<std::string>* notes) {
        const absl::Status status = give(job_id, notes);
        if (job_id == "job") given->set_value();
        return status;
      },
      nullptr, "exec sleep 1000");
  const auto process = launcher->Launch({"job", 1, "token"});
  ASSERT_TRUE(process.ok()) << process.status();
  given->get_future().wait();
  EXPECT_TRUE(fs::is_directory(mirror + "/job"));
  launcher->Kill(*process);
}

TEST_F(LocalProcess, AWorkerOfADaemonBeforeIsGivenItsFolderInTheMirror) {
  // Opens what nobody writes to; its command line stays.
  const std::string never = state_dir_ + "/never";
  ASSERT_EQ(mkfifo(never.c_str(), 0600), 0);
  auto before = WithWorker("read line < " + never);
  const WorkerProcess process = before->Launch({"job", 1, "token"}).value();
  before.reset();
  // A process that has just been started has no command line for a moment.
  auto plain = WithWorker("true");
  while (plain->FindWorkers().empty()) {
  }
  const auto given = std::make_shared<std::promise<void>>();
  auto launcher = WithMirror(state_dir_ + "/mirror", [given](const std::string& job_id, std::vector<std::string>*) {
    if (job_id == "job") given->set_value();
    return absl::OkStatus();
  });
  given->get_future().wait();
  launcher->Kill(process);
}

TEST_F(LocalProcess, SaysWhyAWorkerCannotStart) {
  auto launcher = LocalProcessLauncher::Create("/no/such/worker", state_dir_).value();
  EXPECT_THAT(std::string(launcher->Launch({"job", 1, "t"}).status().message()), HasSubstr("/no/such/worker"));
  std::ofstream(state_dir_ + "/jobs/other") << "in the way";
  EXPECT_THAT(std::string(launcher->Launch({"other", 1, "t"}).status().message()), HasSubstr("/jobs/other"));
}

}  // namespace
}  // namespace ampd
