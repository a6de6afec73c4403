// Deaths of the worker, of the daemon and of both: the record has no gap, and the losses are those of a run that was
// never interrupted, bit for bit.
#include <signal.h>

#include <string>

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

}  // namespace
}  // namespace ampd
