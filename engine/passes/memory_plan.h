// Lays tensors out in one arena.
#ifndef AMPD_ENGINE_PASSES_MEMORY_PLAN_H_
#define AMPD_ENGINE_PASSES_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

namespace ampd::passes {

// A block of memory that is in use during steps first..last, both included.
struct LiveRange {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // by range, bytes, multiples of kTensorAlignment
  int64_t total_bytes = 0;
};

// Offsets such that no two ranges in use at one step overlap. Greedy by size, largest first, each at the lowest offset
// that fits (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference", section 5.2).
MemoryPlan PlanMemory(const std::vector<LiveRange>& ranges);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_MEMORY_PLAN_H_
