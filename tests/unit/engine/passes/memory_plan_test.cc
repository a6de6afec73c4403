#include "engine/passes/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/core/rng.h"
#include "engine/core/tensor.h"

namespace ampd::passes {
namespace {

int64_t PeakBytes(const std::vector<LiveRange>& ranges, int steps) {
  int64_t peak = 0;
  for (int s = 0; s < steps; ++s) {
    int64_t bytes = 0;
    for (const LiveRange& r : ranges) bytes += r.first <= s && s <= r.last ? AlignUp(r.bytes) : 0;
    peak = std::max(peak, bytes);
  }
  return peak;
}

TEST(PlanMemory, RandomRangesNeverOverlap) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RngSequence rng(seed, "ranges");
    const int steps = 1 + static_cast<int>(rng.NextBelow(40));
    std::vector<LiveRange> ranges(rng.NextBelow(60));
    for (LiveRange& r : ranges) {
      r.bytes = static_cast<int64_t>(rng.NextBelow(5000));
      r.first = static_cast<int>(rng.NextBelow(steps));
      r.last = r.first + static_cast<int>(rng.NextBelow(steps - r.first));
    }
    const MemoryPlan plan = PlanMemory(ranges);
    ASSERT_EQ(plan.offsets.size(), ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % kTensorAlignment, 0);
      EXPECT_LE(plan.offsets[i] + ranges[i].bytes, plan.total_bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool together = ranges[i].first <= ranges[j].last && ranges[j].first <= ranges[i].last;
        const bool overlap =
            plan.offsets[i] < plan.offsets[j] + ranges[j].bytes && plan.offsets[j] < plan.offsets[i] + ranges[i].bytes;
        EXPECT_FALSE(together && overlap) << "seed " << seed << ": ranges " << i << " and " << j;
      }
    }
    EXPECT_GE(plan.total_bytes, PeakBytes(ranges, steps));
    EXPECT_LE(plan.total_bytes, 2 * PeakBytes(ranges, steps));
  }
}

TEST(PlanMemory, ReusesMemoryOfAChain) {
  std::vector<LiveRange> chain;
  for (int i = 0; i < 100; ++i) chain.push_back({4096, i, i + 1});
  EXPECT_EQ(PlanMemory(chain).total_bytes, 2 * 4096);
}

TEST(PlanMemory, NothingNeedsNothing) { EXPECT_EQ(PlanMemory({}).total_bytes, 0); }

}  // namespace
}  // namespace ampd::passes
