#include "server/scheduling/pick.h"

#include <gmock/gmock.h>

#include "tests/unit/server/scheduling/pick_world.h"

namespace ampd {
namespace {

using ::testing::HasSubstr;

TEST(PickOrder, PriorityThenUsageThenSequence) {
  PickWorld world({1});
  const auto add = [&](const std::string& id, int priority, const std::string& user) {
    QueuedJob job = world.Job(id);
    job.priority = priority;
    job.user = user;
    world.Queue(job);
  };
  add("late-low", 0, "bob");
  add("ada-1", 5, "ada");
  add("ada-2", 5, "ada");
  add("eve-1", 5, "eve");
  add("new-user", 5, "zoe");
  add("low", -3, "zoe");
  world.snapshot.usage = {{"ada", 100}, {"eve", 50}};
  EXPECT_EQ(world.Starts(), "new-user@d0");
  world.queue.Remove("new-user");
  // Once it has started, its user has had a minute; the others' usage is higher still.
  const std::vector<std::string> order = {"eve-1", "ada-1", "ada-2", "late-low", "low"};
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(world.Info(order[i]).position, i + 1) << order[i];
}

TEST(PickOrder, DevicesThatBecomeFreeTogetherAreShared) {
  PickWorld world({4});
  for (int i = 0; i < 4; ++i) world.Queue(absl::StrCat("a", i));
  for (int i = 0; i < 4; ++i) {
    QueuedJob job = world.Job(absl::StrCat("b", i));
    job.user = "bob";
    world.Queue(job);
  }
  world.snapshot.usage = {{"ada", 0}, {"bob", 30}};
  EXPECT_EQ(world.Starts(), "a0@d0, b0@d1, a1@d2, b1@d3");
}

TEST(PickOrder, DevicesInOrderAndOnlyWhatTheyCanUse) {
  PickWorld world({1, 1});
  QueuedJob picky = world.Job("a");
  picky.requirement.usable = PickWorld::Only(2, {1});
  world.Queue(picky);
  world.Queue("b");
  EXPECT_EQ(world.Starts(), "a@d1, b@d0");
}

TEST(PickOrder, NoneHoldsUpAnotherOnDevicesThatItCannotUse) {
  PickWorld world({1, 1});
  world.Run("r", {1});
  QueuedJob picky = world.Job("a");
  picky.requirement.usable = PickWorld::Only(2, {1});
  world.Queue(picky);
  world.Queue("b");
  world.Queue("c");
  EXPECT_EQ(world.Starts(), "b@d0");
  EXPECT_EQ(world.Reason("a"), v1::Job::RESOURCES);
  world.queue.Remove("b");
  EXPECT_EQ(world.Info("c").position, 2);
}

TEST(PickOrder, DrainingStartsNothing) {
  PickWorld world({1});
  world.Queue("a");
  world.snapshot.draining = true;
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("a"), v1::Job::DRAINING);
  EXPECT_TRUE(EstimateStarts(world.snapshot, world.decision, world.now, 10).empty());
}

TEST(PickOrder, WithoutRoomNothingStartsAndNobodyStops) {
  PickWorld world({1});
  world.snapshot.no_space = "7 bytes left";
  world.Queue("a");
  QueuedJob later = world.Job("b");
  later.waits_for = {"x"};
  world.Queue(later);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_TRUE(world.decision.preempt.empty());
  EXPECT_EQ(world.Reason("a"), v1::Job::RESOURCES);
  EXPECT_EQ(world.Info("a").message, "7 bytes left");
  EXPECT_EQ(world.Reason("b"), v1::Job::DEPENDENCY) << "that comes first";
  EXPECT_TRUE(EstimateStarts(world.snapshot, world.decision, world.now, 10).empty());
  const auto reasons = CountReasons(world.snapshot, world.decision);
  EXPECT_EQ(reasons.at(v1::Job::RESOURCES), 1);
  EXPECT_EQ(reasons.at(v1::Job::DEPENDENCY), 1);
  world.snapshot.no_space.clear();
  EXPECT_EQ(world.Starts(), "a@d0");
}

TEST(PickOrder, HeldBackDevicesGiveTheReason) {
  PickWorld world({1, 1});
  world.snapshot.devices[0].held_back = v1::Job::FOREIGN_PROCESS;
  world.snapshot.devices[0].held_back_message = "process 7 computes on it";
  world.snapshot.devices[1].held_back = v1::Job::DEVICE_UNHEALTHY;
  QueuedJob picky = world.Job("b");
  picky.requirement.usable = PickWorld::Only(2, {1});
  world.Queue("a");
  world.Queue(picky);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("a"), v1::Job::FOREIGN_PROCESS);
  EXPECT_EQ(world.Info("a").message, "d0: process 7 computes on it");
  EXPECT_EQ(world.Reason("b"), v1::Job::DEVICE_UNHEALTHY);
}

TEST(PickGangs, AllOrNothingOfOneGroup) {
  PickWorld world({3, 2});
  world.Run("r", {0});
  world.Queue("gang", 3);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_THAT(world.Info("gang").message, HasSubstr("4 devices that it could use are free, but not 3 of one model"));
  world.Queue("pair", 2);
  world.snapshot.running.clear();
  EXPECT_EQ(world.Starts(), "gang@d0+d1+d2, pair@d3+d4");
}

TEST(PickGangs, TheHeadKeepsWhatItWaitsFor) {
  PickWorld world({2});
  world.Run("r", {0});
  world.Queue("gang", 2);
  world.Queue("single");
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("gang"), v1::Job::RESOURCES);
  EXPECT_EQ(world.Info("gang").message, "1 of 2 devices free: of 2 that it could use 1 is held");
  EXPECT_EQ(world.Reason("single"), v1::Job::PRIORITY);
  EXPECT_THAT(world.Info("single").message, HasSubstr("kept for gang"));
}

struct BackfillCase {
  const char* name;
  // Of the running job, and of the one that would overtake; seconds, 0: none.
  int running;
  int overtaker;
  bool preemptible;
  bool starts;
};

class PickBackfill : public ::testing::TestWithParam<BackfillCase> {};

TEST_P(PickBackfill, NeverDelaysTheHead) {
  PickWorld world({2});
  RunningJob running = world.Running("r", {0});
  if (GetParam().running > 0) running.end = world.now + absl::Seconds(GetParam().running);
  world.Run(running);
  world.Queue("gang", 2);
  QueuedJob small = world.Job("small");
  small.requirement.preemptible = GetParam().preemptible;
  if (GetParam().overtaker > 0) small.requirement.max_hold = absl::Seconds(GetParam().overtaker);
  world.Queue(small);
  EXPECT_EQ(world.Starts(), GetParam().starts ? "small@d1*" : "");
}

INSTANTIATE_TEST_SUITE_P(Table, PickBackfill,
                         ::testing::Values(BackfillCase{"Fits", 1000, 800, false, true},
                                           BackfillCase{"TooLong", 1000, 1100, false, false},
                                           BackfillCase{"Unbounded", 1000, 0, false, false},
                                           BackfillCase{"UnboundedButPreemptible", 1000, 0, true, true},
                                           BackfillCase{"TheHeadsTimeIsNotKnown", 0, 1, false, false},
                                           BackfillCase{"NotKnownButPreemptible", 0, 0, true, true}),
                         [](const auto& info) { return info.param.name; });

TEST(PickBackfill, OnlyUpToTheFirstReservation) {
  PickWorld world({3});
  RunningJob soon = world.Running("soon", {0}), later = world.Running("later", {1});
  soon.end = world.now + absl::Seconds(100);
  later.end = world.now + absl::Seconds(5000);
  world.Run(soon);
  world.Run(later);
  // It has d0 and d2 after 100 seconds.
  world.Queue("gang", 2);
  QueuedJob small = world.Job("small");
  small.requirement.max_hold = absl::Seconds(200);
  world.Queue(small);
  EXPECT_EQ(world.Starts(), "");
  const auto starts = EstimateStarts(world.snapshot, world.decision, world.now, 10);
  EXPECT_EQ(starts.at("gang"), world.now + absl::Seconds(100));
  EXPECT_EQ(starts.at("small"), world.now + absl::Seconds(5000));
}

TEST(PickBackfill, WhatCannotHelpTheHeadIsNotKeptForIt) {
  PickWorld world({2});
  world.snapshot.devices[0].held_back = v1::Job::GPU_DRAINED;
  world.snapshot.devices[0].held_back_message = "drained";
  world.Queue("gang", 2);
  world.Queue("single");
  EXPECT_EQ(world.Starts(), "single@d1");
  EXPECT_EQ(world.Reason("gang"), v1::Job::GPU_DRAINED);
}

QueuedJob Sharing(PickWorld& world, const std::string& id, int64_t gib) {
  QueuedJob job = world.Job(id);
  job.requirement.share = true;
  job.requirement.memory_bytes = gib * kGiB;
  return job;
}

TEST(PickSharing, WhereThePlansFitTogether) {
  PickWorld world({2});
  for (const auto& [id, gib] : {std::pair{"a", 8}, {"b", 8}, {"c", 8}, {"d", 12}}) world.Queue(Sharing(world, id, gib));
  EXPECT_EQ(world.Starts(), "a@d0, b@d0, c@d1");
  EXPECT_EQ(world.Reason("d"), v1::Job::RESOURCES);
}

TEST(PickSharing, ExclusiveJobsShareWithNobody) {
  PickWorld world({2});
  world.Run("r", {0});
  RunningJob sharing = world.Running("s", {1});
  sharing.share = true;
  sharing.memory_bytes = kGiB;
  world.Run(sharing);
  world.Queue("exclusive");
  QueuedJob small = Sharing(world, "small", 1);
  small.priority = 1;
  world.Queue(small);
  EXPECT_EQ(world.Starts(), "small@d1");
  world.snapshot.policy.max_sharing = 1;
  EXPECT_EQ(world.Starts(), "");
}

TEST(PickSharing, TooLargeForAnyDevice) {
  PickWorld world({1});
  world.Queue(Sharing(world, "a", 17));
  world.Queue("b");
  EXPECT_EQ(world.Starts(), "b@d0");
  EXPECT_EQ(world.Reason("a"), v1::Job::GPU_MEMORY);
}

QueuedJob Planning(PickWorld& world, const std::string& id, int64_t gib, int gpus = 1) {
  QueuedJob job = world.Job(id, gpus);
  job.requirement.memory_bytes = gib * kGiB;
  MarkTooSmall(world.snapshot.devices, &job.requirement);
  return job;
}

struct MemoryCase {
  const char* name;
  int64_t gib;
  // -1: none.
  int held;
  const char* starts;
  const char* message;
};

class PickMemory : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(PickMemory, NoJobStartsWhereItsPlanDoesNotFit) {
  PickWorld world({1, 1});
  world.snapshot.devices[0].memory_bytes = 24 * kGiB;
  world.snapshot.devices[1].memory_bytes = 80 * kGiB;
  if (GetParam().held >= 0) world.Run("r", {GetParam().held});
  world.Queue(Planning(world, "a", GetParam().gib));
  EXPECT_EQ(world.Starts(), GetParam().starts);
  if (*GetParam().starts != '\0') return;
  EXPECT_EQ(world.Reason("a"), v1::Job::GPU_MEMORY);
  EXPECT_EQ(world.Info("a").message, GetParam().message);
  EXPECT_EQ(CountReasons(world.snapshot, world.decision).at(v1::Job::GPU_MEMORY), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Table, PickMemory,
    ::testing::Values(MemoryCase{"NotKnown", 0, -1, "a@d0", ""}, MemoryCase{"FitsBoth", 24, -1, "a@d0", ""},
                      MemoryCase{"FitsTheLarger", 25, -1, "a@d1", ""},
                      MemoryCase{"TheLargerIsHeld", 40, 1, "",
                                 "d0 is free, but has 25769803776 bytes of memory; by its plan it takes 42949672960"},
                      MemoryCase{"FitsTheLargerIfThePlanIsHigh", 100, -1, "a@d1", ""},
                      MemoryCase{"FitsNone", 101, -1, "",
                                 "it takes 108447924224 bytes of a device's memory by its plan; of 2 devices that "
                                 "could run it 0 have as much, and 1 is needed"}),
    [](const auto& info) { return info.param.name; });

TEST(PickMemoryTest, OfADeviceWhoseMemoryIsNotKnownItIsTried) {
  PickWorld world({1});
  world.Queue(Planning(world, "a", 1000));
  EXPECT_EQ(world.Starts(), "a@d0");
}

TEST(PickMemoryTest, AGangNeedsItOnEachOfItsDevices) {
  PickWorld world({2, 2});
  for (size_t i = 0; i < 4; ++i) world.snapshot.devices[i].memory_bytes = (i < 2 ? 24 : 80) * kGiB;
  world.Queue(Planning(world, "a", 40, 2));
  world.Queue(Planning(world, "b", 10, 2));
  EXPECT_EQ(world.Starts(), "a@d2+d3, b@d0+d1");
  world.queue.Remove("a");
  world.queue.Remove("b");
  world.Queue(Planning(world, "c", 40, 3));
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("c"), v1::Job::GPU_MEMORY);
}

TEST(PickMemoryTest, WhatIsTooSmallIsNotKeptNorMadeFree) {
  PickWorld world({1, 1});
  world.snapshot.devices[0].memory_bytes = 24 * kGiB;
  world.snapshot.devices[1].memory_bytes = 80 * kGiB;
  RunningJob firm = world.Running("firm", {1});
  firm.end = world.now + absl::Seconds(100);
  world.Run(firm);
  world.Queue(Planning(world, "large", 40));
  world.Queue(Planning(world, "small", 10));
  EXPECT_EQ(world.Starts(), "small@d0");
  EXPECT_EQ(EstimateStarts(world.snapshot, world.decision, world.now, 10).at("large"), firm.end);
  // Nobody stops there for it, and nobody else's drain is why it waits.
  world.queue.Remove("small");
  RunningJob victim = world.Running("victim", {0});
  victim.preemptible = true;
  victim.priority = -1;
  world.Run(victim);
  world.Decide();
  EXPECT_EQ(world.Stops(), "");
  EXPECT_EQ(world.Reason("large"), v1::Job::RESOURCES);
  EXPECT_EQ(world.Info("large").message, "0 of 1 device free: of 1 that it could use 1 is held");
  world.snapshot.running.pop_back();
  world.snapshot.devices[0].held_back = v1::Job::GPU_DRAINED;
  world.Decide();
  EXPECT_EQ(world.Reason("large"), v1::Job::RESOURCES);
}

TEST(PickMemoryTest, ThoseThatFitNowhereTakeNoReservations) {
  PickWorld world({2});
  for (DeviceState& device : world.snapshot.devices) device.memory_bytes = 24 * kGiB;
  world.Run("r", {0});
  // A class each, before all others.
  for (int i = 0; i < 20; ++i) {
    QueuedJob job = Planning(world, absl::StrCat("large", i), 40);
    job.requirement.max_hold = absl::Seconds(1 << i);
    world.Queue(job);
  }
  world.Queue("gang", 2);
  world.Queue("small");
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("large19"), v1::Job::GPU_MEMORY);
  EXPECT_EQ(world.Info("small").message, "what is free is kept for gang, which is before it");
}

TEST(PickMemoryTest, WhoSharesTakesWhatOthersLeave) {
  PickWorld world({1});
  world.snapshot.devices[0].memory_bytes = kGiB;
  QueuedJob job = Sharing(world, "a", 8);
  MarkTooSmall(world.snapshot.devices, &job.requirement);
  world.Queue(job);
  EXPECT_EQ(world.Starts(), "a@d0") << "share_bytes decides";
}

TEST(PickHeld, NotBeforeAndDependencies) {
  PickWorld world({1});
  QueuedJob timed = world.Job("timed"), dependent = world.Job("dependent");
  timed.not_before = world.now + absl::Seconds(10);
  dependent.waits_for = {"x", "y"};
  world.Queue(timed);
  world.Queue(dependent);
  world.Queue("free");
  EXPECT_EQ(world.Starts(), "free@d0");
  EXPECT_EQ(world.Reason("timed"), v1::Job::NOT_BEFORE);
  EXPECT_EQ(world.Info("timed").message, "not before 1970-01-12 13:46:50Z");
  EXPECT_EQ(world.Reason("dependent"), v1::Job::DEPENDENCY);
  EXPECT_EQ(world.Info("dependent").message, "waits for x and 1 more to end");
  EXPECT_EQ(world.Info("timed").position, 2);
  EXPECT_EQ(world.Info("dependent").position, 3);
  EXPECT_EQ(CountReasons(world.snapshot, world.decision).at(v1::Job::DEPENDENCY), 1);
  world.queue.Remove("free");

  dependent.waits_for = {"y"};
  world.Queue(dependent);
  EXPECT_EQ(world.Starts(), "");
  dependent.waits_for = {};
  world.Queue(dependent);
  EXPECT_EQ(world.Starts(), "dependent@d0");
  world.queue.Remove("dependent");
  EXPECT_EQ(world.queue.NextRelease(), timed.not_before);
  world.queue.Release(timed.not_before - absl::Nanoseconds(1));
  EXPECT_EQ(world.Starts(), "");
  world.queue.Release(timed.not_before);
  EXPECT_EQ(world.Starts(), "timed@d0");
  world.queue.Remove("timed");
  EXPECT_EQ(world.queue.size(), 0);
  EXPECT_EQ(world.queue.NextRelease(), absl::InfiniteFuture());
}

TEST(PickQuotas, KeepNothingFromOthers) {
  PickWorld world({4});
  world.snapshot.policy.max_running_devices_per_user = 2;
  world.Run("r", {0});
  world.Queue("pair", 2);
  QueuedJob other = world.Job("other");
  other.user = "bob";
  world.Queue(other);
  EXPECT_EQ(world.Starts(), "other@d1");
  EXPECT_EQ(world.Reason("pair"), v1::Job::QUOTA);
  EXPECT_EQ(world.Info("pair").message,
            "jobs of ada hold 1 of the 2 devices that a user may have (max_running_devices_per_user), and it needs 2");
  EXPECT_FALSE(EstimateStarts(world.snapshot, world.decision, world.now, 10).contains("pair"));
}

TEST(PickQuotas, AGangComesBeforeItsUsersSmallerJobs) {
  PickWorld world({2});
  world.snapshot.policy.max_running_devices_per_user = 2;
  world.Run("s0", {0});
  world.Run("s1", {1});
  for (int i = 2; i < 8; ++i) world.Queue(absl::StrCat("s", i));
  QueuedJob gang = world.Job("gang", 2);
  gang.priority = 100;
  world.Queue(gang);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("gang"), v1::Job::QUOTA);
  EXPECT_EQ(world.Reason("s2"), v1::Job::QUOTA);
  world.snapshot.running.pop_back();
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("s2"), v1::Job::QUOTA);
  EXPECT_EQ(world.Info("s2").message,
            "jobs of ada hold 1 of the 2 devices that a user may have (max_running_devices_per_user), and what is left "
            "is kept for gang, which is before it");
  EXPECT_FALSE(EstimateStarts(world.snapshot, world.decision, world.now, 10).contains("s2"));
  world.snapshot.running.clear();
  EXPECT_EQ(world.Starts(), "gang@d0+d1");
}

struct KeptCase {
  const char* name;
  // Of three devices ada may have two, and holds d0 for so many seconds (0: not known).
  int running;
  // Of "first", which is over her quota unless it is changed, and "small" behind it.
  void (*change)(PickWorld& world, QueuedJob& first, QueuedJob& small);
  const char* starts;
};

class PickKeptQuota : public ::testing::TestWithParam<KeptCase> {};

TEST_P(PickKeptQuota, WhatIsLeftIsForTheFirstThatWaits) {
  PickWorld world({3});
  world.snapshot.policy.max_running_devices_per_user = 2;
  RunningJob running = world.Running("r", {0});
  if (GetParam().running > 0) running.end = world.now + absl::Seconds(GetParam().running);
  world.Run(running);
  QueuedJob first = world.Job("first", 2), small = world.Job("small");
  GetParam().change(world, first, small);
  world.Queue(first);
  world.Queue(small);
  EXPECT_EQ(world.Starts(), GetParam().starts);
}

INSTANTIATE_TEST_SUITE_P(
    Table, PickKeptQuota,
    ::testing::Values(
        KeptCase{"OverQuota", 1000, [](PickWorld&, QueuedJob&, QueuedJob&) {}, ""},
        KeptCase{"SureToBeGone", 1000,
                 [](PickWorld&, QueuedJob&, QueuedJob& small) { small.requirement.max_hold = absl::Seconds(800); },
                 "small@d1"},
        KeptCase{"TooLong", 1000,
                 [](PickWorld&, QueuedJob&, QueuedJob& small) { small.requirement.max_hold = absl::Seconds(1100); },
                 ""},
        KeptCase{"TheFirstsTimeIsNotKnown", 0,
                 [](PickWorld&, QueuedJob&, QueuedJob& small) { small.requirement.max_hold = absl::Seconds(1); }, ""},
        // Nobody stops for a user's quota.
        KeptCase{"Preemptible", 1000,
                 [](PickWorld&, QueuedJob&, QueuedJob& small) { small.requirement.preemptible = true; }, ""},
        KeptCase{"OfHigherPriority", 1000, [](PickWorld&, QueuedJob&, QueuedJob& small) { small.priority = 1; },
                 "small@d1"},
        KeptCase{"OfAnother", 1000, [](PickWorld&, QueuedJob&, QueuedJob& small) { small.user = "bob"; }, "small@d1"},
        KeptCase{"TheFirstIsLargerThanTheQuota", 1000,
                 [](PickWorld&, QueuedJob& first, QueuedJob&) { first.requirement.gpus = 3; }, "small@d1"},
        KeptCase{"TheFirstIsNotPossible", 1000,
                 [](PickWorld& world, QueuedJob&, QueuedJob&) {
                   for (const size_t i : {1u, 2u}) world.snapshot.devices[i].held_back = v1::Job::GPU_DRAINED;
                   world.snapshot.running[0].devices = {1};
                 },
                 "small@d0"},
        KeptCase{"TheFirstIsOutOfLine", 1000, [](PickWorld&, QueuedJob& first, QueuedJob&) { first.waits_for = {"x"}; },
                 "small@d1"},
        KeptCase{
            "ItsTimeHasNotCome", 1000,
            [](PickWorld& world, QueuedJob& first, QueuedJob&) { first.not_before = world.now + absl::Seconds(1); },
            "small@d1"},
        KeptCase{"TheFirstsSweepIsFull", 1000,
                 [](PickWorld& world, QueuedJob& first, QueuedJob&) {
                   first.sweep_id = world.snapshot.running[0].sweep_id = "sweep";
                   first.sweep_max_parallel = 1;
                 },
                 "small@d1"},
        // Once d0 is free it would be over its quota else.
        KeptCase{"TheFirstWaitsForDevices", 1000,
                 [](PickWorld& world, QueuedJob& first, QueuedJob& small) {
                   world.snapshot.running[0].user = "bob";
                   first.requirement.usable = PickWorld::Only(3, {0, 1});
                   small.requirement.preemptible = true;
                 },
                 ""},
        KeptCase{"ThereIsRoomForBoth", 1000,
                 [](PickWorld& world, QueuedJob& first, QueuedJob& small) {
                   world.snapshot.policy.max_running_devices_per_user = 3;
                   world.snapshot.running[0].user = "bob";
                   first.requirement.usable = PickWorld::Only(3, {0, 1});
                   small.requirement.preemptible = true;
                 },
                 "small@d2"}),
    [](const auto& info) { return info.param.name; });

TEST(PickQuotas, WhoPassesMakesNoRoomForItself) {
  PickWorld world({3});
  world.snapshot.policy.max_running_devices_per_user = 2;
  RunningJob running = world.Running("r", {0}), victim = world.Running("victim", {1});
  running.end = world.now + absl::Seconds(1000);
  victim.user = "bob";
  victim.preemptible = true;
  victim.priority = -1;
  world.Run(running);
  world.Run(victim);
  world.snapshot.devices[2].held_back = v1::Job::GPU_DRAINED;
  world.Queue("pair", 2);
  QueuedJob small = world.Job("small");
  small.requirement.max_hold = absl::Seconds(800);
  world.Queue(small);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "") << "once the victim is gone it were too late to start";
  EXPECT_EQ(world.Reason("small"), v1::Job::QUOTA);
}

TEST(PickQuotas, NoMoreStopForAUserThanTheQuotaHasRoomFor) {
  PickWorld world({3});
  world.snapshot.policy.max_running_devices_per_user = 2;
  for (int i = 0; i < 3; ++i) {
    RunningJob victim = world.Running(absl::StrCat("v", i), {i});
    victim.user = "bob";
    victim.preemptible = true;
    world.Run(victim);
    QueuedJob urgent = world.Job(absl::StrCat("u", i));
    urgent.priority = 10;
    world.Queue(urgent);
  }
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "v0 for u0, v1 for u1");
  EXPECT_EQ(world.Reason("u2"), v1::Job::QUOTA);
  for (RunningJob& running : world.snapshot.running) running.end = world.now + absl::Seconds(100);
  world.Decide();
  const auto starts = EstimateStarts(world.snapshot, world.decision, world.now, 10);
  EXPECT_TRUE(starts.contains("u0") && starts.contains("u1"));
  EXPECT_FALSE(starts.contains("u2"));
}

TEST(PickQuotas, NoMoreStopForASweepThanItMayRun) {
  PickWorld world({4});
  for (int i = 0; i < 4; ++i) {
    RunningJob victim = world.Running(absl::StrCat("v", i), {i});
    victim.preemptible = true;
    world.Run(victim);
  }
  for (int i = 0; i < 3; ++i) {
    QueuedJob point = world.Job(absl::StrCat("s", i));
    point.priority = 10;
    point.sweep_id = "sweep";
    point.sweep_max_parallel = 2;
    // A class of its own.
    if (i == 1) point.requirement.usable = PickWorld::Only(4, {0, 1, 3});
    world.Queue(point);
  }
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Stops(), "v0 for s0, v1 for s1");
  EXPECT_EQ(world.Reason("s2"), v1::Job::QUOTA);
  EXPECT_EQ(world.Info("s2").message,
            "0 jobs of its sweep run, and 2 wait for others to stop, as many as max_parallel allows");
  // Nor in the rounds until they have stopped, and a device that comes free meanwhile is not for another point.
  for (RunningJob& running : world.snapshot.running) {
    if (running.id != "v0" && running.id != "v1") continue;
    running.stopping = true;
    running.stops_for = running.id == "v0" ? "s0" : "s1";
  }
  world.Decide();
  EXPECT_EQ(world.Stops(), "");
  EXPECT_EQ(world.Reason("s2"), v1::Job::QUOTA);
}

TEST(PickQuotas, AlsoBehindOthersOfTheClassTheQuotaIsTheReason) {
  PickWorld world({2});
  world.snapshot.policy.max_running_devices_per_user = 1;
  world.Run("r", {0});
  RunningJob others = world.Running("others", {1});
  others.user = "eve";
  world.Run(others);
  QueuedJob bobs = world.Job("bobs");
  bobs.user = "bob";
  world.Queue(bobs);
  world.Queue("adas");
  world.snapshot.usage = {{"ada", 100}};
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("bobs"), v1::Job::RESOURCES);
  EXPECT_EQ(world.Reason("adas"), v1::Job::QUOTA);
  EXPECT_EQ(CountReasons(world.snapshot, world.decision).at(v1::Job::QUOTA), 1);
  world.snapshot.running[0].end = world.snapshot.running[1].end = world.now + absl::Seconds(10);
  world.Decide();
  const auto starts = EstimateStarts(world.snapshot, world.decision, world.now, 10);
  EXPECT_TRUE(starts.contains("bobs"));
  EXPECT_FALSE(starts.contains("adas"));
}

TEST(PickQuotas, AlsoBehindOthersOfTheClassTheSweepIsTheReason) {
  PickWorld world({1});
  RunningJob running = world.Running("s0", {0});
  running.sweep_id = "sweep";
  world.Run(running);
  world.Queue("first");
  QueuedJob trial = world.Job("s1");
  trial.sweep_id = "sweep";
  trial.sweep_max_parallel = 1;
  world.Queue(trial);
  EXPECT_EQ(world.Starts(), "");
  EXPECT_EQ(world.Reason("first"), v1::Job::RESOURCES);
  EXPECT_EQ(world.Reason("s1"), v1::Job::QUOTA);
}

TEST(PickQuotas, ASweepRunsAsManyAsItMay) {
  PickWorld world({4});
  for (int i = 0; i < 3; ++i) {
    QueuedJob job = world.Job(absl::StrCat("s", i));
    job.sweep_id = "sweep";
    job.sweep_max_parallel = 2;
    world.Queue(job);
  }
  world.Queue("other");
  EXPECT_EQ(world.Starts(), "s0@d0, s1@d1, other@d2");
  EXPECT_EQ(world.Reason("s2"), v1::Job::QUOTA);
  EXPECT_EQ(world.Info("s2").message, "2 jobs of its sweep run, as many as max_parallel allows");
}

}  // namespace
}  // namespace ampd
