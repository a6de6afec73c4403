// What the store acknowledged survives a power loss at any moment: tests/support/power_loss.h says what a disk keeps.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "tests/support/power_loss.h"
#include "tests/unit/server/store/store_test_util.h"

namespace ampd {
namespace {

constexpr int kJobs = 3;

// Disks that lose power are many here, and how fast one syncs is not what is tested.
const bool kInMemory = access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 1) == 0;

struct Acknowledged {
  size_t position;
  int job;
  uint64_t sequence;
};

// Writes to jobs 1..kJobs, some writes at a time, through several lives of the store; the last is long enough that
// SQLite folds its log into the database.
class Workload {
 public:
  Workload(std::string state_dir, const PowerLoss& loss) : state_dir_(std::move(state_dir)), loss_(loss) {}

  void Run() {
    for (int life = 0; life < 4; ++life) {
      auto store = *Store::Open({.state_dir = state_dir_});
      for (int i = 0; i < (life == 3 ? 150 : 12); ++i)
        Write(*store, std::string(life == 3 ? 40'000 : 900, 'e'), i % 4 != 3);
      // A store that is closed folds the log as well.
    }
  }

  std::vector<Acknowledged> acknowledged() const { return acknowledged_; }

 private:
  void Write(Store& store, const std::string& text, bool in_flight) {
    const int job = static_cast<int>(random_() % kJobs) + 1;
    const uint64_t sequence = ++last_[job];
    std::promise<void> written;
    auto done = [this, job, sequence, in_flight, &written](const absl::Status& status) {
      ASSERT_TRUE(status.ok()) << status;
      const std::lock_guard lock(mutex_);
      acknowledged_.push_back({loss_.position(), job, sequence});
      if (!in_flight) written.set_value();
    };
    store.Write(sequence == 1 ? CreateWrite(job) : EventWrite(job, sequence, text), done);
    if (!in_flight) written.get_future().wait();
  }

  const std::string state_dir_;
  const PowerLoss& loss_;
  std::mt19937 random_{3};
  std::map<int, uint64_t> last_;
  std::mutex mutex_;
  std::vector<Acknowledged> acknowledged_;
};

// The first thing that is wrong with what is left when the power goes after `position`; empty: nothing.
std::string WhatIsLost(const PowerLoss& loss, size_t position, const std::vector<Acknowledged>& acknowledged,
                       std::mt19937& random, bool syncs_nothing) {
  TempDir scratch;
  const std::string disk = scratch.path() + "/disk";
  loss.Restore(position, random, disk, syncs_nothing);
  const auto store = Store::Open({.state_dir = disk + "/state"});
  if (!store.ok()) return store.status().ToString();
  if ((*store)->Await([](const Database& database) { return database.Sums(); }) != PageSums::kAll) {
    return "there are pages without checksums";
  }
  std::map<int, uint64_t> durable;
  for (const Acknowledged& ack : acknowledged) {
    if (ack.position <= position) durable[ack.job] = std::max(durable[ack.job], ack.sequence);
  }
  for (int job = 1; job <= kJobs; ++job) {
    const auto page =
        (*store)->Await([&](const Database& database) { return database.ReadEvents(TestId(job), 0, 1'000'000); });
    if (absl::IsNotFound(page.status()) && durable[job] == 0) continue;
    if (!page.ok()) return absl::StrCat("job ", job, ": ", page.status().ToString());
    if (page->last_sequence < durable[job]) return absl::StrCat("job ", job, ": event ", durable[job], " is gone");
    for (size_t i = 0; i < page->events.size(); ++i) {
      if (page->events[i].sequence() != i + 1) return absl::StrCat("job ", job, ": a gap at ", i + 1);
    }
    if (page->events.size() != page->last_sequence) return absl::StrCat("job ", job, ": its last event is not there");
  }
  return "";
}

class StorePowerLossTest : public testing::Test {
 protected:
  StorePowerLossTest() : loss_(dir_.path()) {
    Workload workload(dir_.path() + "/state", loss_);
    workload.Run();
    acknowledged_ = workload.acknowledged();
    end_ = loss_.position();
  }

  TempDir dir_;
  PowerLoss loss_;
  std::vector<Acknowledged> acknowledged_;
  size_t end_ = 0;
  std::mt19937 random_{11};
};

TEST_F(StorePowerLossTest, WhatWasAcknowledgedSurvives) {
  ASSERT_GT(acknowledged_.size(), 150u);
  ASSERT_GT(end_, 300u) << (kInMemory ? "in memory" : "on disk");
  for (int i = 0; i < 150; ++i) {
    const size_t position = random_() % (end_ + 1);
    ASSERT_EQ(WhatIsLost(loss_, position, acknowledged_, random_, false), "")
        << "after call " << position << " of " << end_;
  }
  // The moment at which an acknowledgement goes out.
  for (size_t i = 0; i < acknowledged_.size(); i += 4) {
    ASSERT_EQ(WhatIsLost(loss_, acknowledged_[i].position, acknowledged_, random_, false), "") << i;
  }
}

TEST_F(StorePowerLossTest, WithoutSyncsMuchIsLost) {
  int lost = 0;
  for (int i = 0; i < 20; ++i) {
    const size_t position = end_ / 2 + random_() % (end_ / 2);
    lost += WhatIsLost(loss_, position, acknowledged_, random_, true).empty() ? 0 : 1;
  }
  EXPECT_GT(lost, 10);
}

}  // namespace
}  // namespace ampd
