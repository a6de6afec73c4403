// Internal to the CPU backend: passes over the flat arenas of masters, gradients and moments.
#ifndef AMPD_ENGINE_BACKEND_CPU_ARENA_PASSES_H_
#define AMPD_ENGINE_BACKEND_CPU_ARENA_PASSES_H_

#include <vector>

#include "engine/runtime/backend.h"

namespace ampd::cpu {

// One gradient check a step; keeps its lists between calls so that a step allocates nothing. Blocks are cut the same
// way whatever the thread count, so the sum has the same bits for all.
class GradientChecker {
 public:
  void Run(int threads, const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
           runtime::GradientCheck* check);

 private:
  struct Block {
    int64_t offset;
    int64_t size;
    int32_t slot;
    bool finite;
    int64_t zeros;
    double sum_of_squares;
  };
  void Cut(absl::Span<const runtime::ArenaSlot> slots);

  std::vector<Block> blocks_;
};

// One update a step; keeps its lists between calls, as GradientChecker does. Norms have the same bits for all thread
// counts.
class Updater {
 public:
  void Run(int threads, const runtime::UpdateArgs& args);

 private:
  struct Block {
    int64_t offset;
    int64_t size;
    int32_t range;
    // Sums of squares, for LAMB: of the block, then of its whole range.
    double weights;
    double directions;
  };
  void Cut(absl::Span<const runtime::UpdateRange> ranges);
  void AddUpRanges();
  void RunLamb(int threads, const runtime::UpdateArgs& args);

  std::vector<Block> blocks_;
};

// First element of `tensor` that is not finite: its index, or -1.
int64_t FirstNonFinite(int threads, const TensorView& tensor);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_ARENA_PASSES_H_
