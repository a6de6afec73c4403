// What the store acknowledged survives `kill -9` at any moment, and a file system without room.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

// In the child: appends events to jobs 1..3 from `next` on, and writes the number of each durable one to `ack`.
[[noreturn]] void WriteForever(const std::string& dir, std::vector<uint64_t> next, int ack) {
  Store::Options options;
  options.state_dir = dir;
  auto store = Store::Open(std::move(options));
  if (!store.ok()) _exit(3);
  for (uint32_t i = 0;; ++i) {
    const int job = static_cast<int>(i % next.size());
    const uint64_t sequence = next[job]++;
    JobWrite write = sequence == 1 ? CreateWrite(job + 1) : EventWrite(job + 1, sequence, std::string(300, 'e'));
    const auto done = [ack, job, sequence](const absl::Status& status) {
      const uint64_t message[2] = {static_cast<uint64_t>(job), sequence};
      if (!status.ok() || ::write(ack, message, sizeof(message)) != sizeof(message)) _exit(4);
    };
    // A few in flight, so that groups are torn too.
    if (i % 5 == 4) {
      std::promise<void> committed;
      (*store)->Write(std::move(write), [&](const absl::Status& status) {
        done(status);
        committed.set_value();
      });
      committed.get_future().wait();
    } else {
      (*store)->Write(std::move(write), done);
    }
  }
}

TEST(StoreDurabilityTest, EveryAcknowledgedWriteSurvivesKill) {
  TempDir dir;
  std::mt19937 random(20);
  std::vector<uint64_t> acknowledged = {0, 0, 0};
  std::vector<uint64_t> stored = {0, 0, 0};
  for (int round = 0; round < 12; ++round) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(fds[0]);
      WriteForever(dir.path(), {stored[0] + 1, stored[1] + 1, stored[2] + 1}, fds[1]);
    }
    close(fds[1]);
    // Killed after a random count of acknowledgements, wherever its threads are then.
    const int kill_after = static_cast<int>(random() % 60) + 1;
    uint64_t message[2];
    int count = 0;
    bool killed = false;
    while (read(fds[0], message, sizeof(message)) == sizeof(message)) {
      acknowledged[message[0]] = message[1];
      if (++count >= kill_after && !killed) {
        kill(child, SIGKILL);
        killed = true;
      }
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the writer ended by itself: " << status;
    close(fds[0]);
    Store::Options options;
    options.state_dir = dir.path();
    auto store = Store::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int job = 0; job < 3; ++job) {
      const auto page =
          (*store)->Await([&](const Database& database) { return database.ReadEvents(TestId(job + 1), 0, 1'000'000); });
      if (absl::IsNotFound(page.status())) {
        EXPECT_EQ(acknowledged[job], 0u);
        continue;
      }
      ASSERT_TRUE(page.ok()) << page.status();
      stored[job] = page->last_sequence;
      EXPECT_GE(stored[job], acknowledged[job]);
      ASSERT_EQ(page->events.size(), stored[job]);
      for (uint64_t i = 0; i < stored[job]; ++i) ASSERT_EQ(page->events[i].sequence(), i + 1);
    }
  }
  EXPECT_GT(stored[0] + stored[1] + stored[2], 100u);
}

// In a child, so that the limit stays there.
int FillFileSystem(const std::string& dir) {
  signal(SIGXFSZ, SIG_IGN);
  Store::Options options;
  options.state_dir = dir;
  auto store = Store::Open(std::move(options));
  if (!store.ok() || !WriteAndWait(**store, CreateWrite(1)).ok()) return 10;
  const rlimit limit = {1 << 20, 1 << 20};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 11;
  for (uint64_t sequence = 2; sequence < 1000; ++sequence) {
    const absl::Status status = WriteAndWait(**store, EventWrite(1, sequence, std::string(20000, 'e')));
    if (status.ok()) continue;
    if (!absl::IsResourceExhausted(status)) {
      fprintf(stderr, "%s\n", status.ToString().c_str());
      return 12;
    }
    const auto page = (*store)->Await([](const Database& d) { return d.ReadEvents(TestId(1), 0, 10000); });
    if (!page.ok() || page->events.size() != sequence - 1) return 13;
    return 0;
  }
  return 14;
}

TEST(StoreDurabilityTest, AFileThatCannotGrowIsResourceExhaustedAndNothingIsHalfWritten) {
  TempDir dir;
  const pid_t child = fork();
  if (child == 0) _exit(FillFileSystem(dir.path()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Store::Options options;
  options.state_dir = dir.path();
  auto store = Store::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto page = (*store)->Await([](const Database& d) { return d.ReadEvents(TestId(1), 0, 10000); });
  ASSERT_TRUE(page.ok());
  EXPECT_GT(page->events.size(), 10u);
  EXPECT_EQ(page->events.size(), page->last_sequence);
}

}  // namespace
}  // namespace ampd
