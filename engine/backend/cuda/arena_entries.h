// What the passes over the arenas go through, entry by entry, and what they do to an element. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_ARENA_ENTRIES_H_
#define AMPD_ENGINE_BACKEND_CUDA_ARENA_ENTRIES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/backend/cuda/arena_passes.h"
#include "engine/backend/cuda/convert.h"
#include "engine/runtime/backend.h"

namespace ampd::cuda {

// Consecutive elements of one range, and of one parameter where it has a copy.
struct UpdateEntry {
  int64_t offset;
  int32_t size;
  int32_t range;
  // Of the entry's first element; null: no copy. One that is padded is given from its beginning: its rows begin every
  // copy_columns elements, the parameter's every `columns`, and the entry's first element is the parameter's `first`.
  void* copy;
  DType copy_dtype;
  int32_t columns;
  int32_t copy_columns;
  int32_t first;
};

// What is a range's own in the rule.
struct RangeRule {
  float learning_rate_scale;
  float weight_decay;
};

// The arenas; moments that are not kept are null.
struct UpdateArenas {
  float* masters;
  const float* gradients;
  float* moment1;
  float* moment2;
  float* moment3;
  float* average;
  float average_weight;
  DType round_to;
};

// The ranges cut into entries; each copy lies within one range.
std::vector<UpdateEntry> UpdateEntriesOf(absl::Span<const runtime::UpdateRange> ranges,
                                         absl::Span<const DenseCopy> copies);
std::vector<RangeRule> RulesOf(absl::Span<const runtime::UpdateRange> ranges);
UpdateArenas UpdateArenasOf(const runtime::UpdateArgs& args);

__device__ __forceinline__ optim::UpdateScalars ScalarsOf(const UpdateControl& control, const RangeRule& range,
                                                          double trust = 1) {
  optim::UpdateScalars scalars = control.scalars;
  scalars.learning_rate = static_cast<float>(trust * scalars.learning_rate) * range.learning_rate_scale;
  scalars.step_size *= range.learning_rate_scale;
  return scalars;
}

__device__ __forceinline__ void WriteCopy(const UpdateEntry& entry, int i, float master) {
  if (entry.copy == nullptr) return;
  int32_t at = entry.first + i;
  if (entry.columns != entry.copy_columns) at = at / entry.columns * entry.copy_columns + at % entry.columns;
  if (entry.copy_dtype == DType::kF16) {
    static_cast<Half*>(entry.copy)[at] = Store<Half>(master);
  } else {
    static_cast<BFloat16*>(entry.copy)[at] = Store<BFloat16>(master);
  }
}

// What follows any rule.
__device__ __forceinline__ void FinishUpdate(const UpdateArenas& a, const UpdateEntry& entry, int i, float master) {
  if (a.round_to == DType::kF16) master = RoundTo<Half>(master);
  if (a.round_to == DType::kBF16) master = RoundTo<BFloat16>(master);
  const int64_t at = entry.offset + i;
  a.masters[at] = master;
  if (a.average != nullptr) a.average[at] = optim::AverageElement(a.average[at], master, a.average_weight);
  WriteCopy(entry, i, master);
}

// Updates element `i` of an entry by a rule that keeps `moments` moments; LAMB needs more than the element.
__device__ __forceinline__ void UpdateAt(const optim::OptimizerConfig& config, const optim::UpdateScalars& scalars,
                                         int moments, const UpdateArenas& a, const UpdateEntry& entry, int i) {
  const int64_t at = entry.offset + i;
  float m1 = moments >= 1 ? a.moment1[at] : 0, m2 = moments >= 2 ? a.moment2[at] : 0;
  float m3 = moments >= 3 ? a.moment3[at] : 0;
  const float master = optim::UpdateElement(config, scalars, a.masters[at], a.gradients[at], m1, m2, m3);
  if (moments >= 1) a.moment1[at] = m1;
  if (moments >= 2) a.moment2[at] = m2;
  if (moments >= 3) a.moment3[at] = m3;
  FinishUpdate(a, entry, i, master);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_ARENA_ENTRIES_H_
