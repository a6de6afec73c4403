// Reductions over any axes. Where the innermost axis that is left is kept, they are sums down columns
// (channel_sums.h); where it is reduced, a team of threads takes an output, or a part of one.
#include "engine/backend/cuda/channel_sums.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/reduce_ops.h"
#include "engine/backend/cuda/rows.h"
#include "engine/backend/cuda/strided_index.h"
#include "engine/core/status.h"
#include "engine/core/strided_view.h"

namespace ampd::cuda {
namespace {

using ir::OpKind;
using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;

// Which axes of the input are reduced.
std::vector<bool> ReducedAxes(const NodeDesc& desc) {
  const Shape& x = desc.inputs[0].shape;
  const auto rank = static_cast<int64_t>(x.size());
  std::vector<bool> reduced(x.size(), !desc.attributes.Has("axes"));
  if (desc.op == OpKind::kSumTo) {
    const Shape& y = desc.outputs[0].shape;
    for (size_t d = 0; d < x.size(); ++d) {
      const size_t missing = x.size() - y.size();
      reduced[d] = d < missing || y[d - missing] != x[d];
    }
    return reduced;
  }
  for (int64_t axis : desc.attributes.Ints("axes")) reduced[static_cast<size_t>(axis < 0 ? axis + rank : axis)] = true;
  return reduced;
}

struct Reduction {
  bool columns = false;  // the innermost axis is kept
  StridedIndex kept;     // outputs, or runs of outputs; `columns`: without the innermost
  StridedIndex reduced;  // what one output folds
  // `columns`: as SumChannels() takes it. Else only `splits` and `channels`, the outputs, are used.
  ChannelPlan plan;
  int64_t count = 1;        // elements an output folds
  int64_t split_count = 1;  // of which a team takes so many
  bool warps = false;       // teams are warps, not blocks
  double divisor = 1;       // mean

  unsigned team_blocks() const {
    const int64_t teams = plan.channels * plan.splits;
    return static_cast<unsigned>(std::min<int64_t>(warps ? CeilDiv(teams, kThreads / kWarp) : teams, 1 << 24));
  }
};

// Elements of one output that a team folds at least before another shares the work, and teams that fill any GPU.
constexpr int64_t kElementsOfTeam = 8192, kTeams = 1024;

void PlanTeams(int64_t outputs, int pack, int64_t run, Reduction* r) {
  r->plan.channels = outputs;
  r->plan.width = run % pack == 0 ? pack : 1;
  r->warps = r->count <= int64_t{16} * kWarp * r->plan.width;
  const int64_t splits = std::clamp<int64_t>(kTeams / outputs, 1, CeilDiv(r->count, kElementsOfTeam));
  r->split_count = AlignUp(CeilDiv(r->count, splits), r->plan.width);
  r->plan.splits = CeilDiv(r->count, r->split_count);
}

absl::StatusOr<Reduction> PlanReduction(const NodeDesc& desc) {
  const Shape& x = desc.inputs[0].shape;
  const std::vector<bool> reduced = ReducedAxes(desc);
  const Shape strides = DenseStrides(x);
  StridedView views[2];  // kept, reduced
  bool last_reduced = true;
  for (size_t d = 0; d < x.size(); ++d) {
    views[reduced[d]].extents.push_back(x[d]);
    views[reduced[d]].strides.push_back(strides[d]);
    if (x[d] != 1) last_reduced = reduced[d];
  }
  for (StridedView& view : views) view = Collapsed(view);
  Reduction r{.columns = !last_reduced, .count = views[1].size()};
  if (desc.op == OpKind::kReduceMean) r.divisor = static_cast<double>(r.count);
  const int pack = PackOf(desc.inputs[0].dtype);
  if (r.columns) {
    const int64_t inner = views[0].extents.back();
    views[0].extents.pop_back();
    views[0].strides.pop_back();
    r.plan = PlanChannels(views[0].size(), r.count, inner, pack);
  } else {
    PlanTeams(views[0].size(), pack, views[1].extents.empty() ? 1 : views[1].extents.back(), &r);
  }
  AMPD_ASSIGN_OR_RETURN(r.kept, MakeStridedIndex(desc.name, views[0]));
  AMPD_ASSIGN_OR_RETURN(r.reduced, MakeStridedIndex(desc.name, views[1]));
  return r;
}

// Adds kWidth elements to kSums sums in turn.
template <typename Fold, int kWidth, int kSums, typename T>
__device__ __forceinline__ void AddElements(const T* at, typename Fold::Sum (&sums)[kSums]) {
  const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(at);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) Fold::Add(&sums[j % kSums], pack.values[j]);
}

// Down columns: a body for SumChannels().
template <typename Fold, typename T>
struct ColumnFold : Fold {
  static constexpr int kSums = 1;
  static constexpr int kRun = 1;
  const T* x;
  StridedIndex kept, reduced;
  int64_t count;

  struct Base {
    const T* at;
    int64_t first_row;
  };
  template <int kWidth>
  __device__ __forceinline__ Base Begin(int64_t outer, int64_t channel) const {
    return {x + kept.At(outer) + channel, outer * count};
  }
  template <int kWidth>
  __device__ __forceinline__ void operator()(int64_t row, int64_t, const Base& base,
                                             typename Fold::Sum (&sums)[1][kWidth]) const {
    AddElements<Fold, kWidth>(base.at + reduced.At(row - base.first_row), sums[0]);
  }
};

template <typename To>
struct WriteResult {
  To* y;
  int64_t channels;
  double divisor;

  template <typename Total>
  __device__ void operator()(int64_t outer, int64_t channel, const Total (&totals)[1]) const {
    To* at = y + outer * channels + channel;
    if constexpr (std::is_integral_v<To>) {
      *at = static_cast<To>(totals[0]);
    } else {
      *at = Store<To>(static_cast<float>(static_cast<double>(totals[0]) / divisor));
    }
  }
};

// Along rows: what a team folds goes to partial[split][output], or is the result.
template <typename Fold, typename T, typename To, int kWidth, bool kWarps>
__global__ void __launch_bounds__(kThreads)
    FoldRows(const T* __restrict__ x, Reduction r, typename Fold::Total* __restrict__ partial, WriteResult<To> write) {
  using Team = RowTeam<kWidth, 0, kWarps>;
  using Total = typename Fold::Total;
  // Enough not to wait for each other.
  constexpr int kSums = kWidth < 4 ? kWidth : 4;
  for (int64_t team = Team::First(); team < r.plan.channels * r.plan.splits; team += Team::Step()) {
    const int64_t output = team / r.plan.splits, split = team % r.plan.splits;
    const T* at = x + r.kept.At(output);
    const int64_t end = min((split + 1) * r.split_count, r.count);
    typename Fold::Sum sums[kSums];
#pragma unroll
    for (auto& sum : sums) sum = Fold::Identity();
#pragma unroll 4
    for (int64_t i = split * r.split_count + Team::rank() * kWidth; i < end; i += Team::size() * kWidth) {
      AddElements<Fold, kWidth>(at + r.reduced.At(i), sums);
    }
    Total total = Fold::Finish(sums[0]);
#pragma unroll
    for (int j = 1; j < kSums; ++j) total = Fold::Join(total, Fold::Finish(sums[j]));
    const Total all[1] = {Team::Reduce(total, Fold::Finish(Fold::Identity()), JoinOf<Fold>())};
    if (Team::rank() != 0) continue;
    if (r.plan.splits == 1) {
      write(0, output, all);
    } else {
      partial[split * r.plan.channels + output] = all[0];
    }
  }
}

// What FinishKernel needs to know of a fold.
template <typename Fold>
struct OneTotal : Fold {
  static constexpr int kSums = 1;
};

template <typename Fold, typename T, typename To>
absl::Status LaunchRows(const std::string& name, const Reduction& r, const KernelArgs& args,
                        const WriteResult<To>& write, cudaStream_t stream) {
  using Total = typename Fold::Total;
  auto* partial = static_cast<Total*>(args.workspace);
  AMPD_RETURN_IF_ERROR(VisitChannelWidth<kPack<T>>(r.plan, [&](auto width) {
    return Launch(name, r.warps ? FoldRows<Fold, T, To, width.value, true> : FoldRows<Fold, T, To, width.value, false>,
                  r.team_blocks(), kThreads, 0, stream, args.inputs[0].as<T>(), r, partial, write);
  }));
  if (r.plan.splits == 1) return absl::OkStatus();
  return Launch(name, channel_sums::FinishKernel<OneTotal<Fold>, WriteResult<To>>,
                static_cast<unsigned>(CeilDiv(r.plan.channels, kWarp)), kChannelThreads, 0, stream, write, r.plan,
                partial);
}

template <template <typename> class FoldOf, typename T, typename To = T>
std::unique_ptr<runtime::Kernel> MakeReduce(Context* context, const std::string& name, const Reduction& r) {
  using Fold = FoldOf<T>;
  return MakeKernel(r.plan.workspace_bytes(1), [=](const KernelArgs& args) {
    const WriteResult<To> write{args.outputs[0].as<To>(), r.plan.channels, r.divisor};
    if (!r.columns) return LaunchRows<Fold, T>(name, r, args, write, context->stream());
    const ColumnFold<Fold, T> body{{}, args.inputs[0].as<T>(), r.kept, r.reduced, r.count};
    return SumChannels<kPack<T>>(name, r.plan, body, write, args.workspace, context->stream());
  });
}

template <template <typename> class FoldOf, typename T, typename To = T>
void Add(runtime::KernelTable* table, Context* context, OpKind op, DType from, DType to) {
  table->Add(op, {from}, {to}, [context](const NodeDesc& desc) -> absl::StatusOr<std::unique_ptr<runtime::Kernel>> {
    AMPD_ASSIGN_OR_RETURN(const Reduction r, PlanReduction(desc));
    return MakeReduce<FoldOf, T, To>(context, desc.name, r);
  });
}

// Into the elements' own dtype.
template <template <typename> class FoldOf>
void AddWide(runtime::KernelTable* table, Context* context, OpKind op) {
  Add<FoldOf, float>(table, context, op, DType::kF32, DType::kF32);
  Add<FoldOf, int32_t>(table, context, op, DType::kI32, DType::kI32);
  Add<FoldOf, int64_t>(table, context, op, DType::kI64, DType::kI64);
}
template <template <typename> class FoldOf>
void AddShort(runtime::KernelTable* table, Context* context, OpKind op) {
  Add<FoldOf, Half>(table, context, op, DType::kF16, DType::kF16);
  Add<FoldOf, BFloat16>(table, context, op, DType::kBF16, DType::kBF16);
}

__global__ void __launch_bounds__(kThreads)
    MeanGrad(const float* __restrict__ dy, StridedIndex from, int64_t size, float count, float* __restrict__ dx) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    dx[i] = dy[from.At(i)] / count;
  }
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareMeanGrad(Context* context, const NodeDesc& desc) {
  const Shape &from = desc.inputs[0].shape, &to = desc.outputs[0].shape;
  AMPD_ASSIGN_OR_RETURN(const StridedIndex index, MakeStridedIndex(desc.name, BroadcastView(from, to)));
  const int64_t size = NumElements(to);
  const auto count = static_cast<float>(size / NumElements(from));
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return Launch(name, MeanGrad, BlocksFor(size, kThreads, context->properties().sm_count), kThreads, 0,
                  context->stream(), args.inputs[0].as<float>(), index, size, count, args.outputs[0].as<float>());
  });
}

struct LeastOf {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};
struct ProductOf {
  __device__ double operator()(double a, double b) const { return a * b; }
};

// dy times the product of all other elements: the whole product divided by the element, unless that is zero. A block
// takes a group.
__global__ void __launch_bounds__(kThreads)
    ProdGrad(const float* __restrict__ dy, const float* __restrict__ x, StridedIndex kept, StridedIndex group,
             int64_t groups, int64_t count, float* __restrict__ dx) {
  for (int64_t g = blockIdx.x; g < groups; g += gridDim.x) {
    const int64_t base = kept.At(g);
    double product = 1;  // of what is not zero
    int64_t zeros = 0, first_zero = count;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const float value = x[base + group.At(i)];
      if (value == 0) {
        ++zeros;
        first_zero = min(first_zero, i);
      } else {
        product *= static_cast<double>(value);
      }
    }
    product = BlockReduce(product, 1.0, ProductOf());
    zeros = BlockSum(zeros);
    first_zero = BlockReduce(first_zero, count, LeastOf());
    if (zeros > 1) product *= 0;
    const auto slope = static_cast<double>(dy[g]);
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const int64_t at = base + group.At(i);
      const double others = zeros == 0 ? product / static_cast<double>(x[at]) : product;
      dx[at] = zeros == 0 || i == first_zero ? static_cast<float>(slope * others) : 0.0f;
    }
  }
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> PrepareProdGrad(Context* context, const NodeDesc& desc) {
  const Shape &x = desc.inputs[1].shape, &y = desc.inputs[0].shape, strides = DenseStrides(x);
  StridedView views[2];  // kept, group
  for (size_t d = 0; d < x.size(); ++d) {
    views[y[d] != x[d]].extents.push_back(x[d]);
    views[y[d] != x[d]].strides.push_back(strides[d]);
  }
  for (StridedView& view : views) view = Collapsed(view);
  AMPD_ASSIGN_OR_RETURN(const StridedIndex kept, MakeStridedIndex(desc.name, views[0]));
  AMPD_ASSIGN_OR_RETURN(const StridedIndex group, MakeStridedIndex(desc.name, views[1]));
  const int64_t groups = views[0].size(), count = views[1].size();
  return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
    return Launch(name, ProdGrad, static_cast<unsigned>(std::min<int64_t>(groups, 1 << 24)), kThreads, 0,
                  context->stream(), args.inputs[0].as<float>(), args.inputs[1].as<float>(), kept, group, groups, count,
                  args.outputs[0].as<float>());
  });
}

}  // namespace

void RegisterReduce(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  AddWide<SumFold>(table, context, OpKind::kReduceSum);
  AddWide<ProdFold>(table, context, OpKind::kReduceProd);
  AddWide<MaxFold>(table, context, OpKind::kReduceMax);
  AddWide<MinFold>(table, context, OpKind::kReduceMin);
  AddShort<MaxFold>(table, context, OpKind::kReduceMax);
  AddShort<MinFold>(table, context, OpKind::kReduceMin);
  Add<MaxFold, uint8_t>(table, context, OpKind::kReduceMax, DType::kU8, DType::kU8);
  Add<MinFold, uint8_t>(table, context, OpKind::kReduceMin, DType::kU8, DType::kU8);
  Add<SumFold, float>(table, context, OpKind::kReduceMean, f, f);
  Add<SumFold, float>(table, context, OpKind::kSumTo, f, f);
  AddShort<SumFold>(table, context, OpKind::kSumTo);
  Add<SumFold, Half, float>(table, context, OpKind::kSumTo, DType::kF16, f);
  Add<SumFold, BFloat16, float>(table, context, OpKind::kSumTo, DType::kBF16, f);
  table->Add(OpKind::kReduceMeanGrad, {f}, {f}, [=](const NodeDesc& d) { return PrepareMeanGrad(context, d); });
  table->Add(OpKind::kReduceProdGrad, {f, f, f}, {f}, [=](const NodeDesc& d) { return PrepareProdGrad(context, d); });
}

}  // namespace ampd::cuda
