#include "server/scheduling/preemption.h"

#include <gmock/gmock.h>

#include "tests/unit/server/scheduling/pick_world.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreemptionTest : public ::testing::Test {
 protected:
  static RunningJob Victim(PickWorld& world, const std::string& id, std::vector<int> devices, int priority,
                           absl::Duration since) {
    RunningJob job = world.Running(id, std::move(devices));
    job.preemptible = true;
    job.priority = priority;
    job.start = world.now - since;
    return job;
  }
  static QueuedJob Urgent(PickWorld& world, const std::string& id, int gpus = 1, int priority = 10) {
    QueuedJob job = world.Job(id, gpus);
    job.priority = priority;
    return job;
  }
};

TEST_F(PreemptionTest, TheLowestThenTheNewestStops) {
  PickWorld world({4});
  world.Run(Victim(world, "high", {0}, 5, absl::Minutes(10)));
  world.Run(Victim(world, "old", {1}, 1, absl::Minutes(30)));
  world.Run(Victim(world, "new", {2}, 1, absl::Minutes(20)));
  world.Run("firm", {3});
  world.Queue(Urgent(world, "one"));
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "new for one");
  EXPECT_EQ(world.Reason("one"), v1::Job::PREEMPTION);
  EXPECT_THAT(world.Info("one").message, HasSubstr("new stops for"));
  world.queue.Remove("one");
  world.Queue(Urgent(world, "three", 3));
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "new for three, old for three, high for three");
  world.queue.Remove("three");
  // All or nothing: the fourth device does not come.
  world.Queue(Urgent(world, "four", 4));
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "");
}

TEST_F(PreemptionTest, NobodyOfTheSamePriorityOrNotPreemptible) {
  PickWorld world({2});
  world.Run(Victim(world, "same", {0}, 10, absl::Minutes(30)));
  world.Run("firm", {1});
  world.Queue(Urgent(world, "a"));
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "");
  EXPECT_EQ(world.Reason("a"), v1::Job::RESOURCES);
}

TEST_F(PreemptionTest, NotBeforeItRanItsTime) {
  PickWorld world({1});
  world.Run(Victim(world, "v", {0}, 0, world.snapshot.policy.min_run - absl::Seconds(1)));
  world.Queue(Urgent(world, "a"));
  world.Decide();
  EXPECT_EQ(world.Stops(), "");
  world.now += absl::Seconds(1);
  world.Decide();
  EXPECT_EQ(world.Stops(), "v for a");
}

TEST_F(PreemptionTest, WhoIsTooYoungToStopIsNamed) {
  PickWorld world({2, 1});
  world.snapshot.policy.min_run = absl::Minutes(5);
  world.Run(Victim(world, "young", {0}, 0, absl::Minutes(4)));
  world.Run(Victim(world, "younger", {1}, 0, absl::Minutes(1)));
  world.Run("firm", {2});
  world.Queue(Urgent(world, "a"));
  world.Queue(Urgent(world, "gang", 2));
  QueuedJob low = world.Job("low");
  world.Queue(low);
  world.Decide();
  const std::string both =
      "; young, younger, of lower priority, may be stopped once they have run 300 s (preemption_min_run_seconds)";
  EXPECT_EQ(world.Info("a").message, absl::StrCat("0 of 1 device free: of 3 that it could use 3 are held", both));
  EXPECT_EQ(world.Info("gang").message, absl::StrCat("0 of 2 devices free: of 3 that it could use 3 are held", both));
  EXPECT_EQ(world.Info("low").message, "0 of 1 device free: of 3 that it could use 3 are held");
  // As time goes by the text stays, until somebody stops.
  const std::string before = world.Info("a").message;
  world.now += absl::Seconds(30);
  world.Decide();
  EXPECT_EQ(world.Info("a").message, before);
  // Of a gang one is enough to keep the others' devices from it; and a job may be one that cannot stop in time.
  world.snapshot.running[0].preemptible = false;
  world.Decide();
  EXPECT_THAT(world.Info("a").message, HasSubstr("; younger, of lower priority, may be stopped once it has run 300 s"));
  EXPECT_EQ(world.Info("gang").message, "0 of 2 devices free: of 3 that it could use 3 are held");
  world.snapshot.running[1].checkpoint_time = absl::Hours(1);
  world.Decide();
  EXPECT_EQ(world.Info("a").message, "0 of 1 device free: of 3 that it could use 3 are held");
}

TEST_F(PreemptionTest, NotWhereItsCheckpointWouldNotFinish) {
  PickWorld world({1});
  RunningJob victim = Victim(world, "v", {0}, 0, absl::Hours(1));
  victim.checkpoint_time = world.snapshot.policy.stop_grace / 1.5 + absl::Seconds(1);
  world.Run(victim);
  world.Queue(Urgent(world, "a"));
  world.Decide();
  EXPECT_EQ(world.Stops(), "");
  world.snapshot.running[0].checkpoint_time = world.snapshot.policy.stop_grace / 1.5 - absl::Seconds(1);
  world.Decide();
  EXPECT_EQ(world.Stops(), "v for a");
}

TEST_F(PreemptionTest, NobodyIsAskedTwiceAndNobodyElseTakesTheDevice) {
  PickWorld world({2});
  RunningJob victim = Victim(world, "v", {0}, 0, absl::Hours(1));
  victim.stopping = true;
  victim.stops_for = "gang";
  world.Run(victim);
  // The other victim is gone: d1 is free, and d0 comes.
  world.Queue(Urgent(world, "gang", 2));
  QueuedJob again = world.Job("again");
  again.requirement.preemptible = true;
  world.Queue(again);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "");
  EXPECT_EQ(world.Reason("gang"), v1::Job::PREEMPTION);
}

TEST_F(PreemptionTest, WhoOvertookSeveralStopsForEach) {
  PickWorld world({3});
  world.Run("a", {0, 1});
  // One class, another user of it, another class.
  world.Queue("h1", 2);
  world.Queue("h2", 2);
  world.Queue("h3", 3);
  QueuedJob bobs = world.Job("h4", 2);
  bobs.user = "bob";
  world.Queue(bobs);
  QueuedJob passes = world.Job("c");
  passes.requirement.preemptible = true;
  world.Queue(passes);
  world.Queue("behind", 2);
  world.snapshot.usage = {{"ada", 0}, {"bob", 0}};
  EXPECT_EQ(world.Starts(), "c@d2*");
  EXPECT_THAT(world.decision.start[0].overtook, ElementsAre("h1", "h2", "h3", "h4"));
  world.queue.Remove("c");
  RunningJob running = Victim(world, "c", {2}, 0, absl::Seconds(1));
  running.overtook = world.decision.start[0].overtook;
  world.snapshot.running = {running};
  EXPECT_EQ(world.Starts(), "h1@d0+d1");
  world.queue.Remove("h1");
  world.queue.Remove("h2");
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "c for h3");
}

TEST_F(PreemptionTest, OnlyThoseCountAsOvertakenThatCameBeforeAndWaitForTheDevice) {
  PickWorld world({3});
  world.snapshot.policy.max_running_devices_per_user = 3;
  world.Run("a", {0, 1});
  QueuedJob elsewhere = world.Job("elsewhere");
  elsewhere.requirement.usable = PickWorld::Only(3, {0, 1});
  world.Queue(elsewhere);
  const auto add = [&](const std::string& id, const std::string& user, int gpus) {
    QueuedJob job = world.Job(id, gpus);
    job.user = user;
    world.Queue(job);
  };
  // Over the quota; before the one that starts, but of a user who had more; and the two that wait before it.
  add("quota", "ada", 2);
  add("had-more", "eve", 2);
  add("h1", "bob", 2);
  add("h2", "bob", 2);
  QueuedJob passes = world.Job("c");
  passes.user = "bob";
  passes.requirement.preemptible = true;
  world.Queue(passes);
  add("behind", "bob", 2);
  world.snapshot.usage = {{"ada", 0}, {"bob", 100}, {"eve", 200}};
  EXPECT_EQ(world.Starts(), "c@d2*");
  EXPECT_THAT(world.decision.start[0].overtook, ElementsAre("h1", "h2"));
}

TEST_F(PreemptionTest, WhatStartsInARoundPutsNobodyBehindWhoCameBefore) {
  PickWorld world({4});
  world.Run("a", {0});
  world.Queue("head", 4);
  // Each start adds a minute to its user's usage; the last comes after what its user submitted before it, not after
  // what came later.
  for (const char* id : {"c1", "c2", "c3"}) {
    QueuedJob passes = world.Job(id);
    passes.requirement.preemptible = true;
    world.Queue(passes);
  }
  world.Queue("behind", 4);
  EXPECT_EQ(world.Starts(), "c1@d1*, c2@d2*, c3@d3*");
  for (const Assignment& start : world.decision.start) EXPECT_THAT(start.overtook, ElementsAre("head"));
}

TEST_F(PreemptionTest, TheFirstOfALongLineAreRememberedAsOvertaken) {
  PickWorld world({2});
  world.Run("a", {0});
  for (int i = 0; i < 100; ++i) world.Queue(absl::StrCat("h", i), 2);
  QueuedJob passes = world.Job("c");
  passes.requirement.preemptible = true;
  world.Queue(passes);
  EXPECT_EQ(world.Starts(), "c@d1*");
  const std::vector<std::string>& overtook = world.decision.start[0].overtook;
  ASSERT_EQ(overtook.size(), 32u);
  EXPECT_EQ(overtook.front(), "h0");
  EXPECT_EQ(overtook.back(), "h31");
}

TEST_F(PreemptionTest, WhatIsPromisedToOneIsKeptForTheNextAfterIt) {
  PickWorld world({2});
  world.Run(Victim(world, "low", {0}, 0, absl::Hours(1)));
  QueuedJob pinned = Urgent(world, "pinned");
  pinned.requirement.usable = PickWorld::Only(2, {0});
  pinned.requirement.max_hold = absl::Seconds(1024);
  // It waits for d0, and takes d1 with it; who is not sure to be gone by then must not slip in.
  world.Queue("gang", 2);
  world.Queue(pinned);
  QueuedJob late = world.Job("late");
  world.Queue(late);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "low for pinned");
  EXPECT_EQ(world.Reason("late"), v1::Job::PRIORITY);
  EXPECT_EQ(world.Info("late").message, "what is free is kept for gang, which is before it");
  // The gang has them a grace and the longest time of the urgent job from now.
  late.requirement.max_hold = absl::Seconds(1280);
  world.Queue(late);
  EXPECT_EQ(world.Starts(), "");
  late.requirement.max_hold = absl::Seconds(1024);
  world.Queue(late);
  EXPECT_EQ(world.Starts(), "late@d1*");
}

TEST_F(PreemptionTest, WhereWhatIsPromisedHasNoEndOnlyWhoCanStopPasses) {
  PickWorld world({2});
  world.Run(Victim(world, "low", {0}, 0, absl::Hours(1)));
  QueuedJob pinned = Urgent(world, "pinned");
  pinned.requirement.usable = PickWorld::Only(2, {0});
  world.Queue(pinned);
  world.Queue("gang", 2);
  QueuedJob late = world.Job("late");
  late.requirement.max_hold = absl::Seconds(1);
  world.Queue(late);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "low for pinned");
  late.requirement.preemptible = true;
  world.Queue(late);
  EXPECT_EQ(world.Starts(), "late@d1*");
}

TEST_F(PreemptionTest, WhatIsPromisedOnASharedDeviceIsKeptForTheNextAfterIt) {
  PickWorld world({2});
  for (const char* id : {"s", "t"}) {
    RunningJob sharing = Victim(world, id, {0}, 0, absl::Hours(1));
    sharing.share = true;
    sharing.memory_bytes = kGiB;
    world.Run(sharing);
  }
  QueuedJob pinned = Urgent(world, "pinned");
  pinned.requirement.usable = PickWorld::Only(2, {0});
  world.Queue(pinned);
  world.Queue("gang", 2);
  QueuedJob small = world.Job("small");
  small.requirement.share = true;
  small.requirement.memory_bytes = kGiB;
  world.Queue(small);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "s for pinned, t for pinned");
  small.requirement.preemptible = true;
  world.Queue(small);
  EXPECT_EQ(world.Starts(), "small@d1*");
}

TEST_F(PreemptionTest, NoMoreThanNeeded) {
  PickWorld world({4});
  // The newest holds one device; the gang alone is enough.
  world.Run(Victim(world, "small", {0}, 0, absl::Minutes(10)));
  world.Run(Victim(world, "gang", {1, 2}, 0, absl::Minutes(20)));
  world.Run("firm", {3});
  world.Queue(Urgent(world, "pair", 2));
  world.Decide();
  EXPECT_EQ(world.Stops(), "gang for pair");
}

TEST_F(PreemptionTest, TwoUrgentJobsGetADeviceEach) {
  PickWorld world({2});
  world.Run(Victim(world, "v", {0}, 0, absl::Minutes(10)));
  world.Run(Victim(world, "w", {1}, 0, absl::Minutes(20)));
  world.Queue(Urgent(world, "a", 1, 10));
  world.Queue(Urgent(world, "b", 1, 9));
  world.Decide();
  EXPECT_EQ(world.Stops(), "v for a, w for b");
}

TEST_F(PreemptionTest, WhoOvertookTheHeadStopsForIt) {
  PickWorld world({2});
  RunningJob overtaker = Victim(world, "o", {0}, 0, absl::Seconds(1));
  overtaker.overtook = {"gang"};
  world.Run(overtaker);
  world.Run("firm", {1});
  world.Queue("gang", 2);
  world.Decide();
  // It would not help yet.
  EXPECT_EQ(world.Stops(), "");
  world.snapshot.running.pop_back();
  world.Decide();
  EXPECT_EQ(world.Stops(), "o for gang");
  // It stops for nobody else.
  world.snapshot.running.front().overtook = {"another"};
  world.Decide();
  EXPECT_EQ(world.Stops(), "");
}

}  // namespace
}  // namespace ampd
