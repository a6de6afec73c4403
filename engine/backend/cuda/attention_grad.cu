// The gradient of attention: weights are computed again from what the forward pass kept of each query (Dao et al. 2022,
// algorithm 4). Queries, keys and values have a kernel each, in which one block adds up all that reaches its tile, so
// that sums have one order.
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
constexpr int64_t kSharedBytes = (kOperandFloats + kTile * kPitch) * 4;

// Inputs of attention_grad and attention_mask_grad.
enum GradInput { kDy, kQ, kK, kV, kY, kLogSum, kMask };

template <typename T>
struct GradTensors {
  const T *dy, *q, *k, *v, *y;
  const float* log_sums;  // [batch, heads, queries], as deltas
  float* deltas;
};

// One warp a query: the sum of dy y over its output.
template <typename T>
__global__ void __launch_bounds__(kThreads) Deltas(Problem p, GradTensors<T> t) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t rows = p.batch * p.heads * p.queries.length, stride = int64_t{gridDim.x} * (kThreads / kWarp);
  for (int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; row < rows; row += stride) {
    const int64_t head = row / p.queries.length, query = row % p.queries.length;
    const int64_t first = p.outputs.At(head / p.heads, head % p.heads) + query * p.outputs.stride;
    float sum = 0;
    for (int64_t e = lane; e < p.outputs.size; e += kWarp) sum = fmaf(Load(t.dy[first + e]), Load(t.y[first + e]), sum);
    sum = WarpReduce(sum, SumOf());
    if (lane == 0) t.deltas[row] = sum;
  }
}

// A tile of one query head and its key head.
struct Place {
  int64_t batch, head, query, key;
};

// Weights of a tile, in `c`.
template <typename T>
__device__ __forceinline__ void WeightTile(const Problem& p, const GradTensors<T>& t, const Place& at, float* operands,
                                           Micro& c) {
  tiles::RowProducts(t.q + p.queries.At(at.batch, at.head), p.queries, at.query,
                     t.k + p.keys.At(at.batch, at.head / p.group), p.keys, at.key, p.tf32, operands, c);
  attention::ScoreTile(p, at.batch, at.head, at.query, at.key, c);
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int64_t query = at.query + kMicro * ThreadY() + i;
    const int64_t row = (at.batch * p.heads + at.head) * p.queries.length + query;
    const float log_sum = query < p.queries.length ? t.log_sums[row] : kInfinity;
    // A row that sees nothing: every weight is 0.
    const float shift = log_sum == -kInfinity ? kInfinity : log_sum;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) c[i][j] = expf(c[i][j] - shift);
  }
}

// Gradients of a tile's scores, in `c`: of the masked ones, or of those before the softcap.
template <bool kMasked, typename T>
__device__ __forceinline__ void ScoreGradTile(const Problem& p, const GradTensors<T>& t, const Place& at,
                                              float* operands, Micro& c) {
  Micro products;
  tiles::RowProducts(t.q + p.queries.At(at.batch, at.head), p.queries, at.query,
                     t.k + p.keys.At(at.batch, at.head / p.group), p.keys, at.key, p.tf32, operands, products);
  tiles::RowProducts(t.dy + p.outputs.At(at.batch, at.head), p.outputs, at.query,
                     t.v + p.values.At(at.batch, at.head / p.group), p.values, at.key, p.tf32, operands, c);
  const bool plain = attention::IsPlainTile(p, at.query, at.key);
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int64_t query = at.query + kMicro * ThreadY() + i;
    const int64_t row = (at.batch * p.heads + at.head) * p.queries.length + query;
    const bool inside = query < p.queries.length;
    const float log_sum = inside ? t.log_sums[row] : kInfinity, delta = inside ? t.deltas[row] : 0;
    const float shift = log_sum == -kInfinity ? kInfinity : log_sum;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const int64_t key = at.key + kMicro * ThreadX() + j;
      float slope = 1, score = products[i][j] * p.scale;
      if (!plain) score = attention::Score(p, at.batch, at.head, query, key, products[i][j], &slope);
      const float grad = expf(score - shift) * (c[i][j] - delta);
      // Outside, a weight of 0 might meet what is not finite.
      const bool there = plain || (inside && key < p.VisibleKeys(query));
      c[i][j] = !there ? 0.0f : kMasked ? grad : grad * slope;
    }
  }
}

enum class Wanted { kQueries, kKeys, kValues };

// A thread's part of a tile on its way to a product, as tile[query][key], or turned.
template <bool kTurned>
__device__ __forceinline__ void PutTile(const Micro& c, bool tf32, float* tile) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const int row = kMicro * ThreadY() + i, column = kMicro * ThreadX() + j;
      tile[kTurned ? column * kPitch + row : row * kPitch + column] = tiles::Operand(c[i][j], tf32);
    }
  }
}

// One block a tile of queries, and kColumns columns of its gradient.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) QueryGrads(Problem p, GradTensors<T> t, int64_t chunks, T* dq) {
  float* operands = DynamicShared<float>();
  float* tile = operands + kOperandFloats;
  const int64_t column = blockIdx.x % chunks * kColumns, tiles = p.query_tiles();
  const int64_t row = blockIdx.x / chunks / tiles;
  Place at{row / p.heads, row % p.heads, (tiles - 1 - blockIdx.x / chunks % tiles) * kTile, 0};
  Micro sums[kColumns / kTile];
#pragma unroll
  for (Micro& sum : sums) tiles::Clear(sum);
  const T* k = t.k + p.keys.At(at.batch, at.head / p.group);
  const int64_t keys_end = p.KeysEnd(at.query);
  for (; at.key < keys_end; at.key += kTile) {
    Micro grads;
    ScoreGradTile<false>(p, t, at, operands, grads);
    PutTile<true>(grads, p.tf32, tile);
    AddTileTimesRows<kColumns>(tile, k, p.keys, at.key, column, p.tf32, operands, sums);
  }
  const float factors[kMicro] = {p.scale, p.scale, p.scale, p.scale};
  tiles::StoreRows<kColumns>(sums, factors, dq + p.queries.At(at.batch, at.head), p.queries, at.query, column);
}

// One block a tile of keys of a key head, and kColumns columns of the gradient of keys or of values.
template <typename T, int kColumns, Wanted kWanted>
__global__ void __launch_bounds__(kThreads, 2) KeyGrads(Problem p, GradTensors<T> t, int64_t chunks, T* to) {
  constexpr bool kOfKeys = kWanted == Wanted::kKeys;
  float* operands = DynamicShared<float>();
  float* tile = operands + kOperandFloats;
  const int64_t column = blockIdx.x % chunks * kColumns, tiles = p.key_tiles();
  const int64_t row = blockIdx.x / chunks / tiles, kv_heads = p.heads / p.group, kv_head = row % kv_heads;
  Place at{row / kv_heads, 0, 0, blockIdx.x / chunks % tiles * kTile};
  Micro sums[kColumns / kTile];
#pragma unroll
  for (Micro& sum : sums) tiles::Clear(sum);
  for (at.head = kv_head * p.group; at.head < (kv_head + 1) * p.group; ++at.head) {
    const T* q = t.q + p.queries.At(at.batch, at.head);
    const T* dy = t.dy + p.outputs.At(at.batch, at.head);
    for (at.query = p.FirstQueryTile(at.key) * kTile; at.query < p.queries.length; at.query += kTile) {
      Micro c;
      if (kOfKeys) {
        ScoreGradTile<false>(p, t, at, operands, c);
      } else {
        WeightTile(p, t, at, operands, c);
      }
      PutTile<false>(c, p.tf32, tile);
      AddTileTimesRows<kColumns>(tile, kOfKeys ? q : dy, kOfKeys ? p.queries : p.outputs, at.query, column, p.tf32,
                                 operands, sums);
    }
  }
  const float factor = kOfKeys ? p.scale : 1.0f;
  const float factors[kMicro] = {factor, factor, factor, factor};
  const attention::Heads& h = kOfKeys ? p.keys : p.values;
  tiles::StoreRows<kColumns>(sums, factors, to + h.At(at.batch, kv_head), h, at.key, column);
}

// What blocks a mask's gradient is cut into: an axis that the mask broadcasts over is summed within a block.
struct MaskBlocks {
  int64_t batches, heads, query_tiles, key_tiles;

  explicit MaskBlocks(const Problem& p)
      : batches(p.mask_strides[0] != 0 ? p.batch : 1),
        heads(p.mask_strides[1] != 0 ? p.heads : 1),
        query_tiles(p.mask_strides[2] != 0 ? p.query_tiles() : 1),
        key_tiles(p.mask_strides[3] != 0 ? p.key_tiles() : 1) {}
};

// A block's sums of a tile go to the mask: summed over queries, by way of shared memory, or keys where it has but one.
__device__ void StoreMaskGrads(const Problem& p, const Place& at, Micro& sums, float* tile, float* to) {
  const bool one_query = p.mask_strides[2] == 0, one_key = p.mask_strides[3] == 0;
  __syncthreads();
  PutTile<false>(sums, false, tile);
  __syncthreads();
  const int rows = one_query ? 1 : kTile, columns = one_key ? 1 : kTile;
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += kThreads) {
    const int row = i / columns, column = i % columns;
    const int64_t query = at.query + row, key = at.key + column;
    if (query >= p.queries.length || key >= p.keys.length) continue;
    float sum = 0;
    for (int r = row; r < (one_query ? kTile : row + 1); ++r) {
      for (int c = column; c < (one_key ? kTile : column + 1); ++c) sum += tile[r * kPitch + c];
    }
    to[attention::MaskAt(p, at.batch, at.head, query, key)] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) MaskGrads(Problem p, GradTensors<T> t, MaskBlocks blocks, float* to) {
  float* operands = DynamicShared<float>();
  int64_t block = blockIdx.x;
  const auto next = [&](int64_t extent) {
    const int64_t index = block % extent;
    block /= extent;
    return index;
  };
  const int64_t key_tile = next(blocks.key_tiles), query_tile = next(blocks.query_tiles), head = next(blocks.heads);
  const Place first{block, head, query_tile * kTile, key_tile * kTile};
  const int64_t batch_end = blocks.batches > 1 ? block + 1 : p.batch, head_end = blocks.heads > 1 ? head + 1 : p.heads;
  const int64_t query_end = blocks.query_tiles > 1 ? first.query + 1 : p.queries.length;
  const int64_t key_end = blocks.key_tiles > 1 ? first.key + 1 : p.keys.length;
  Micro sums;
  tiles::Clear(sums);
  Place at = first;
  for (at.batch = first.batch; at.batch < batch_end; ++at.batch) {
    for (at.head = first.head; at.head < head_end; ++at.head) {
      for (at.query = first.query; at.query < query_end; at.query += kTile) {
        const int64_t seen = min(key_end, p.KeysEnd(at.query));
        for (at.key = first.key; at.key < seen; at.key += kTile) {
          Micro grads;
          ScoreGradTile<true>(p, t, at, operands, grads);
#pragma unroll
          for (int i = 0; i < kMicro; ++i) {
#pragma unroll
            for (int j = 0; j < kMicro; ++j) sums[i][j] += grads[i][j];
          }
        }
      }
    }
  }
  StoreMaskGrads(p, first, sums, operands + kOperandFloats, to);
}

// What launches of one node share.
struct Work {
  Context* context;
  std::string name;
  Problem problem;

  template <typename T>
  absl::Status LaunchDeltas(const Problem& p, const GradTensors<T>& t) const {
    const int64_t rows = p.batch * p.heads * p.queries.length;
    const unsigned blocks = BlocksFor(rows * kWarp, kThreads, context->properties().sm_count);
    return Launch(name, Deltas<T>, blocks, kThreads, 0, context->stream(), p, t);
  }

  template <int kColumns, typename T>
  absl::Status LaunchQueries(const Problem& p, const GradTensors<T>& t, T* dq) const {
    const int64_t chunks = CeilDiv(p.queries.size, kColumns);
    const auto blocks = static_cast<unsigned>(p.batch * p.heads * p.query_tiles() * chunks);
    return Launch(name, QueryGrads<T, kColumns>, blocks, kThreads, kSharedBytes, context->stream(), p, t, chunks, dq);
  }

  template <Wanted kWanted, int kColumns, typename T>
  absl::Status LaunchKeys(const Problem& p, const GradTensors<T>& t, T* to) const {
    const int64_t chunks = CeilDiv(kWanted == Wanted::kKeys ? p.keys.size : p.values.size, kColumns);
    const auto blocks = static_cast<unsigned>(p.batch * (p.heads / p.group) * p.key_tiles() * chunks);
    return Launch(name, KeyGrads<T, kColumns, kWanted>, blocks, kThreads, kSharedBytes, context->stream(), p, t, chunks,
                  to);
  }

  template <typename T>
  absl::Status Gradients(const Problem& p, const GradTensors<T>& t, const KernelArgs& args) const {
    T *dq = args.outputs[0].as<T>(), *dk = args.outputs[1].as<T>(), *dv = args.outputs[2].as<T>();
    AMPD_RETURN_IF_ERROR(LaunchDeltas(p, t));
    AMPD_RETURN_IF_ERROR(p.values.size <= kTile ? (LaunchKeys<Wanted::kValues, kTile>(p, t, dv))
                                                : (LaunchKeys<Wanted::kValues, 2 * kTile>(p, t, dv)));
    if (p.queries.size > kTile) {
      AMPD_RETURN_IF_ERROR((LaunchKeys<Wanted::kKeys, 2 * kTile>(p, t, dk)));
      return LaunchQueries<2 * kTile>(p, t, dq);
    }
    AMPD_RETURN_IF_ERROR((LaunchKeys<Wanted::kKeys, kTile>(p, t, dk)));
    return LaunchQueries<kTile>(p, t, dq);
  }

  template <typename T>
  absl::Status MaskGradient(const Problem& p, const GradTensors<T>& t, const KernelArgs& args) const {
    AMPD_RETURN_IF_ERROR(LaunchDeltas(p, t));
    const MaskBlocks cut(p);
    const auto blocks = static_cast<unsigned>(cut.batches * cut.heads * cut.query_tiles * cut.key_tiles);
    return Launch(name, MaskGrads<T>, blocks, kThreads, kSharedBytes, context->stream(), p, t, cut,
                  args.outputs[0].as<float>());
  }
};

std::unique_ptr<runtime::Kernel> PrepareOwn(Context* context, const NodeDesc& desc) {
  const Work work{context, desc.name, attention::ProblemOf(desc, kQ, kMask)};
  const bool of_mask = desc.op == ir::OpKind::kAttentionMaskGrad;
  const int64_t deltas = work.problem.batch * work.problem.heads * work.problem.queries.length * 4;
  return MakeKernel(deltas, [work, of_mask](const KernelArgs& args) {
    Problem p = work.problem;
    if (args.inputs.size() > kMask) p.mask = args.inputs[kMask].data;
    return VisitData(args.inputs[kDy].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto in = [&](int i) { return args.inputs[i].as<T>(); };
      const GradTensors<T> t = {
          in(kDy), in(kQ), in(kK), in(kV), in(kY), args.inputs[kLogSum].as<float>(), WorkspaceAt<float>(args, 0)};
      return of_mask ? work.MaskGradient(p, t, args) : work.Gradients(p, t, args);
    });
  });
}

std::unique_ptr<runtime::Kernel> MakeFused(const std::string& name, const std::shared_ptr<FusedAttention>& fused) {
  return MakeKernel(fused->workspace_bytes(), [name, fused](const KernelArgs& args) {
    FusedAttentionArgs a;
    a.dy = args.inputs[kDy].data;
    a.q = args.inputs[kQ].data, a.k = args.inputs[kK].data, a.v = args.inputs[kV].data;
    a.y = args.inputs[kY].data;
    a.log_sum = args.inputs[kLogSum].as<float>();
    a.dq = args.outputs[0].data, a.dk = args.outputs[1].data, a.dv = args.outputs[2].data;
    a.workspace = args.workspace;
    return Annotate(fused->Run(a), name);
  });
}

absl::StatusOr<std::unique_ptr<runtime::Kernel>> Prepare(Context* context, const NodeDesc& desc) {
  const FusedAttentionDesc wanted = {.gradient = true,
                                     .dtype = desc.inputs[kQ].dtype,
                                     .dims = ops::AttentionDimsOf(desc.attributes, desc.inputs[kQ].shape,
                                                                  desc.inputs[kK].shape, desc.inputs[kV].shape)};
  AMPD_ASSIGN_OR_RETURN(const std::shared_ptr<FusedAttention> fused,
                        ChooseAttention(context, desc.name, wanted, desc.inputs.size() > kMask));
  if (fused != nullptr) return MakeFused(desc.name, fused);
  return PrepareOwn(context, desc);
}

}  // namespace

void RegisterAttentionGrad(runtime::KernelTable* table, Context* context) {
  constexpr DType f = DType::kF32;
  const auto prepare = [context](const NodeDesc& desc) { return Prepare(context, desc); };
  for (DType t : kDataTypes) {
    table->Add(ir::OpKind::kAttentionGrad, {t, t, t, t, t, f}, {t, t, t}, prepare);
    for (DType mask : {DType::kBool, f}) {
      table->Add(ir::OpKind::kAttentionGrad, {t, t, t, t, t, f, mask}, {t, t, t}, prepare);
    }
    runtime::AddSelfAttentionGrad(table, t, prepare);
    table->Add(ir::OpKind::kAttentionMaskGrad, {t, t, t, t, t, f, f}, {f}, prepare);
  }
}

}  // namespace ampd::cuda
