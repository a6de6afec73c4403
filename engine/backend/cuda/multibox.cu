// The loss of single-shot detectors (Liu et al. 2016, section 2.2), in double as on the CPU. What goes by order (which
// box has which prior, which priors are the hardest) is settled by one block a sample, so that it is the same in every
// run and on every backend.
#include <limits>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"
#include "engine/ops/multibox_elements.h"

namespace ampd::cuda {
namespace {

using ops::kBoxNumbers;
using ops::kOffsets;
using ops::kPriorNumbers;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Of a prior that stands for no box yet. Left there, it says that the sample's targets are wrong.
constexpr int32_t kFree = -1;
constexpr int32_t kNoPrior = std::numeric_limits<int32_t>::max();

struct MinOf {
  __device__ __forceinline__ int32_t operator()(int32_t a, int32_t b) const { return a < b ? a : b; }
};

struct MatchShape {
  int64_t batch = 0, priors = 0, boxes = 0, classes = 0;
  double threshold = 0, center_variance = 0, size_variance = 0;
};

struct MatchTensors {
  const float* priors;   // [priors, 4]
  const float* targets;  // [batch, boxes, 5]
  int32_t* classes;      // [batch, priors]; numbers of boxes while those are given out
  float* offsets;        // [batch, priors, 4]
  // The free prior that each box overlaps most, and by how much; 0 where there is none. [batch, boxes]
  double* overlaps;
  int32_t* candidates;
};

// One sample, by one block.
class Matching {
 public:
  __device__ Matching(const MatchShape& s, const MatchTensors& all, int64_t n)
      : s_(s),
        priors_(all.priors),
        targets_(all.targets + n * s.boxes * kBoxNumbers),
        classes_(all.classes + n * s.priors),
        offsets_(all.offsets + n * s.priors * kOffsets),
        overlaps_(all.overlaps + n * s.boxes),
        candidates_(all.candidates + n * s.boxes) {}

  __device__ void Run() {
    for (int64_t p = threadIdx.x; p < s_.priors; p += kThreads) {
      classes_[p] = kFree;
      for (int64_t i = 0; i < kOffsets; ++i) offsets_[p * kOffsets + i] = 0;
    }
    int wrong = 0;
    for (int64_t b = threadIdx.x; b < s_.boxes; b += kThreads) wrong += KindOf(b) == ops::BoxKind::kWrong ? 1 : 0;
    // Also waits for all.
    if (BlockSum(wrong) != 0) return;
    GiveEachBoxItsPrior();
    for (int64_t p = threadIdx.x; p < s_.priors; p += kThreads) {
      const int64_t box = classes_[p] == kFree ? ops::BoxOver(ops::CornersOfPrior(priors_ + p * kPriorNumbers),
                                                              targets_, s_.boxes, s_.classes, s_.threshold)
                                               : classes_[p];
      classes_[p] = box < 0 ? 0 : static_cast<int32_t>(Target(box)[0]) + 1;
      if (box < 0) continue;
      ops::EncodeOffsets(priors_ + p * kPriorNumbers, Target(box), s_.center_variance, s_.size_variance,
                         offsets_ + p * kOffsets);
    }
  }

 private:
  __device__ const float* Target(int64_t box) const { return targets_ + box * kBoxNumbers; }
  __device__ ops::BoxKind KindOf(int64_t box) const { return ops::KindOfBox(Target(box), s_.classes); }
  __device__ double OverlapOf(int64_t box, int64_t prior) const {
    return ops::Overlap(ops::CornersOfPrior(priors_ + prior * kPriorNumbers), ops::CornersOfBox(Target(box)));
  }

  // By one warp.
  __device__ void FindCandidate(int64_t box) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    double most = 0;
    int32_t first = kNoPrior;
    const bool there = KindOf(box) == ops::BoxKind::kBox;
    for (int64_t p = lane; there && p < s_.priors; p += kWarp) {
      if (classes_[p] != kFree) continue;
      const double overlap = OverlapOf(box, p);
      if (overlap > most) most = overlap, first = static_cast<int32_t>(p);
    }
    const double of_all = WarpReduce(most, MaxOf());
    const int32_t prior = WarpReduce(most == of_all ? first : kNoPrior, MinOf());
    if (lane != 0) return;
    overlaps_[box] = of_all;
    candidates_[box] = prior;
  }

  // The greatest overlap first; of equals the first box, and of its priors the first.
  __device__ void GiveEachBoxItsPrior() {
    const auto warp = static_cast<int64_t>(threadIdx.x / kWarp);
    for (int64_t b = warp; b < s_.boxes; b += kWarps) FindCandidate(b);
    while (true) {
      __syncthreads();
      int64_t next = -1;
      double most = 0;
      for (int64_t b = 0; b < s_.boxes; ++b) {
        if (overlaps_[b] > most) most = overlaps_[b], next = b;
      }
      if (next < 0) return;
      const int32_t taken = candidates_[next];
      __syncthreads();
      if (threadIdx.x == 0) {
        classes_[taken] = static_cast<int32_t>(next);
        overlaps_[next] = 0;
        candidates_[next] = kNoPrior;
      }
      __syncthreads();
      for (int64_t b = warp; b < s_.boxes; b += kWarps) {
        if (candidates_[b] == taken) FindCandidate(b);
      }
    }
  }

  const MatchShape& s_;
  const float* const priors_;
  const float* const targets_;
  int32_t* const classes_;
  float* const offsets_;
  double* const overlaps_;
  int32_t* const candidates_;
};

__global__ void __launch_bounds__(kThreads) Match(MatchShape s, MatchTensors all) {
  Matching(s, all, blockIdx.x).Run();
}

runtime::PrepareKernel PrepareMatch(Context* context) {
  return [=](const NodeDesc& desc) {
    MatchShape s;
    s.batch = desc.inputs[1].shape[0];
    s.priors = desc.inputs[0].shape[0];
    s.boxes = desc.inputs[1].shape[1] / kBoxNumbers;
    s.classes = desc.attributes.Int("classes");
    s.threshold = desc.attributes.Double("threshold", 0.5);
    s.center_variance = desc.attributes.Double("center_variance", 0.1);
    s.size_variance = desc.attributes.Double("size_variance", 0.2);
    WorkspaceLayout layout;
    const int64_t overlaps_at = layout.Add(s.batch * s.boxes * static_cast<int64_t>(sizeof(double)));
    const int64_t candidates_at = layout.Add(s.batch * s.boxes * static_cast<int64_t>(sizeof(int32_t)));
    return MakeKernel(layout.bytes(), [=, name = desc.name](const KernelArgs& args) {
      const MatchTensors all = {args.inputs[0].as<float>(),
                                args.inputs[1].as<float>(),
                                args.outputs[0].as<int32_t>(),
                                args.outputs[1].as<float>(),
                                WorkspaceAt<double>(args, overlaps_at),
                                WorkspaceAt<int32_t>(args, candidates_at)};
      return Launch(name, Match, static_cast<unsigned>(s.batch), kThreads, 0, context->stream(), s, all);
    });
  };
}

struct LossShape {
  int64_t batch = 0, priors = 0, width = 0;
  double negative_ratio = 0, location_weight = 0;

  LossShape(const NodeDesc& desc, const Shape& prediction)
      : batch(prediction[0]),
        priors(prediction[1]),
        width(prediction[2]),
        negative_ratio(desc.attributes.Double("negative_ratio", 3)),
        location_weight(desc.attributes.Double("location_weight", 1)) {}
  // The background's and the classes'.
  __host__ __device__ int64_t logits() const { return width - kOffsets; }
  __host__ __device__ bool is_class(int32_t c) const { return c >= 0 && c < logits(); }
};

// Predictions and targets of the batch.
struct LossTensors {
  const float* predictions;  // [batch, priors, width]
  const int32_t* classes;    // [batch, priors]
  const float* offsets;      // [batch, priors, 4]

  // As the op's inputs from `first` on.
  LossTensors(const KernelArgs& args, size_t first)
      : predictions(args.inputs[first].as<float>()),
        classes(args.inputs[first + 1].as<int32_t>()),
        offsets(args.inputs[first + 2].as<float>()) {}
};

// The cross-entropy of each prior of the batch; NaN where its class is none.
__global__ void __launch_bounds__(kThreads) CrossEntropies(LossShape s, LossTensors in, double* cross_entropies) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < s.batch * s.priors;
       row += stride) {
    const float* logits = in.predictions + row * s.width + kOffsets;
    const int32_t c = in.classes[row];
    cross_entropies[row] = s.is_class(c) ? ops::LogSumExp(logits, s.logits()) - static_cast<double>(logits[c])
                                         : std::numeric_limits<double>::quiet_NaN();
  }
}

// The largest key such that `wanted` priors without a box have it or a larger one, by the whole block. `wanted` >= 1,
// and there are as many.
__device__ uint64_t HardestKeys(const LossShape& s, const int32_t* classes, const double* cross_entropies,
                                int64_t wanted) {
  uint64_t least = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t tried = least | uint64_t{1} << bit;
    int64_t harder = 0;
    for (int64_t p = threadIdx.x; p < s.priors; p += kThreads) {
      harder += classes[p] == 0 && ops::HardnessKey(cross_entropies[p], p) >= tried ? 1 : 0;
    }
    harder = BlockSum(harder);
    if (harder >= wanted) least = tried;
    if (harder == wanted) break;
  }
  return least;
}

// One block a sample: which priors count, and what they cost.
__global__ void __launch_bounds__(kThreads)
    Losses(LossShape s, LossTensors in, const double* cross_entropies, float* losses, float* shares) {
  const int64_t n = blockIdx.x;
  const int32_t* classes = in.classes + n * s.priors;
  cross_entropies += n * s.priors;
  shares += n * s.priors;
  int64_t matched = 0, wrong = 0;
  for (int64_t p = threadIdx.x; p < s.priors; p += kThreads) {
    matched += classes[p] > 0 ? 1 : 0;
    wrong += s.is_class(classes[p]) ? 0 : 1;
  }
  matched = BlockSum(matched);
  wrong = BlockSum(wrong);
  if (wrong != 0 || matched == 0) {
    const float fill = wrong != 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (int64_t p = threadIdx.x; p < s.priors; p += kThreads) shares[p] = fill;
    if (threadIdx.x == 0) losses[n] = fill;
    return;
  }
  const int64_t negatives = ops::CountedNegatives(s.priors, matched, s.negative_ratio);
  const uint64_t least =
      negatives == 0 ? std::numeric_limits<uint64_t>::max() : HardestKeys(s, classes, cross_entropies, negatives);
  const auto share = static_cast<float>(1.0 / static_cast<double>(matched));
  double sum = 0;
  for (int64_t p = threadIdx.x; p < s.priors; p += kThreads) {
    const bool counts = classes[p] > 0 || (negatives > 0 && ops::HardnessKey(cross_entropies[p], p) >= least);
    shares[p] = counts ? share : 0.0f;
    if (!counts) continue;
    sum += cross_entropies[p];
    if (classes[p] == 0) continue;
    const float* prediction = in.predictions + (n * s.priors + p) * s.width;
    const float* offsets = in.offsets + (n * s.priors + p) * kOffsets;
    sum += s.location_weight * ops::OffsetLoss(prediction, offsets);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) losses[n] = static_cast<float>(sum / static_cast<double>(matched));
}

runtime::PrepareKernel PrepareLoss(Context* context) {
  return [=](const NodeDesc& desc) {
    const LossShape s(desc, desc.inputs[0].shape);
    const int64_t rows = s.batch * s.priors;
    return MakeKernel(
        rows * static_cast<int64_t>(sizeof(double)), [=, name = desc.name](const KernelArgs& args) -> absl::Status {
          const LossTensors in(args, 0);
          auto* cross_entropies = WorkspaceAt<double>(args, 0);
          const unsigned blocks = BlocksFor(rows, kThreads, context->properties().sm_count);
          AMPD_RETURN_IF_ERROR(
              Launch(name, CrossEntropies, blocks, kThreads, 0, context->stream(), s, in, cross_entropies));
          return Launch(name, Losses, static_cast<unsigned>(s.batch), kThreads, 0, context->stream(), s, in,
                        cross_entropies, args.outputs[0].as<float>(), args.outputs[1].as<float>());
        });
  };
}

// One thread a prior.
__global__ void __launch_bounds__(kThreads)
    Gradients(LossShape s, LossTensors in, const float* dlosses, const float* shares, float* gradients) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < s.batch * s.priors;
       row += stride) {
    const auto share = static_cast<double>(shares[row]);
    // A prior that does not count has no gradient, whatever its sample's loss gets.
    const double factor = share == 0 ? 0 : static_cast<double>(dlosses[row / s.priors]) * share;
    ops::PriorGrad(in.predictions + row * s.width, s.logits(), in.classes[row], in.offsets + row * kOffsets,
                   s.location_weight, factor, gradients + row * s.width);
  }
}

runtime::PrepareKernel PrepareLossGrad(Context* context) {
  return [=](const NodeDesc& desc) {
    const LossShape s(desc, desc.inputs[1].shape);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, Gradients, BlocksFor(s.batch * s.priors, kThreads, context->properties().sm_count), kThreads,
                    0, context->stream(), s, LossTensors(args, 1), args.inputs[0].as<float>(),
                    args.inputs[4].as<float>(), args.outputs[0].as<float>());
    });
  };
}

}  // namespace

void RegisterMultibox(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32, i = DType::kI32;
  table->Add(ir::OpKind::kMultiboxMatch, {f, f}, {i, f}, PrepareMatch(context));
  table->Add(ir::OpKind::kMultiboxLoss, {f, i, f}, {f, f}, PrepareLoss(context));
  table->Add(ir::OpKind::kMultiboxLossGrad, {f, f, i, f, f}, {f}, PrepareLossGrad(context));
}

}  // namespace ampd::cuda
