#include "engine/passes/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "engine/core/tensor.h"

namespace ampd::passes {

MemoryPlan PlanMemory(const std::vector<LiveRange>& ranges) {
  std::vector<int> order(ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return ranges[a].bytes > ranges[b].bytes; });

  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  std::vector<int> placed;  // by offset
  for (int r : order) {
    const int64_t bytes = AlignUp(ranges[r].bytes);
    int64_t offset = 0;
    for (int p : placed) {
      if (ranges[p].last < ranges[r].first || ranges[r].last < ranges[p].first) continue;
      if (plan.offsets[p] >= offset + bytes) break;
      offset = std::max(offset, plan.offsets[p] + AlignUp(ranges[p].bytes));
    }
    plan.offsets[r] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + bytes);
    const auto by_offset = [&](int a, int b) { return plan.offsets[a] < plan.offsets[b]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), r, by_offset), r);
  }
  return plan;
}

}  // namespace ampd::passes
