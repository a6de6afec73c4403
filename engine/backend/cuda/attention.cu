// Attention by tiles of queries and keys with a running softmax (Dao et al. 2022): the scores are never in memory. A
// library's kernel where it takes the use, else the backend's own.
#include "engine/backend/cuda/attention_tiles.h"
#include "engine/backend/cuda/block_sum.h"
#include "engine/backend/cuda/dispatch.h"
#include "engine/backend/cuda/fused_attention.h"
#include "engine/core/status.h"
#include "engine/runtime/self_attention.h"

namespace ampd::cuda {
namespace {

using attention::Problem;
using runtime::KernelArgs;
using runtime::NodeDesc;
using tiles::AddTileTimesRows;
using tiles::kMicro;
using tiles::kOperandFloats;
using tiles::kPitch;
using tiles::kThreads;
using tiles::kTile;
using tiles::Micro;
using tiles::ThreadX;
using tiles::ThreadY;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a thread keeps of the rows of queries it works on.
struct Running {
  float largest[kMicro], sum[kMicro];
};

// Scores become weights relative to each row's largest so far, turned in shared memory for the product with values:
// weights[key][query]. `kept`: what is left of sums from before.
__device__ __forceinline__ void SoftmaxStep(const Problem& p, Micro& scores, Running& running, float (&kept)[kMicro],
                                            float* weights) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const float before = running.largest[i];
    float largest = before;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) largest = MaxOf()(largest, scores[i][j]);
    largest = attention::RowReduce(largest, MaxOf());
    running.largest[i] = largest;
    // Nothing to see yet: any finite shift gives weights of 0.
    const float shift = largest == -kInfinity ? 0.0f : largest;
    kept[i] = expf(before - shift);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const float weight = expf(scores[i][j] - shift);
      sum += weight;
      weights[(kMicro * ThreadX() + j) * kPitch + kMicro * ThreadY() + i] = tiles::Operand(weight, p.tf32);
    }
    running.sum[i] = running.sum[i] * kept[i] + attention::RowReduce(sum, SumOf());
  }
}

template <typename T>
struct ForwardTensors {
  const T *q, *k, *v;
  T* y;
  float* log_sums;
};

// One block a tile of queries of a head, and kColumns columns of its output; `chunks` blocks share a tile of queries
// whose values are longer.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) Forward(Problem p, ForwardTensors<T> t, int64_t chunks) {
  float* operands = DynamicShared<float>();
  float* weights = operands + kOperandFloats;
  // Later tiles see more keys where causal: they start first.
  const int64_t chunk = blockIdx.x % chunks, tiles = p.query_tiles();
  const int64_t query = (tiles - 1 - blockIdx.x / chunks % tiles) * kTile;
  const int64_t row = blockIdx.x / chunks / tiles, batch = row / p.heads, head = row % p.heads;
  const T* q = t.q + p.queries.At(batch, head);
  const T* k = t.k + p.keys.At(batch, head / p.group);
  const T* v = t.v + p.values.At(batch, head / p.group);
  Running running;
  Micro sums[kColumns / kTile];
#pragma unroll
  for (int i = 0; i < kMicro; ++i) running.largest[i] = -kInfinity, running.sum[i] = 0;
#pragma unroll
  for (Micro& sum : sums) tiles::Clear(sum);
  const int64_t keys_end = p.KeysEnd(query);
  for (int64_t key = 0; key < keys_end; key += kTile) {
    Micro scores;
    tiles::RowProducts(q, p.queries, query, k, p.keys, key, p.tf32, operands, scores);
    attention::ScoreTile(p, batch, head, query, key, scores);
    float kept[kMicro];
    SoftmaxStep(p, scores, running, kept, weights);
#pragma unroll
    for (Micro& sum : sums) {
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
#pragma unroll
        for (int j = 0; j < kMicro; ++j) sum[i][j] *= kept[i];
      }
    }
    AddTileTimesRows<kColumns>(weights, v, p.values, key, chunk * kColumns, p.tf32, operands, sums);
  }
  float factors[kMicro];
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const bool hidden = running.sum[i] == 0;
    const int64_t at = query + kMicro * ThreadY() + i;
    factors[i] = hidden ? 0.0f : 1.0f / running.sum[i];
#pragma unroll
    for (int m = 0; hidden && m < kColumns / kTile; ++m) {
      // Values that are not finite would make NaN of weights of 0.
#pragma unroll
      for (int j = 0; j < kMicro; ++j) sums[m][i][j] = 0;
    }
    if (chunk != 0 || ThreadX() != 0 || at >= p.queries.length) continue;
    t.log_sums[row * p.queries.length + at] = hidden ? -kInfinity : running.largest[i] + logf(running.sum[i]);
  }
  tiles::StoreRows<kColumns>(sums, factors, t.y + p.outputs.At(batch, head), p.outputs, query, chunk * kColumns);
}

template <typename T, int kColumns>
absl::Status LaunchForward(const Context& context, const std::string& name, const Problem& p, const KernelArgs& args) {
  const ForwardTensors<T> t = {args.inputs[0].as<T>(), args.inputs[1].as<T>(), args.inputs[2].as<T>(),
                               args.outputs[0].as<T>(), args.outputs[1].as<float>()};
  const int64_t chunks = CeilDiv(p.values.size, kColumns);
  const auto blocks = static_cast<unsigned>(p.batch * p.heads * p.query_tiles() * chunks);
  constexpr int64_t kShared = (kOperandFloats + kTile * kPitch) * 4;
  return Launch(name, Forward<T, kColumns>, blocks, kThreads, kShared, context.stream(), p, t, chunks);
}

constexpr size_t kMask = 3;

std::unique_ptr<runtime::Kernel> PrepareOwn(Context* context, const NodeDesc& desc) {
  const Problem problem = attention::ProblemOf(desc, 0, kMask);
  return MakeKernel(0, [context, problem, name = desc.name](const KernelArgs& args) {
    Problem p = problem;
    if (args.inputs.size() > kMask) p.mask = args.inputs[kMask].data;
    return VisitData(args.inputs[0].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (p.values.size <= kTile) return LaunchForward<T, kTile>(*context, name, p, args);
      return LaunchForward<T, 2 * kTile>(*context, name, p, args);
    });
  });
}

std::unique_ptr<runtime::Kernel> MakeFused(const std::string& name, const std::shared_ptr<FusedAttention>& fused) {
  return MakeKernel(fused->workspace_bytes(), [name, fused](const KernelArgs& args) {
    FusedAttentionArgs a;
    a.q = args.inputs[0].data, a.k = args.inputs[1].data, a.v = args.inputs[2].data;
    a.y = args.outputs[0].data;
    a.log_sum = args.outputs[1].as<float>();
    a.workspace = args.workspace;
    return Annotate(fused->Run(a), name);
  });
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(Context* context, const NodeDesc& desc) {
  const FusedAttentionDesc wanted = {
      .dtype = desc.inputs[0].dtype,
      .dims = ops::AttentionDimsOf(desc.attributes, desc.inputs[0].shape, desc.inputs[1].shape, desc.inputs[2].shape)};
  AMPD_ASSIGN_OR_RETURN(const std::shared_ptr<FusedAttention> fused,
                        ChooseAttention(context, desc.name, wanted, desc.inputs.size() > kMask));
  if (fused != nullptr) return MakeFused(desc.name, fused);
  return PrepareOwn(context, desc);
}

}  // namespace

void RegisterAttention(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  const auto prepare = [context](const NodeDesc& desc) { return Prepare(context, desc); };
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAttention, {t, t, t}, {t, f}, prepare);
    for (DType mask : {DType::kBool, f}) table->Add(ir::OpKind::kAttention, {t, t, t, mask}, {t, f}, prepare);
    runtime::AddSelfAttention(table, t, prepare);
  }
}

}  // namespace ampd::cuda
