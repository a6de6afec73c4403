#include "engine/backend/cpu/arena_passes.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/parallel.h"

namespace ampd::cpu {
namespace {

constexpr int64_t kCheckBlock = 16384;
constexpr int64_t kLanes = 512;

struct BlockSummary {
  int64_t non_finite = 0;
  int64_t zeros = 0;
  double sum_of_squares = 0;
};

AMPD_CPU_CLONES void InspectBits(const uint32_t* __restrict bits, int64_t n, BlockSummary* summary) {
  uint32_t non_finite = 0, zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits[i] & 0x7fffffffu;
    non_finite += magnitude >= 0x7f800000u ? 1 : 0;
    zeros += magnitude == 0 ? 1 : 0;
  }
  summary->non_finite = non_finite;
  summary->zeros = zeros;
}

// Lanes that are summed apart let the loop vectorise without reassociating anything.
AMPD_CPU_CLONES void AddSquares(const float* __restrict g, int64_t lanes, double factor, double* __restrict sums) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const double scaled = static_cast<double>(g[lane]) * factor;
    sums[lane] += scaled * scaled;
  }
}

BlockSummary Summarize(const float* g, int64_t n, float factor) {
  BlockSummary summary;
  InspectBits(reinterpret_cast<const uint32_t*>(g), n, &summary);
  alignas(64) double sums[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) AddSquares(g + i, std::min(kLanes, n - i), factor, sums);
  for (double sum : sums) summary.sum_of_squares += sum;
  return summary;
}

// First of n magnitudes, given as bits, that reaches `infinity`; -1 if none.
template <typename Bits>
int64_t FirstAtLeast(const Bits* values, int64_t n, Bits magnitude_mask, Bits infinity) {
  for (int64_t i = 0; i < n; ++i) {
    if ((values[i] & magnitude_mask) >= infinity) return i;
  }
  return -1;
}

int64_t FirstNonFiniteIn(DType dtype, const void* data, int64_t n) {
  switch (dtype) {
    case DType::kF32:
      return FirstAtLeast<uint32_t>(static_cast<const uint32_t*>(data), n, 0x7fffffffu, 0x7f800000u);
    case DType::kF16:
      return FirstAtLeast<uint16_t>(static_cast<const uint16_t*>(data), n, 0x7fff, 0x7c00);
    case DType::kBF16:
      return FirstAtLeast<uint16_t>(static_cast<const uint16_t*>(data), n, 0x7fff, 0x7f80);
    case DType::kF8E4M3:
      return FirstAtLeast<uint8_t>(static_cast<const uint8_t*>(data), n, 0x7f, 0x7f);
    case DType::kF8E5M2:
      return FirstAtLeast<uint8_t>(static_cast<const uint8_t*>(data), n, 0x7f, 0x7c);
    default:
      return -1;
  }
}

// The rule's branches depend on constants of the job; fixing them here leaves a loop that vectorises.
template <optim::OptimizerKind kKind, bool kMomentum>
AMPD_CPU_CLONES void UpdateLoop(optim::OptimizerConfig config, optim::UpdateScalars scalars, int64_t n,
                                float* __restrict w, const float* __restrict g, float* __restrict m1,
                                float* __restrict m2) {
  config.kind = kKind;
  if (!kMomentum) config.momentum = 0;
  for (int64_t i = 0; i < n; ++i) {
    float first = 0, second = 0;
    if (kKind != optim::OptimizerKind::kSgd || kMomentum) first = m1[i];
    if (kKind != optim::OptimizerKind::kSgd) second = m2[i];
    w[i] = optim::UpdateElement(config, scalars, w[i], g[i], first, second);
    if (kKind != optim::OptimizerKind::kSgd || kMomentum) m1[i] = first;
    if (kKind != optim::OptimizerKind::kSgd) m2[i] = second;
  }
}

using UpdateFunction = void (*)(optim::OptimizerConfig, optim::UpdateScalars, int64_t, float*, const float*, float*,
                                float*);

UpdateFunction PickUpdate(const optim::OptimizerConfig& config) {
  switch (config.kind) {
    case optim::OptimizerKind::kSgd:
      return config.momentum != 0 ? UpdateLoop<optim::OptimizerKind::kSgd, true>
                                  : UpdateLoop<optim::OptimizerKind::kSgd, false>;
    case optim::OptimizerKind::kAdam:
      return UpdateLoop<optim::OptimizerKind::kAdam, false>;
    case optim::OptimizerKind::kAdamW:
      return UpdateLoop<optim::OptimizerKind::kAdamW, false>;
  }
  return nullptr;
}

}  // namespace

void GradientChecker::Cut(absl::Span<const runtime::ArenaSlot> slots) {
  blocks_.clear();
  for (size_t s = 0; s < slots.size(); ++s) {
    for (int64_t i = 0; i < slots[s].size; i += kCheckBlock) {
      blocks_.push_back(
          {slots[s].offset + i, std::min(kCheckBlock, slots[s].size - i), static_cast<int32_t>(s), true, 0, 0.0});
    }
  }
}

void GradientChecker::Run(int threads, const float* gradients, absl::Span<const runtime::ArenaSlot> slots, float factor,
                          runtime::GradientCheck* check) {
  Cut(slots);
  const int64_t count = static_cast<int64_t>(blocks_.size());
  ParallelRange(PartsFor(threads, count, 4), count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const BlockSummary summary = Summarize(gradients + blocks_[b].offset, blocks_[b].size, factor);
      blocks_[b].finite = summary.non_finite == 0;
      blocks_[b].zeros = summary.zeros;
      blocks_[b].sum_of_squares = summary.sum_of_squares;
    }
  });
  *check = runtime::GradientCheck();
  for (const Block& block : blocks_) {
    check->zeros += block.zeros;
    check->sum_of_squares += block.sum_of_squares;
    if (block.finite || !check->finite) continue;
    check->finite = false;
    check->first_bad_slot = block.slot;
    const float* values = gradients + block.offset;
    check->first_bad_is_nan = std::isnan(values[FirstNonFiniteIn(DType::kF32, values, block.size)]);
  }
}

void RunUpdate(int threads, const runtime::UpdateArgs& args) {
  const UpdateFunction update = PickUpdate(args.config);
  const int64_t n = args.size;
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread / 2), n, kBlock, [&](int, int64_t begin, int64_t end) {
    const auto at = [](float* moment, int64_t i) { return moment == nullptr ? nullptr : moment + i; };
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t m = std::min(kBlock, end - i);
      float* masters = args.masters + i;
      update(args.config, args.scalars, m, masters, args.gradients + i, at(args.moment1, i), at(args.moment2, i));
      if (args.round_to != DType::kF32) RoundThrough(args.round_to, masters, m, masters);
    }
  });
}

int64_t FirstNonFinite(int threads, const TensorView& tensor) {
  if (!IsFloat(tensor.dtype)) return -1;
  const int64_t n = tensor.size();
  std::atomic<int64_t> first{n};
  ParallelRange(PartsFor(threads, n, kMinElementsPerThread), n, kBlock, [&](int, int64_t begin, int64_t end) {
    const int64_t found = FirstNonFiniteIn(tensor.dtype, tensor.as<char>() + begin * SizeOf(tensor.dtype), end - begin);
    if (found < 0) return;
    int64_t current = first.load();
    while (begin + found < current && !first.compare_exchange_weak(current, begin + found)) {
    }
  });
  return first < n ? first.load() : -1;
}

}  // namespace ampd::cpu
