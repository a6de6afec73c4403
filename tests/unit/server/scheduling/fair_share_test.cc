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

TEST(FairShareTest, ForeverWithoutAHalfLife) {
  UsageLedger ledger(absl::InfiniteDuration());
  ledger.Add("ada", 1, kStart, kStart + absl::Seconds(10));
  EXPECT_EQ(ledger.At("ada", kStart + absl::Hours(100'000)), 10);
}

}  // namespace
}  // namespace ampd
