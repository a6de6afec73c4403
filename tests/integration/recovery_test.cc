// Deaths of the worker, of the daemon and of both: the record has no gap, and the losses are those of a run that was
// never interrupted, bit for bit.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/daemon_process.h"

namespace ampd {
namespace {

constexpr int64_t kSteps = 400;

class RecoveryTest : public IntegrationTest {
 protected:
  static bool Rewound(const std::vector<v1::JobEvent>& events) {
    for (const v1::JobEvent& event : events) {
      if (event.has_rewound()) return true;
    }
    return false;
  }

  // The job's events, once it succeeded with the losses of an undisturbed run.
  std::vector<v1::JobEvent> ExpectUndisturbed(const std::string& id) {
    const std::vector<v1::JobEvent> events = Watch(id);
    EXPECT_EQ(events.back().state_change().to(), v1::Job::SUCCEEDED) << events.back().DebugString();
    const std::vector<v1::JobEvent> undisturbed = Watch(Create(Request(kSteps)));
    EXPECT_EQ(Losses(events), Losses(undisturbed));
    EXPECT_EQ(Losses(events).size(), static_cast<size_t>(kSteps));
    return events;
  }

  void KillWorkers(const std::string& id) {
    const std::vector<pid_t> workers = WorkersOf(id);
    ASSERT_EQ(workers.size(), 1u);
    kill(workers[0], SIGKILL);
  }
};

TEST_F(RecoveryTest, AKilledWorkerRepeatsFromItsCheckpoint) {
  const std::string id = Create(Request(kSteps));
  WatchToStep(id, 120);
  KillWorkers(id);
  EXPECT_TRUE(Rewound(ExpectUndisturbed(id)));
  EXPECT_EQ(Get(id).attempt(), 2u);
}

TEST_F(RecoveryTest, AKilledDaemonRepeatsNothing) {
  const std::string id = Create(Request(kSteps));
  WatchToStep(id, 120);
  Restart();
  EXPECT_FALSE(Rewound(ExpectUndisturbed(id)));
  EXPECT_EQ(Get(id).attempt(), 1u);
}

TEST_F(RecoveryTest, BothKilled) {
  const std::string id = Create(Request(kSteps));
  WatchToStep(id, 120);
  daemon_->Signal(SIGKILL);
  daemon_->Wait();
  KillWorkers(id);
  daemon_ = std::make_unique<DaemonProcess>(state_dir_);
  ExpectUndisturbed(id);
}

// Past reattach_timeout the worker writes a checkpoint and ends. The next attempt goes on from there.
TEST_F(RecoveryTest, AnOrphansCheckpointIsResumedFrom) {
  const std::string config = state_dir_ + ".yaml";
  std::ofstream(config) << "reattach_timeout_seconds: 1\n";
  daemon_.reset();
  daemon_ = std::make_unique<DaemonProcess>(state_dir_, std::vector<std::string>{"--config", config});
  v1::CreateJobRequest request = Request(1000000);
  request.mutable_spec()->mutable_checkpoint()->set_every_steps(0);
  const std::string id = Create(request);
  WatchToStep(id, 20);
  daemon_.reset();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!WorkersOf(id).empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(WorkersOf(id).empty());
  daemon_ = std::make_unique<DaemonProcess>(state_dir_);
  int64_t resumed = 0;
  const std::vector<v1::JobEvent> events = Watch(id, [&](const v1::JobEvent& event) {
    if (event.has_checkpoint()) resumed = event.checkpoint().step();
    return event.attempt() == 2 && event.has_step();
  });
  EXPECT_FALSE(Rewound(events));
  EXPECT_GT(resumed, 20);
  EXPECT_EQ(events.back().step().first_step(), resumed + 1);
  EXPECT_EQ(events.back().step().phases(0).steps_applied() + events.back().step().phases(0).steps_skipped(),
            resumed + 1);
  const v1::JobSummary summary = Get(id).summary();
  EXPECT_EQ(summary.steps_applied() + summary.steps_skipped(), summary.step());
  std::filesystem::remove(config);
}

}  // namespace
}  // namespace ampd
