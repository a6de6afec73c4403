#include "engine/runtime/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"

namespace ampd::runtime {
namespace {

// What the slot takes up to where the next may begin.
int64_t EndOf(const ArenaSlot& slot) {
  constexpr int64_t kAlignment = kTensorAlignment / static_cast<int64_t>(sizeof(float));
  return (slot.offset + slot.size + kAlignment - 1) / kAlignment * kAlignment;
}

std::vector<ArenaSlot> Merged(std::vector<ArenaSlot> slots) {
  std::sort(slots.begin(), slots.end(), [](const ArenaSlot& a, const ArenaSlot& b) { return a.offset < b.offset; });
  std::vector<ArenaSlot> merged;
  for (const ArenaSlot& slot : slots) {
    if (!merged.empty() && EndOf(merged.back()) == slot.offset) {
      merged.back().size = slot.offset + slot.size - merged.back().offset;
    } else {
      merged.push_back(slot);
    }
  }
  return merged;
}

// By parameter: the last step that adds to its gradient; -1: none does.
std::vector<int> LastSteps(const Plan& plan, const ModelLayout& layout) {
  std::vector<std::pair<int64_t, int32_t>> by_offset;
  for (const int32_t parameter : plan.gradient_order) {
    by_offset.emplace_back(layout.slots()[static_cast<size_t>(parameter)].offset, parameter);
  }
  std::sort(by_offset.begin(), by_offset.end());
  std::vector<int> last(layout.parameters().size(), -1);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (const PlannedTensor& output : plan.steps[s].outputs) {
      if (output.space != Space::kGradient) continue;
      const int64_t offset = output.offset / static_cast<int64_t>(sizeof(float));
      const auto it = std::lower_bound(by_offset.begin(), by_offset.end(), std::make_pair(offset, int32_t{0}));
      if (it != by_offset.end() && it->first == offset) last[static_cast<size_t>(it->second)] = static_cast<int>(s);
    }
  }
  return last;
}

// FNV-1a (Fowler, Noll, Vo) of their numbers.
uint64_t FingerprintOf(const std::vector<GradientBucket>& buckets) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(number) >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  };
  for (const GradientBucket& bucket : buckets) {
    add(static_cast<int64_t>(bucket.ranges.size()));
    for (const ArenaSlot& range : bucket.ranges) add(range.offset), add(range.size);
  }
  return hash;
}

}  // namespace

std::vector<GradientBucket> GradientBuckets(const Plan& plan, const ModelLayout& layout, int64_t bucket_bytes) {
  const std::vector<int> last = LastSteps(plan, layout);
  std::vector<int32_t> order = plan.gradient_order;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return last[a] < last[b]; });
  std::vector<GradientBucket> buckets;
  std::vector<ArenaSlot> slots;
  int64_t bytes = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ArenaSlot& slot = layout.slots()[static_cast<size_t>(order[i])];
    slots.push_back(slot);
    bytes += slot.size * static_cast<int64_t>(sizeof(float));
    if (bytes < bucket_bytes && i + 1 < order.size()) continue;
    buckets.push_back({last[static_cast<size_t>(order[i])], Merged(std::move(slots))});
    slots.clear();
    bytes = 0;
  }
  return buckets;
}

GradientReducer::GradientReducer(const Plan* plan, ModelMemory* memory, Collective* collective, int64_t bucket_bytes)
    : plan_(plan),
      memory_(memory),
      collective_(collective),
      buckets_(GradientBuckets(*plan, memory->layout(), bucket_bytes)) {
  fingerprints_.reserve(static_cast<size_t>(collective->size()));
}

// By their fingerprints: a collective that adds up by position alone would make wrong sums of other ranges.
absl::Status GradientReducer::CompareBuckets() {
  AMPD_RETURN_IF_ERROR(collective_->group()->AllGather(collective_->rank(), FingerprintOf(buckets_), &fingerprints_));
  for (size_t r = 1; r < fingerprints_.size(); ++r) {
    if (fingerprints_[r] == fingerprints_[0]) continue;
    return absl::InternalError(absl::StrCat("[collective] replica ", r, " adds up other gradients than replica 0"));
  }
  compared_ = true;
  return absl::OkStatus();
}

absl::Status GradientReducer::After(const PlanStep& step) {
  if (!compared_) AMPD_RETURN_IF_ERROR(CompareBuckets());
  const auto index = static_cast<int>(&step - plan_->steps.data());
  for (; next_ < buckets_.size() && buckets_[next_].last_step <= index; ++next_) {
    AMPD_RETURN_IF_ERROR(collective_->AllReduceSum(memory_->gradients(), buckets_[next_].ranges));
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Finish() { return collective_->Finish(); }

}  // namespace ampd::runtime
