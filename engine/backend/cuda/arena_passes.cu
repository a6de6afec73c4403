#include "engine/backend/cuda/arena_passes.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/arena_entries.h"
#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;
// Elements of one entry of a list; a block of threads takes entry after entry.
constexpr int64_t kCheckBlock = 16384;
constexpr int64_t kUpdateBlock = 4096;
constexpr int kNone = std::numeric_limits<int>::max();

// Consecutive values of one gradient, or of one state: those come behind all gradients.
struct CheckEntry {
  const float* data;
  int32_t size;
  // Of the slot or, from kFirstState on, of the state.
  int32_t index;
};
constexpr int32_t kFirstState = 1 << 30;

struct CheckPartial {
  double sum_of_squares;
  int32_t zeros;
  // The lowest position in the entry of a value that is not finite, or kNone; and whether that is a NaN.
  int32_t first_bad;
  int32_t is_nan;
};

struct MinOf {
  __device__ __forceinline__ int operator()(int a, int b) const { return a < b ? a : b; }
};

__global__ void __launch_bounds__(kThreads) CheckEntries(const CheckEntry* __restrict__ list, int64_t count,
                                                         const float* factor, CheckPartial* __restrict__ partials) {
  const double scale = static_cast<double>(*factor);
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) {
    const CheckEntry entry = list[e];
    double sum = 0;
    int zeros = 0, first = kNone;
    const auto look = [&](float value, int at) {
      const double scaled = static_cast<double>(value) * scale;
      sum += scaled * scaled;
      zeros += value == 0 ? 1 : 0;
      if (!isfinite(value) && at < first) first = at;
    };
    const int packs = entry.size / 4;
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      const auto pack = reinterpret_cast<const Pack<float, 4>*>(entry.data)[i];
      for (int j = 0; j < 4; ++j) look(pack.values[j], 4 * i + j);
    }
    for (int i = 4 * packs + static_cast<int>(threadIdx.x); i < entry.size; i += kThreads) look(entry.data[i], i);
    sum = BlockSum(sum);
    zeros = BlockSum(zeros);
    first = BlockReduce(first, kNone, MinOf());
    if (threadIdx.x == 0) {
      partials[e] = {sum, zeros, first, first != kNone && isnan(entry.data[first]) ? 1 : 0};
    }
  }
}

// One block; entries are in backward order, so the first bad entry is in the first bad slot.
__global__ void __launch_bounds__(kThreads)
    FinishCheck(const CheckEntry* __restrict__ list, const CheckPartial* __restrict__ partials, int64_t count,
                CheckResult* result) {
  double sum = 0;
  long long zeros = 0;
  int bad = kNone, bad_state = kNone;
  for (int64_t e = threadIdx.x; e < count; e += kThreads) {
    const bool of_state = list[e].index >= kFirstState;
    if (!of_state) {
      sum += partials[e].sum_of_squares;
      zeros += partials[e].zeros;
    }
    if (partials[e].first_bad == kNone) continue;
    int& lowest = of_state ? bad_state : bad;
    if (static_cast<int>(e) < lowest) lowest = static_cast<int>(e);
  }
  sum = BlockSum(sum);
  zeros = BlockSum(zeros);
  bad = BlockReduce(bad, kNone, MinOf());
  bad_state = BlockReduce(bad_state, kNone, MinOf());
  if (threadIdx.x != 0) return;
  result->gradients.finite = bad == kNone;
  result->gradients.first_bad_slot = bad == kNone ? -1 : list[bad].index;
  result->gradients.first_bad_is_nan = bad != kNone && partials[bad].is_nan != 0;
  result->gradients.sum_of_squares = sum;
  result->gradients.zeros = zeros;
  result->first_bad_state = bad_state == kNone ? -1 : list[bad_state].index - kFirstState;
  result->first_bad_state_is_nan = bad_state != kNone && partials[bad_state].is_nan != 0;
}

void Cut(const float* data, int64_t size, int32_t index, std::vector<CheckEntry>* list) {
  for (int64_t i = 0; i < size; i += kCheckBlock) {
    list->push_back({data + i, static_cast<int32_t>(std::min(kCheckBlock, size - i)), index});
  }
}

struct Norms {
  double weights;
  double directions;
};

// Blocks that a multiprocessor is to hold of an update; a T4's holds 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr int kUpdateBlocks = 6;
#else
constexpr int kUpdateBlocks = 4;
#endif

// The rule's branches depend on constants of the job; fixing them here leaves straight code.
template <optim::OptimizerKind kKind, bool kMomentum, bool kCentered, int kMoments>
__global__ void __launch_bounds__(kThreads, kUpdateBlocks)
    UpdateEntries(const UpdateEntry* __restrict__ list, int64_t count, const RangeRule* __restrict__ ranges,
                  const UpdateControl* __restrict__ control, optim::OptimizerConfig config, UpdateArenas a) {
  if (control->apply == 0) return;
  config.kind = kKind;
  config.centered = kCentered;
  if (!kMomentum) config.momentum = 0;
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) {
    const UpdateEntry entry = list[e];
    const RangeRule range = ranges[entry.range];
    const optim::UpdateScalars scalars = ScalarsOf(*control, range);
    config.weight_decay = range.weight_decay;
    for (int i = static_cast<int>(threadIdx.x); i < entry.size; i += kThreads) {
      UpdateAt(config, scalars, kMoments, a, entry, i);
    }
  }
}

// Moves the moments and sums up both norms of each entry.
__global__ void __launch_bounds__(kThreads)
    LambMoments(const UpdateEntry* __restrict__ list, int64_t count, const RangeRule* __restrict__ ranges,
                const UpdateControl* __restrict__ control, optim::OptimizerConfig config, UpdateArenas a,
                Norms* __restrict__ norms) {
  if (control->apply == 0) return;
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) {
    const UpdateEntry entry = list[e];
    config.weight_decay = ranges[entry.range].weight_decay;
    Norms own = {0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < entry.size; i += kThreads) {
      const int64_t at = entry.offset + i;
      float m1 = a.moment1[at], m2 = a.moment2[at];
      optim::AdamMoments(config, optim::ReadyGradient(config, control->scalars, a.gradients[at]), m1, m2);
      a.moment1[at] = m1;
      a.moment2[at] = m2;
      const double w = static_cast<double>(a.masters[at]);
      const double r = static_cast<double>(optim::LambDirection(config, control->scalars, a.masters[at], m1, m2));
      own.weights += w * w;
      own.directions += r * r;
    }
    own.weights = BlockSum(own.weights);
    own.directions = BlockSum(own.directions);
    if (threadIdx.x == 0) norms[e] = own;
  }
}

// One block a range: its norms, from those of its entries, which end where the next range's begin.
__global__ void __launch_bounds__(kThreads)
    LambNorms(const int64_t* __restrict__ begins, const UpdateControl* __restrict__ control,
              const Norms* __restrict__ norms, Norms* __restrict__ of_range) {
  if (control->apply == 0) return;
  const int64_t end = begins[blockIdx.x + 1];
  Norms own = {0, 0};
  for (int64_t e = begins[blockIdx.x] + threadIdx.x; e < end; e += kThreads) {
    own.weights += norms[e].weights;
    own.directions += norms[e].directions;
  }
  own.weights = BlockSum(own.weights);
  own.directions = BlockSum(own.directions);
  if (threadIdx.x == 0) of_range[blockIdx.x] = own;
}

// The same directions again, from the moments: reading those costs less than keeping an arena of directions.
__global__ void __launch_bounds__(kThreads)
    LambStep(const UpdateEntry* __restrict__ list, int64_t count, const RangeRule* __restrict__ ranges,
             const UpdateControl* __restrict__ control, optim::OptimizerConfig config, UpdateArenas a,
             const Norms* __restrict__ of_range) {
  if (control->apply == 0) return;
  for (int64_t e = blockIdx.x; e < count; e += gridDim.x) {
    const UpdateEntry entry = list[e];
    const RangeRule range = ranges[entry.range];
    config.weight_decay = range.weight_decay;
    const Norms norms = of_range[entry.range];
    const double trust = optim::LambTrustRatio(sqrt(norms.weights), sqrt(norms.directions));
    const optim::UpdateScalars scalars = ScalarsOf(*control, range, trust);
    for (int i = static_cast<int>(threadIdx.x); i < entry.size; i += kThreads) {
      const int64_t at = entry.offset + i;
      const float w = a.masters[at];
      const float r = optim::LambDirection(config, scalars, w, a.moment1[at], a.moment2[at]);
      FinishUpdate(a, entry, i, w - scalars.learning_rate * r);
    }
  }
}

using UpdateKernel = void (*)(const UpdateEntry*, int64_t, const RangeRule*, const UpdateControl*,
                              optim::OptimizerConfig, UpdateArenas);

UpdateKernel PickRmsProp(const optim::OptimizerConfig& config) {
  constexpr auto kKind = optim::OptimizerKind::kRmsProp;
  if (config.momentum != 0) {
    return config.centered ? UpdateEntries<kKind, true, true, 3> : UpdateEntries<kKind, true, false, 2>;
  }
  return config.centered ? UpdateEntries<kKind, false, true, 2> : UpdateEntries<kKind, false, false, 1>;
}

// Null for LAMB.
UpdateKernel PickUpdate(const optim::OptimizerConfig& config) {
  using optim::OptimizerKind;
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return config.momentum != 0 ? UpdateEntries<OptimizerKind::kSgd, true, false, 1>
                                  : UpdateEntries<OptimizerKind::kSgd, false, false, 0>;
    case OptimizerKind::kAdam:
      return UpdateEntries<OptimizerKind::kAdam, false, false, 2>;
    case OptimizerKind::kAdamW:
      return UpdateEntries<OptimizerKind::kAdamW, false, false, 2>;
    case OptimizerKind::kRmsProp:
      return PickRmsProp(config);
    case OptimizerKind::kAdagrad:
      return UpdateEntries<OptimizerKind::kAdagrad, false, false, 1>;
    case OptimizerKind::kLamb:
      break;
  }
  return nullptr;
}

// `from` to `to` of the arena, all within one range and one copy or none.
void Cut(int64_t from, int64_t to, int32_t range, const DenseCopy* copy, std::vector<UpdateEntry>* list) {
  for (int64_t at = from; at < to; at += kUpdateBlock) {
    UpdateEntry entry{at, static_cast<int32_t>(std::min(kUpdateBlock, to - at)), range, nullptr, DType::kF16, 1, 1, 0};
    if (copy != nullptr) {
      const int64_t first = at - copy->slot.offset;
      const bool padded = copy->columns != copy->copy_columns;
      entry.copy = static_cast<char*>(copy->copy) + (padded ? 0 : first * SizeOf(copy->dtype));
      entry.copy_dtype = copy->dtype;
      entry.columns = copy->columns;
      entry.copy_columns = copy->copy_columns;
      entry.first = padded ? static_cast<int32_t>(first) : 0;
    }
    list->push_back(entry);
  }
}

// The first entry of each range, and behind the last one the number of entries; those of a range follow each other.
std::vector<int64_t> BeginsOf(const std::vector<UpdateEntry>& list, size_t ranges) {
  std::vector<int64_t> begins(ranges + 1);
  for (const UpdateEntry& entry : list) ++begins[static_cast<size_t>(entry.range) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  return begins;
}

template <typename T>
absl::StatusOr<DeviceArray> UploadAll(Context* context, const std::vector<T>& values, absl::string_view what) {
  return DeviceArray::Upload(context, values.data(), static_cast<int64_t>(values.size() * sizeof(T)), what);
}

}  // namespace

std::vector<UpdateEntry> UpdateEntriesOf(absl::Span<const runtime::UpdateRange> ranges,
                                         absl::Span<const DenseCopy> copies) {
  std::vector<DenseCopy> sorted(copies.begin(), copies.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const DenseCopy& a, const DenseCopy& b) { return a.slot.offset < b.slot.offset; });
  std::vector<UpdateEntry> list;
  for (size_t r = 0; r < ranges.size(); ++r) {
    const runtime::ArenaSlot& slot = ranges[r].slot;
    int64_t at = slot.offset;
    const int64_t end = slot.offset + slot.size;
    for (const DenseCopy& copy : sorted) {
      if (copy.slot.offset < at || copy.slot.offset >= end) continue;
      Cut(at, copy.slot.offset, static_cast<int32_t>(r), nullptr, &list);
      at = copy.slot.offset + copy.slot.size;
      Cut(copy.slot.offset, at, static_cast<int32_t>(r), &copy, &list);
    }
    Cut(at, end, static_cast<int32_t>(r), nullptr, &list);
  }
  return list;
}

absl::optional<DenseCopy> AsDenseCopy(const runtime::ModelLayout& layout, const runtime::ModelLayout::Copy& copy,
                                      char* published) {
  const absl::optional<ir::TensorType>& dense = copy.layout.dense;
  if (!dense || (dense->dtype != DType::kF16 && dense->dtype != DType::kBF16)) return absl::nullopt;
  const auto parameter = static_cast<size_t>(copy.parameter);
  const Shape &own = layout.parameters()[parameter].type.shape, &padded = dense->shape;
  DenseCopy as{layout.slots()[parameter], dense->dtype, published + copy.offset, 1, 1};
  if (own == padded) return as;
  // Rows may be longer, and more; between, a padded axis would leave gaps.
  const auto same = [](const Shape& a, const Shape& b) {
    return a.size() == b.size() && (a.size() < 3 || std::equal(a.begin() + 1, a.end() - 1, b.begin() + 1));
  };
  if (!same(own, padded) || NumElements(padded) > std::numeric_limits<int32_t>::max()) return absl::nullopt;
  as.columns = static_cast<int32_t>(own.back());
  as.copy_columns = static_cast<int32_t>(padded.back());
  return as;
}

std::vector<RangeRule> RulesOf(absl::Span<const runtime::UpdateRange> ranges) {
  std::vector<RangeRule> all;
  for (const runtime::UpdateRange& range : ranges) all.push_back({range.learning_rate_scale, range.weight_decay});
  return all;
}

UpdateArenas UpdateArenasOf(const runtime::UpdateArgs& args) {
  return {args.masters, args.gradients, args.moment1,        args.moment2,
          args.moment3, args.average,   args.average_weight, args.round_to};
}

absl::StatusOr<std::unique_ptr<GradientCheckPass>> GradientCheckPass::Create(Context* context, const float* gradients,
                                                                             absl::Span<const runtime::ArenaSlot> slots,
                                                                             absl::Span<const StateSlot> states) {
  std::vector<CheckEntry> list;
  for (size_t s = 0; s < slots.size(); ++s) {
    Cut(gradients + slots[s].offset, slots[s].size, static_cast<int32_t>(s), &list);
  }
  for (size_t s = 0; s < states.size(); ++s) {
    Cut(states[s].data, states[s].size, kFirstState + static_cast<int32_t>(s), &list);
  }
  std::unique_ptr<GradientCheckPass> pass(new GradientCheckPass(context));
  pass->blocks_ = static_cast<int64_t>(list.size());
  AMPD_ASSIGN_OR_RETURN(pass->list_, UploadAll(context, list, "the gradient check's list"));
  AMPD_ASSIGN_OR_RETURN(pass->partials_, DeviceArray::Allocate(static_cast<int64_t>(list.size() * sizeof(CheckPartial)),
                                                               "the gradient check's partial sums"));
  return pass;
}

absl::Status GradientCheckPass::Enqueue(const float* factor, CheckResult* result) const {
  const unsigned grid = BlocksFor(blocks_ * kThreads, kThreads, context_->properties().sm_count);
  AMPD_RETURN_IF_ERROR(Launch("check gradients", CheckEntries, grid, kThreads, 0, context_->stream(),
                              list_.as<CheckEntry>(), blocks_, factor, partials_.as<CheckPartial>()));
  return Launch("check gradients", FinishCheck, 1, kThreads, 0, context_->stream(), list_.as<CheckEntry>(),
                partials_.as<CheckPartial>(), blocks_, result);
}

absl::StatusOr<std::unique_ptr<UpdatePass>> UpdatePass::Create(Context* context, const runtime::UpdateArgs& args,
                                                               absl::Span<const DenseCopy> copies) {
  const int needed = args.config.moments();
  const float* given[optim::kMaxMoments] = {args.moment1, args.moment2, args.moment3};
  for (int i = 0; i < needed; ++i) {
    if (given[i] != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("[cuda] update: the optimizer keeps ", needed, " moments and was given fewer"));
  }
  const std::vector<UpdateEntry> list = UpdateEntriesOf(args.ranges, copies);
  const std::vector<RangeRule> ranges = RulesOf(args.ranges);
  std::unique_ptr<UpdatePass> pass(new UpdatePass(context, args));
  pass->args_.ranges = {};
  pass->blocks_ = static_cast<int64_t>(list.size());
  pass->ranges_count_ = static_cast<int64_t>(ranges.size());
  AMPD_ASSIGN_OR_RETURN(pass->list_, UploadAll(context, list, "the update's list"));
  AMPD_ASSIGN_OR_RETURN(pass->ranges_, UploadAll(context, ranges, "the update's ranges"));
  if (args.config.kind == optim::OptimizerKind::kLamb) {
    const auto norms = static_cast<int64_t>((list.size() + ranges.size()) * sizeof(Norms));
    AMPD_ASSIGN_OR_RETURN(pass->norms_, DeviceArray::Allocate(norms, "LAMB's norms"));
    AMPD_ASSIGN_OR_RETURN(pass->range_begins_,
                          UploadAll(context, BeginsOf(list, ranges.size()), "the beginnings of the update's ranges"));
  }
  return pass;
}

absl::Status UpdatePass::Enqueue(const UpdateControl* control) const {
  if (blocks_ == 0) return absl::OkStatus();
  const UpdateKernel kernel = PickUpdate(args_.config);
  if (kernel == nullptr) return EnqueueLamb(control);
  const unsigned grid = BlocksFor(blocks_ * kThreads, kThreads, context_->properties().sm_count);
  return Launch("update", kernel, grid, kThreads, 0, context_->stream(), list_.as<UpdateEntry>(), blocks_,
                ranges_.as<RangeRule>(), control, args_.config, UpdateArenasOf(args_));
}

absl::Status UpdatePass::EnqueueLamb(const UpdateControl* control) const {
  const unsigned grid = BlocksFor(blocks_ * kThreads, kThreads, context_->properties().sm_count);
  const cudaStream_t stream = context_->stream();
  const auto* list = list_.as<UpdateEntry>();
  const auto* ranges = ranges_.as<RangeRule>();
  Norms* of_entry = norms_.as<Norms>();
  Norms* of_range = of_entry + blocks_;
  AMPD_RETURN_IF_ERROR(Launch("lamb moments", LambMoments, grid, kThreads, 0, stream, list, blocks_, ranges, control,
                              args_.config, UpdateArenasOf(args_), of_entry));
  AMPD_RETURN_IF_ERROR(Launch("lamb norms", LambNorms, static_cast<unsigned>(ranges_count_), kThreads, 0, stream,
                              range_begins_.as<int64_t>(), control, of_entry, of_range));
  return Launch("lamb step", LambStep, grid, kThreads, 0, stream, list, blocks_, ranges, control, args_.config,
                UpdateArenasOf(args_), of_range);
}

}  // namespace ampd::cuda
