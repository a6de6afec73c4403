#include "tests/unit/server/scheduling/simulator.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/scheduling/pick_world.h"

namespace ampd {
namespace {

// 100,000 jobs of all kinds over 64 devices. What holds in every round is checked there (simulator.cc).
TEST(SimulatorTest, AllJobsEndAndNoRuleIsBroken) {
  Simulator simulator({});
  EXPECT_EQ(simulator.Run(), "");
  const Simulator::Figures& figures = simulator.figures();
  printf(
      "%ld rounds over %s: %ld starts, %ld of gangs, %ld shared, %ld too large for some, %ld overtook, %ld stops, %ld "
      "kept part of a quota, %ld passed such a one, %ld rounds with a head that waits, longest queue %zu, longest "
      "urgent wait %s, busy %.3f\n",
      figures.rounds, absl::FormatDuration(figures.simulated).c_str(), figures.starts, figures.gangs, figures.shared,
      figures.picky, figures.overtakers, figures.stops, figures.kept, figures.passed, figures.heads,
      figures.longest_queue, absl::FormatDuration(figures.longest_urgent_wait).c_str(), figures.busy);
  // Nothing of it went untried.
  EXPECT_GT(figures.gangs, 10'000);
  EXPECT_GT(figures.shared, 10'000);
  EXPECT_GT(figures.picky, 1'000);
  EXPECT_GT(figures.overtakers, 1'000);
  EXPECT_GT(figures.stops, 1'000);
  EXPECT_GT(figures.kept, 100);
  EXPECT_GT(figures.passed, 10);
  EXPECT_GT(figures.heads, 10'000);
  EXPECT_GT(figures.longest_queue, 1'000u);
  // No starvation: ten percent of the jobs come first, so that only what runs already, for two hours at most, and each
  // other is before them.
  EXPECT_LT(figures.longest_urgent_wait, absl::Hours(6));
}

TEST(SimulatorTest, OtherSeeds) {
  for (uint64_t seed = 2; seed < 6; ++seed) {
    Simulator simulator({.jobs = 3'000, .groups = 1, .seed = seed, .at_once = 0.5});
    EXPECT_EQ(simulator.Run(), "") << "seed " << seed;
  }
}

// The largest gangs are as large as a user's quota.
TEST(SimulatorTest, OfASmallQuotaGangsHaveTheirs) {
  for (uint64_t seed = 6; seed < 10; ++seed) {
    Simulator simulator({.jobs = 3'000, .groups = 1, .seed = seed, .at_once = 0.5, .quota = 0.5});
    EXPECT_EQ(simulator.Run(), "") << "seed " << seed;
    EXPECT_GT(simulator.figures().kept, 100);
    EXPECT_GT(simulator.figures().passed, 10);
  }
}

// A round of a queue of 100,000 jobs costs what its classes do.
TEST(SimulatorTest, ALongQueueIsNoLongRound) {
  JobQueue queue;
  SchedulingSnapshot snapshot;
  snapshot.queue = &queue;
  for (int i = 0; i < 64; ++i) {
    snapshot.devices.push_back({.id = absl::StrCat("d", i), .group = i / 8, .share_bytes = 1});
    RunningJob running;
    running.id = absl::StrCat("r", i);
    running.devices = {i};
    snapshot.running.push_back(running);
  }
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  for (int i = 0; i < 100'000; ++i) {
    QueuedJob job;
    job.id = absl::StrCat("j", i);
    job.submit_sequence = i;
    job.user = absl::StrCat("u", i % 10);
    job.priority = i % 5;
    job.requirement.gpus = 1 + i % 4;
    job.requirement.usable.assign(64, true);
    queue.Put(std::move(job), now);
  }
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kRounds = 1000;
  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(Pick(snapshot, now).start.empty());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf("%.1f microseconds a round\n", 1e6 * seconds / kRounds);
  size_t lines = 0;
  for (const QueueClass& cls : queue.classes()) lines += cls.lines.size();
  EXPECT_EQ(queue.size(), 100'000u);
  EXPECT_LE(lines, 200u);
}

// 999 priorities, each of ten lengths: lines of one job each, that a quota keeps waiting. The round comes to each of
// them.
TEST(SimulatorTest, LinesOverTheQuotaAreLookedAtOnce) {
  constexpr int kPriorities = 999, kLengths = 10;
  PickWorld world({4});
  world.snapshot.policy.max_running_devices_per_user = 1;
  world.Run("r", {0});
  for (int i = 0; i < kPriorities * kLengths; ++i) {
    QueuedJob job = world.Job(absl::StrCat("j", i));
    job.priority = i % kPriorities;
    job.requirement.max_hold = absl::Minutes(1 << i / kPriorities);
    world.Queue(std::move(job));
  }
  QueuedJob other = world.Job("of bob");
  other.user = "bob";
  other.priority = -1;
  world.Queue(std::move(other));
  EXPECT_EQ(world.Starts(), "of bob@d1");
  EXPECT_EQ(world.decision.line_blocks.size(), size_t{kPriorities * kLengths});
  EXPECT_EQ(world.Reason("j0"), v1::Job::QUOTA);
  EXPECT_EQ(world.decision.lines_looked_at, kPriorities * kLengths + 1);
}

// Sweeps of one priority and length: lines of one class, between which usage and submit sequence decide.
TEST(SimulatorTest, SweepsOverTheQuotaAreLookedAtOnce) {
  constexpr int kSweeps = 3000;
  PickWorld world({4});
  world.snapshot.policy.max_running_devices_per_user = 2;
  world.Run("r", {0});
  for (int i = 0; i < 2 * kSweeps; ++i) {
    QueuedJob job = world.Job(absl::StrCat("j", i));
    job.sweep_id = absl::StrCat("s", i % kSweeps);
    job.sweep_max_parallel = 1;
    world.Queue(std::move(job));
  }
  EXPECT_EQ(world.Starts(), "j0@d1");
  EXPECT_EQ(world.decision.line_blocks.size(), size_t{kSweeps});
  // The start makes all lines of its user come later.
  EXPECT_LE(world.decision.lines_looked_at, 2 * kSweeps);
}

}  // namespace
}  // namespace ampd
