#include "server/scheduling/fair_share.h"

#include <gmock/gmock.h>

namespace ampd {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

TEST(FairShareTest, UsageHalvesWithItsHalfLife) {
  UsageLedger ledger(absl::Hours(10));
  ledger.Add("ada", 2, kStart - absl::Seconds(1), kStart);
  EXPECT_NEAR(ledger.At("ada", kStart), 2, 1e-3);
  EXPECT_NEAR(ledger.At("ada", kStart + absl::Hours(10)), 1, 1e-3);
  EXPECT_NEAR(ledger.At("ada", kStart + absl::Hours(30)), 0.25, 1e-3);
  EXPECT_EQ(ledger.At("bob", kStart), 0);
}

TEST(FairShareTest, ALongJobIsTheSumOfItsParts) {
  const absl::Duration half_life = absl::Hours(3);
  UsageLedger whole(half_life), parts(half_life);
  whole.Add("ada", 4, kStart, kStart + absl::Hours(24));
  for (int hour = 23; hour >= 0; --hour)
    parts.Add("ada", 4, kStart + absl::Hours(hour), kStart + absl::Hours(hour + 1));
  const absl::Time now = kStart + absl::Hours(30);
  EXPECT_NEAR(whole.At("ada", now), parts.At("ada", now), 1e-6);
  // By steps of a second.
  double sum = 0;
  for (int s = 0; s < 24 * 3600; ++s) sum += 4 * std::exp2(-(30 * 3600 - s - 0.5) / (3 * 3600.0));
  EXPECT_NEAR(whole.At("ada", now), sum, 1e-3 * sum);
}

TEST(FairShareTest, CountersGiveItBack) {
  const absl::Duration half_life = absl::Hours(24);
  UsageLedger direct(half_life), restored(half_life);
  const absl::Time end = kStart + absl::Hours(40);
  const auto counters = UsageCounters("a/b c", 3, kStart, end);
  EXPECT_GE(counters.size(), 7u);
  double seconds = 0;
  for (const auto& [name, value] : counters) {
    seconds += value;
    EXPECT_TRUE(AddUsageCounter(name, value, end, &restored)) << name;
  }
  EXPECT_DOUBLE_EQ(seconds, 3 * 40 * 3600);
  EXPECT_FALSE(AddUsageCounter("ampd_steps_applied_total", 5, end, &restored));
  direct.Add("a/b c", 3, kStart, end);
  EXPECT_NEAR(restored.At("a/b c", end), direct.At("a/b c", end), 0.02 * direct.At("a/b c", end));
}

TEST(FairShareTest, WhatIsForgottenNeedNotBeKept) {
  const absl::Duration half_life = absl::Hours(24 * 20);
  const absl::Time long_ago = kStart - 32 * half_life;
  std::map<std::string, double> counters = UsageCounters("ada", 8, long_ago - absl::Hours(24 * 300), kStart);
  counters.merge(UsageCounters("bob", 1, long_ago - absl::Hours(100), long_ago - absl::Hours(90)));
  counters["ampd_steps_applied_total"] = 1;
  const std::vector<std::string> forgotten = ForgottenUsage(counters, kStart, half_life);
  std::map<std::string, double> kept = counters;
  for (const std::string& name : forgotten) EXPECT_EQ(kept.erase(name), 1u) << name;
  EXPECT_EQ(kept.count("ampd_steps_applied_total"), 1u);
  UsageLedger before(half_life), after(half_life);
  for (const auto& [name, value] : counters) AddUsageCounter(name, value, kStart, &before);
  for (const auto& [name, value] : kept) AddUsageCounter(name, value, kStart, &after);
  EXPECT_NEAR(after.At("ada", kStart), before.At("ada", kStart), 0.005) << "device-seconds";
  EXPECT_NEAR(after.At("bob", kStart), before.At("bob", kStart), 0.001);
  EXPECT_EQ(after.At("bob", kStart), 0);
  EXPECT_THAT(ForgottenUsage(kept, kStart, half_life), ::testing::IsEmpty());
}

TEST(FairShareTest, AYearIsKeptWhateverIsForgotten) {
  const absl::Duration year = absl::Hours(24 * 366);
  const absl::Duration minute = absl::Minutes(1);
  const std::map<std::string, double> counters = UsageCounters("ada", 1, kStart - year, kStart);
  EXPECT_THAT(ForgottenUsage(counters, kStart, minute), ::testing::IsEmpty());
  EXPECT_EQ(ForgottenUsage(counters, kStart + year, minute).size(), 0u) << "the clock is ahead, or nobody came";
  std::map<std::string, double> later = UsageCounters("bob", 1, kStart + year, kStart + year + minute);
  later.insert(counters.begin(), counters.end());
  EXPECT_GT(ForgottenUsage(later, kStart + year + minute, minute).size(), 1400u);
  EXPECT_THAT(ForgottenUsage(later, kStart, minute), ::testing::IsEmpty()) << "the clock was ahead";
  EXPECT_THAT(ForgottenUsage(later, kStart + 3 * year, absl::InfiniteDuration()), ::testing::IsEmpty());
}

TEST(FairShareTest, ForeverWithoutAHalfLife) {
  UsageLedger ledger(absl::InfiniteDuration());
  ledger.Add("ada", 1, kStart, kStart + absl::Seconds(10));
  EXPECT_EQ(ledger.At("ada", kStart + absl::Hours(100'000)), 10);
}

}  // namespace
}  // namespace ampd
