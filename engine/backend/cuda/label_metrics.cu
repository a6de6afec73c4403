#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/normalized_sum.h"
#include "engine/backend/cuda/rows.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

using runtime::KernelArgs;
using runtime::NodeDesc;

constexpr int kThreads = 256;
// Of the one block that adds up a vector.
constexpr int kSumThreads = 1024;

struct Labels {
  bool ignores;
  int64_t ignored, classes;

  Labels(const ir::Attributes& attributes, int64_t n)
      : ignores(attributes.Has("ignore_index")), ignored(attributes.Int("ignore_index")), classes(n) {}
  __device__ __forceinline__ bool counts(int64_t label) const {
    return label >= 0 && label < classes && !(ignores && label == ignored);
  }
};

// 1 where fewer than `k` classes come before the label when sorted by logit, equal ones by index.
template <typename Team>
__global__ void __launch_bounds__(Team::kMostThreads)
    Hits(Team, const float* __restrict__ logits, const int32_t* __restrict__ labels, Labels all, int64_t rows,
         int64_t k, float* __restrict__ hits) {
  for (int64_t row = Team::First(); row < rows; row += Team::Step()) {
    const int64_t label = labels[row];
    bool hit = false;
    if (all.counts(label)) {
      const float* z = logits + row * all.classes;
      const float at_label = z[label];
      int64_t before = 0;
      Team::ForEach(all.classes, [&](int, int64_t column) {
        float v[Team::kWidth];
        LoadFloats(z + column, v);
#pragma unroll
        for (int j = 0; j < Team::kWidth; ++j) {
          before += v[j] > at_label || (v[j] == at_label && column + j < label);
          // A NaN anywhere is more than any k.
          if (v[j] != v[j]) before += all.classes;
        }
      });
      hit = Team::Sum(before) < k;
    }
    if (Team::rank() == 0) hits[row] = hit ? 1.0f : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    Counts(const int32_t* __restrict__ labels, Labels all, int64_t size, float* __restrict__ counts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) {
    counts[i] = all.counts(labels[i]) ? 1.0f : 0.0f;
  }
}

runtime::PrepareKernel PrepareHits(Context* context) {
  return [=](const NodeDesc& desc) {
    const Labels labels(desc.attributes, desc.inputs[0].shape.back());
    const int64_t rows = NumElements(desc.inputs[1].shape), k = desc.attributes.Int("k", 1);
    const RowPlan plan = PlanRows(rows, labels.classes, kPack<float>);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return VisitOnePass<kPack<float>>(plan, [&](auto team) {
        return Launch(name, Hits<decltype(team)>, plan.blocks, plan.threads, 0, context->stream(), team,
                      args.inputs[0].as<float>(), args.inputs[1].as<int32_t>(), labels, rows, k,
                      args.outputs[0].as<float>());
      });
    });
  };
}

runtime::PrepareKernel PrepareCounts(Context* context) {
  return [=](const NodeDesc& desc) {
    const Labels labels(desc.attributes, desc.attributes.Int("classes"));
    const int64_t size = NumElements(desc.inputs[0].shape);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, Counts, BlocksFor(size, kThreads, context->properties().sm_count), kThreads, 0,
                    context->stream(), args.inputs[0].as<int32_t>(), labels, size, args.outputs[0].as<float>());
    });
  };
}

__global__ void __launch_bounds__(kSumThreads)
    NormalizedSum(const float* __restrict__ values, const float* __restrict__ weights, int64_t size,
                  float* __restrict__ y) {
  NormalizeSum(values, weights, size, y);
}

__global__ void __launch_bounds__(kSumThreads)
    ShareOf(const float* __restrict__ dy, const float* __restrict__ weights, int64_t size, float* __restrict__ share) {
  const float each = ShareOfSum(*dy, weights, size);
  if (threadIdx.x == 0) *share = each;
}

__global__ void __launch_bounds__(kThreads)
    Fill(const float* __restrict__ value, int64_t size, float* __restrict__ filled) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const float v = *value;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += stride) filled[i] = v;
}

runtime::PrepareKernel PrepareNormalizedSum(Context* context) {
  return [=](const NodeDesc& desc) {
    const int64_t size = NumElements(desc.inputs[0].shape);
    return MakeKernel(0, [=, name = desc.name](const KernelArgs& args) {
      return Launch(name, NormalizedSum, 1, kSumThreads, 0, context->stream(), args.inputs[0].as<float>(),
                    args.inputs[1].as<float>(), size, args.outputs[0].as<float>());
    });
  };
}

runtime::PrepareKernel PrepareNormalizedSumGrad(Context* context) {
  return [=](const NodeDesc& desc) {
    const int64_t size = NumElements(desc.inputs[1].shape);
    return MakeKernel(sizeof(float), [=, name = desc.name](const KernelArgs& args) -> absl::Status {
      auto* share = WorkspaceAt<float>(args, 0);
      AMPD_RETURN_IF_ERROR(Launch(name, ShareOf, 1, kSumThreads, 0, context->stream(), args.inputs[0].as<float>(),
                                  args.inputs[1].as<float>(), size, share));
      return Launch(name, Fill, BlocksFor(size, kThreads, context->properties().sm_count), kThreads, 0,
                    context->stream(), share, size, args.outputs[0].as<float>());
    });
  };
}

}  // namespace

void RegisterLabelMetrics(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  constexpr DType i = DType::kI32;
  table->Add(ir::OpKind::kArgmaxEqual, {f, i}, {f}, PrepareHits(context));
  table->Add(ir::OpKind::kTopKEqual, {f, i}, {f}, PrepareHits(context));
  table->Add(ir::OpKind::kLabelCounts, {i}, {f}, PrepareCounts(context));
  table->Add(ir::OpKind::kNormalizedSum, {f, f}, {f}, PrepareNormalizedSum(context));
  table->Add(ir::OpKind::kNormalizedSumGrad, {f, f}, {f}, PrepareNormalizedSumGrad(context));
}

}  // namespace ampd::cuda
