// match_priors and hard_negatives: a block a sample. Both decide as the CPU's kernels do, to the bit.
#include <bit>
#include <limits>

#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/ops/box_overlap.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;
constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

struct MinOf {
  __device__ __forceinline__ int32_t operator()(int32_t a, int32_t b) const { return a < b ? a : b; }
};

struct MatchShape {
  int64_t batch = 0;
  int32_t priors = 0, boxes = 0;
  double threshold = 0, center_variance = 0, size_variance = 0;
};

// A box's free prior of the largest overlap; overlap 0: there is none.
struct Candidate {
  double overlap;
  int32_t prior;
};

// What all threads of a block find together: the largest overlap and the lowest index that has it.
__device__ Candidate LargestOfBlock(Candidate own) {
  const double most = BlockReduce(own.overlap, 0.0, MaxOf());
  return {most, BlockReduce(own.overlap == most ? own.prior : kNone, kNone, MinOf())};
}

// One sample's boxes against all priors, by a block.
class Matching {
 public:
  __device__ Matching(const MatchShape& shape, const float* priors, const float* boxes, int32_t* matched,
                      Candidate* candidates)
      : shape_(shape), priors_(priors), boxes_(boxes), matched_(matched), candidates_(candidates) {}

  // Fills `matched`: 1 + the box that a prior stands for, or 0. Returns how many do, to each thread.
  __device__ int32_t Run() {
    for (int32_t p = threadIdx.x; p < shape_.priors; p += kThreads) matched_[p] = 0;
    __syncthreads();
    GiveEachBoxItsBest();
    int32_t count = 0;
    for (int32_t p = threadIdx.x; p < shape_.priors; p += kThreads) {
      if (matched_[p] == 0) matched_[p] = BestBox(p);
      count += matched_[p] != 0 ? 1 : 0;
    }
    return BlockSum(count);
  }

 private:
  __device__ const float* box(int32_t g) const { return boxes_ + g * ops::kBoxNumbers; }
  __device__ double OverlapOf(int32_t g, int32_t p) const {
    return ops::Overlap(ops::CornersOfPrior(priors_ + 4 * p), ops::CornersOfBox(box(g)));
  }

  __device__ void FindCandidate(int32_t g) {
    Candidate best = {0, kNone};
    for (int32_t p = threadIdx.x; ops::IsBox(box(g)) && p < shape_.priors; p += kThreads) {
      const double overlap = matched_[p] != 0 ? 0 : OverlapOf(g, p);
      if (overlap > best.overlap) best = {overlap, p};
    }
    best = LargestOfBlock(best);
    if (threadIdx.x == 0) candidates_[g] = best;
    __syncthreads();
  }

  // The largest overlap of all first, so that no prior stands for two boxes.
  __device__ void GiveEachBoxItsBest() {
    for (int32_t g = 0; g < shape_.boxes; ++g) FindCandidate(g);
    for (int32_t round = 0; round < shape_.boxes; ++round) {
      Candidate own = {0, kNone};
      for (int32_t g = threadIdx.x; g < shape_.boxes; g += kThreads) {
        if (candidates_[g].overlap > own.overlap) own = {candidates_[g].overlap, g};
      }
      const Candidate chosen = LargestOfBlock(own);
      if (chosen.overlap <= 0) return;
      const int32_t taken = candidates_[chosen.prior].prior;
      __syncthreads();
      if (threadIdx.x == 0) {
        matched_[taken] = chosen.prior + 1;
        candidates_[chosen.prior] = {0, kNone};
      }
      __syncthreads();
      for (int32_t g = 0; g < shape_.boxes; ++g) {
        const bool again = candidates_[g].prior == taken;
        __syncthreads();
        if (again) FindCandidate(g);
      }
    }
  }

  __device__ int32_t BestBox(int32_t p) const {
    double most = shape_.threshold;
    int32_t best = 0;
    for (int32_t g = 0; g < shape_.boxes; ++g) {
      const double overlap = ops::IsBox(box(g)) ? OverlapOf(g, p) : 0;
      if (overlap > most) most = overlap, best = g + 1;
    }
    return best;
  }

  const MatchShape& shape_;
  const float* priors_;
  const float* boxes_;
  int32_t* matched_;
  Candidate* candidates_;
};

struct MatchTensors {
  const float* priors;
  const float* targets;
  int32_t* labels;
  float* offsets;
  float* shares;
  int32_t* matched;       // [batch, priors]
  Candidate* candidates;  // [batch, boxes]
};

__global__ void __launch_bounds__(kThreads) Match(MatchShape shape, MatchTensors t) {
  for (int64_t n = blockIdx.x; n < shape.batch; n += gridDim.x) {
    const float* boxes = t.targets + n * shape.boxes * ops::kBoxNumbers;
    int32_t* matched = t.matched + n * shape.priors;
    int32_t wrong = 0;
    for (int32_t g = threadIdx.x; g < shape.boxes; g += kThreads) {
      wrong += ops::IsBroken(boxes + g * ops::kBoxNumbers) ? 1 : 0;
    }
    const bool broken = BlockSum(wrong) != 0;
    const int32_t count = broken ? 0 : Matching(shape, t.priors, boxes, matched, t.candidates + n * shape.boxes).Run();
    const float share = 1.0f / static_cast<float>(count > 1 ? count : 1);
    for (int32_t p = threadIdx.x; p < shape.priors; p += kThreads) {
      const int32_t of = broken ? 0 : matched[p];
      const float* box = boxes + (of - 1) * ops::kBoxNumbers;
      float offsets[4] = {};
      if (of != 0) {
        ops::EncodeBox(t.priors + 4 * p, ops::CornersOfBox(box), shape.center_variance, shape.size_variance, offsets);
      }
      const int64_t at = n * shape.priors + p;
      t.labels[at] = of == 0 ? 0 : 1 + static_cast<int32_t>(box[0]);
      t.shares[at] = broken ? std::numeric_limits<float>::quiet_NaN() : of == 0 ? 0.0f : share;
      for (int i = 0; i < 4; ++i) t.offsets[at * 4 + i] = offsets[i];
    }
  }
}

// Ordered as the numbers are; a NaN is larger than any.
__device__ __forceinline__ uint32_t KeyOf(float x) {
  if (x != x) return 0xffffffffu;
  // Minus zero is zero.
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// How many of a sample's negatives satisfy `counts(key, prior)`, to each thread.
template <typename Counts>
__device__ int32_t CountNegatives(const float* losses, const int32_t* labels, int32_t priors, const Counts& counts) {
  int32_t count = 0;
  for (int32_t p = threadIdx.x; p < priors; p += kThreads) {
    if (labels[p] == 0 && counts(KeyOf(losses[p]), p)) ++count;
  }
  return BlockSum(count);
}

__global__ void __launch_bounds__(kThreads)
    Choose(const float* __restrict__ all_losses, const int32_t* __restrict__ all_labels, int64_t batch, int32_t priors,
           double ratio, int32_t* __restrict__ chosen) {
  for (int64_t n = blockIdx.x; n < batch; n += gridDim.x) {
    const float* losses = all_losses + n * priors;
    const int32_t* labels = all_labels + n * priors;
    int32_t own = 0;
    for (int32_t p = threadIdx.x; p < priors; p += kThreads) own += labels[p] > 0 ? 1 : 0;
    const int32_t positives = BlockSum(own);
    const int32_t negatives = CountNegatives(losses, labels, priors, [](uint32_t, int32_t) { return true; });
    const double most = floor(ratio * static_cast<double>(positives));
    const int32_t wanted = most < static_cast<double>(negatives) ? static_cast<int32_t>(most) : negatives;
    // The largest key that `wanted` of them reach, bit by bit; then, of those that have it, the lowest prior that is
    // one too many.
    uint32_t key = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const uint32_t tried = key | 1u << bit;
      if (CountNegatives(losses, labels, priors, [=](uint32_t k, int32_t) { return k >= tried; }) >= wanted)
        key = tried;
    }
    const int32_t above = CountNegatives(losses, labels, priors, [=](uint32_t k, int32_t) { return k > key; });
    int32_t end = 0;
    for (int bit = 30; bit >= 0; --bit) {
      const int32_t tried = end | 1 << bit;
      const int32_t ties =
          CountNegatives(losses, labels, priors, [=](uint32_t k, int32_t p) { return k == key && p < tried; });
      if (above + ties <= wanted) end = tried;
    }
    for (int32_t p = threadIdx.x; p < priors; p += kThreads) {
      const uint32_t k = KeyOf(losses[p]);
      const bool hard = wanted > 0 && labels[p] == 0 && (k > key || (k == key && p < end));
      chosen[n * priors + p] = labels[p] > 0 ? labels[p] : hard ? 0 : -1;
    }
  }
}

unsigned BlocksOf(int64_t batch, const Context* context) {
  return BlocksFor(batch * kThreads, kThreads, context->properties().sm_count);
}

runtime::PrepareKernel PrepareMatch(Context* context) {
  return [=](const NodeDesc& desc) {
    const MatchShape shape = {.batch = desc.inputs[1].shape[0],
                              .priors = static_cast<int32_t>(desc.inputs[0].shape[0]),
                              .boxes = static_cast<int32_t>(desc.inputs[1].shape[1] / ops::kBoxNumbers),
                              .threshold = desc.attributes.Double("threshold", 0.5),
                              .center_variance = desc.attributes.Double("center_variance", 0.1),
                              .size_variance = desc.attributes.Double("size_variance", 0.2)};
    WorkspaceLayout layout;
    layout.Add(shape.batch * shape.priors * static_cast<int64_t>(sizeof(int32_t)));
    const int64_t candidates_at = layout.Add(shape.batch * shape.boxes * static_cast<int64_t>(sizeof(Candidate)));
    return MakeKernel(layout.bytes(), [=, name = desc.name](const KernelArgs& args) {
      const MatchTensors tensors = {.priors = args.inputs[0].as<float>(),
                                    .targets = args.inputs[1].as<float>(),
                                    .labels = args.outputs[0].as<int32_t>(),
                                    .offsets = args.outputs[1].as<float>(),
                                    .shares = args.outputs[2].as<float>(),
                                    .matched = WorkspaceAt<int32_t>(args, 0),
                                    .candidates = WorkspaceAt<Candidate>(args, candidates_at)};
      return Launch(name, Match, BlocksOf(shape.batch, context), kThreads, 0, context->stream(), shape, tensors);
    });
  };
}

runtime::PrepareKernel PrepareChoose(Context* context) {
  return [=](const NodeDesc& desc) {
    const int64_t batch = desc.inputs[0].shape[0];
    const auto priors = static_cast<int32_t>(desc.inputs[0].shape[1]);
    const double ratio = desc.attributes.Double("ratio", 3);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, Choose, BlocksOf(batch, context), kThreads, 0, context->stream(), args.inputs[0].as<float>(),
                    args.inputs[1].as<int32_t>(), batch, priors, ratio, args.outputs[0].as<int32_t>());
    });
  };
}

}  // namespace

void RegisterMultibox(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kMatchPriors, {f, f}, {i, f, f}, PrepareMatch(context));
  table->Add(ir::OpKind::kHardNegatives, {f, i}, {i}, PrepareChoose(context));
}

}  // namespace ampd::cuda
