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
constexpr int64_t kUpdateBlock = 4096;
// Blocks below which waking another thread costs more than it saves.
constexpr int64_t kMinUpdateBlocks = kMinElementsPerThread / 2 / kUpdateBlock;

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

double SumOfSquares(const float* values, int64_t n, float factor) {
  alignas(64) double sums[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) AddSquares(values + i, std::min(kLanes, n - i), factor, sums);
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

BlockSummary Summarize(const float* g, int64_t n, float factor) {
  BlockSummary summary;
  InspectBits(reinterpret_cast<const uint32_t*>(g), n, &summary);
  summary.sum_of_squares = SumOfSquares(g, n, factor);
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

// Where the tensors of one piece of the arenas begin; moments that are not kept are null.
struct Piece {
  float* masters;
  const float* gradients;
  float* moments[optim::kMaxMoments];
};

Piece PieceAt(const runtime::UpdateArgs& args, int64_t offset) {
  const auto at = [offset](float* moment) { return moment == nullptr ? nullptr : moment + offset; };
  return {args.masters + offset, args.gradients + offset, {at(args.moment1), at(args.moment2), at(args.moment3)}};
}

// The rule's branches depend on constants of the job; fixing them here leaves a loop that vectorises.
template <optim::OptimizerKind kKind, bool kMomentum, bool kCentered, int kMoments>
AMPD_CPU_CLONES void UpdateLoop(optim::OptimizerConfig config, optim::UpdateScalars scalars, int64_t n,
                                const Piece& piece) {
  config.kind = kKind;
  config.centered = kCentered;
  if (!kMomentum) config.momentum = 0;
  float* __restrict w = piece.masters;
  const float* __restrict g = piece.gradients;
  float* __restrict m1 = piece.moments[0];
  float* __restrict m2 = piece.moments[1];
  float* __restrict m3 = piece.moments[2];
  for (int64_t i = 0; i < n; ++i) {
    float first = kMoments >= 1 ? m1[i] : 0, second = kMoments >= 2 ? m2[i] : 0, third = kMoments >= 3 ? m3[i] : 0;
    w[i] = optim::UpdateElement(config, scalars, w[i], g[i], first, second, third);
    if (kMoments >= 1) m1[i] = first;
    if (kMoments >= 2) m2[i] = second;
    if (kMoments >= 3) m3[i] = third;
  }
}

using UpdateFunction = void (*)(optim::OptimizerConfig, optim::UpdateScalars, int64_t, const Piece&);

UpdateFunction PickRmsProp(const optim::OptimizerConfig& config) {
  constexpr auto kKind = optim::OptimizerKind::kRmsProp;
  if (config.momentum != 0)
    return config.centered ? UpdateLoop<kKind, true, true, 3> : UpdateLoop<kKind, true, false, 2>;
  return config.centered ? UpdateLoop<kKind, false, true, 2> : UpdateLoop<kKind, false, false, 1>;
}

UpdateFunction PickUpdate(const optim::OptimizerConfig& config) {
  using optim::OptimizerKind;
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return config.momentum != 0 ? UpdateLoop<OptimizerKind::kSgd, true, false, 1>
                                  : UpdateLoop<OptimizerKind::kSgd, false, false, 0>;
    case OptimizerKind::kAdam:
      return UpdateLoop<OptimizerKind::kAdam, false, false, 2>;
    case OptimizerKind::kAdamW:
      return UpdateLoop<OptimizerKind::kAdamW, false, false, 2>;
    case OptimizerKind::kRmsProp:
      return PickRmsProp(config);
    case OptimizerKind::kAdagrad:
      return UpdateLoop<OptimizerKind::kAdagrad, false, false, 1>;
    case OptimizerKind::kLamb:
      break;
  }
  return nullptr;
}

// Moves the moments and leaves the directions.
AMPD_CPU_CLONES void LambLoop(optim::OptimizerConfig config, optim::UpdateScalars scalars, int64_t n,
                              const Piece& piece, float* __restrict directions) {
  const float* __restrict w = piece.masters;
  const float* __restrict g = piece.gradients;
  float* __restrict m1 = piece.moments[0];
  float* __restrict m2 = piece.moments[1];
  for (int64_t i = 0; i < n; ++i) {
    float first = m1[i], second = m2[i];
    optim::AdamMoments(config, optim::ReadyGradient(config, scalars, g[i]), first, second);
    m1[i] = first;
    m2[i] = second;
    directions[i] = optim::LambDirection(config, scalars, w[i], first, second);
  }
}

// The same directions again, from the moments: reading those costs less than keeping an arena of directions.
AMPD_CPU_CLONES void LambStep(optim::OptimizerConfig config, optim::UpdateScalars scalars, int64_t n,
                              const Piece& piece) {
  float* __restrict w = piece.masters;
  const float* __restrict m1 = piece.moments[0];
  const float* __restrict m2 = piece.moments[1];
  for (int64_t i = 0; i < n; ++i) {
    w[i] -= scalars.learning_rate * optim::LambDirection(config, scalars, w[i], m1[i], m2[i]);
  }
}

AMPD_CPU_CLONES void AverageLoop(float weight, int64_t n, const float* __restrict w, float* __restrict average) {
  for (int64_t i = 0; i < n; ++i) average[i] = optim::AverageElement(average[i], w[i], weight);
}

// What follows any rule.
void Finish(const runtime::UpdateArgs& args, int64_t offset, int64_t n) {
  float* masters = args.masters + offset;
  if (args.round_to != DType::kF32) RoundThrough(args.round_to, masters, n, masters);
  if (args.average != nullptr) AverageLoop(args.average_weight, n, masters, args.average + offset);
}

optim::OptimizerConfig ConfigOf(const runtime::UpdateArgs& args, const runtime::UpdateRange& range) {
  optim::OptimizerConfig config = args.config;
  config.weight_decay = range.weight_decay;
  return config;
}

optim::UpdateScalars ScalarsOf(const runtime::UpdateArgs& args, const runtime::UpdateRange& range, double trust = 1) {
  optim::UpdateScalars scalars = args.scalars;
  scalars.learning_rate = static_cast<float>(trust * scalars.learning_rate) * range.learning_rate_scale;
  scalars.step_size *= range.learning_rate_scale;
  return scalars;
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

void Updater::Cut(absl::Span<const runtime::UpdateRange> ranges) {
  blocks_.clear();
  for (size_t r = 0; r < ranges.size(); ++r) {
    const runtime::ArenaSlot& slot = ranges[r].slot;
    for (int64_t i = 0; i < slot.size; i += kUpdateBlock) {
      blocks_.push_back({slot.offset + i, std::min(kUpdateBlock, slot.size - i), static_cast<int32_t>(r), 0.0, 0.0});
    }
  }
}

void Updater::Run(int threads, const runtime::UpdateArgs& args) {
  Cut(args.ranges);
  if (args.config.kind == optim::OptimizerKind::kLamb) return RunLamb(threads, args);
  const UpdateFunction update = PickUpdate(args.config);
  const int64_t count = static_cast<int64_t>(blocks_.size());
  ParallelRange(PartsFor(threads, count, kMinUpdateBlocks), count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks_[b];
      const runtime::UpdateRange& range = args.ranges[block.range];
      update(ConfigOf(args, range), ScalarsOf(args, range), block.size, PieceAt(args, block.offset));
      Finish(args, block.offset, block.size);
    }
  });
}

// Gives every block its range's sums.
void Updater::AddUpRanges() {
  for (size_t first = 0, last = 0; first < blocks_.size(); first = last) {
    double weights = 0, directions = 0;
    for (; last < blocks_.size() && blocks_[last].range == blocks_[first].range; ++last) {
      weights += blocks_[last].weights;
      directions += blocks_[last].directions;
    }
    for (size_t b = first; b < last; ++b) {
      blocks_[b].weights = weights;
      blocks_[b].directions = directions;
    }
  }
}

void Updater::RunLamb(int threads, const runtime::UpdateArgs& args) {
  const int64_t count = static_cast<int64_t>(blocks_.size());
  const int parts = PartsFor(threads, count, kMinUpdateBlocks);
  ParallelRange(parts, count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      Block& block = blocks_[b];
      float directions[kUpdateBlock];
      LambLoop(ConfigOf(args, args.ranges[block.range]), args.scalars, block.size, PieceAt(args, block.offset),
               directions);
      block.weights = SumOfSquares(args.masters + block.offset, block.size, 1);
      block.directions = SumOfSquares(directions, block.size, 1);
    }
  });
  AddUpRanges();
  ParallelRange(parts, count, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks_[b];
      const runtime::UpdateRange& range = args.ranges[block.range];
      const double trust = optim::LambTrustRatio(std::sqrt(block.weights), std::sqrt(block.directions));
      LambStep(ConfigOf(args, range), ScalarsOf(args, range, trust), block.size, PieceAt(args, block.offset));
      Finish(args, block.offset, block.size);
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
