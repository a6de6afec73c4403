// What attention's kernels share: a use of it as kernels see it, and what happens to a tile of 64 queries by 64 keys
// (Dao et al. 2022). For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_ATTENTION_TILES_H_
#define AMPD_ENGINE_BACKEND_CUDA_ATTENTION_TILES_H_

#include <cuda_runtime.h>

#include <cmath>
#include <limits>

#include "engine/backend/cuda/device_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/tile_product.h"
#include "engine/ops/attention_dims.h"
#include "engine/ops/compute.h"

namespace ampd::cuda::attention {

using tiles::kMicro;
using tiles::kPitch;
using tiles::kThreads;
using tiles::kTile;
using tiles::Micro;
using tiles::ThreadX;
using tiles::ThreadY;

// The heads of q, k, v or y, each a matrix.
struct Heads : tiles::Rows {
  int64_t batch_stride = 0, head_stride = 0;  // in elements

  // Packed ones lie `row` elements from one time to the next.
  __host__ static Heads Of(const ops::AttentionDims& d, int64_t heads, int64_t length, int64_t size, int64_t row) {
    if (d.packed) return {{row, length, size}, length * row, size};
    return {{size, length, size}, heads * length * size, length * size};
  }
  __device__ int64_t At(int64_t batch, int64_t head) const { return batch * batch_stride + head * head_stride; }
};

// One use of attention, as kernels see it. `queries` hold for q and dq, `outputs` for y and dy.
struct Problem {
  Heads queries, keys, values, outputs;
  int64_t batch = 1, heads = 1, group = 1;  // `group` query heads read one key head
  float scale = 1, softcap = 0;
  bool causal = false, tf32 = false, bool_mask = false;
  int64_t causal_offset = 0;
  int64_t mask_strides[4] = {};  // over batch, head, query, key; 0 where it broadcasts
  const void* mask = nullptr;

  // As AttentionDims::VisibleKeys.
  __host__ __device__ int64_t VisibleKeys(int64_t query) const {
    if (!causal) return keys.length;
    const int64_t end = query + causal_offset + 1;
    return end < 0 ? 0 : end < keys.length ? end : keys.length;
  }
  // Past the last key that a tile of queries from `query` on sees.
  __host__ __device__ int64_t KeysEnd(int64_t query) const {
    const int64_t end = query + kTile;
    return VisibleKeys((end < queries.length ? end : queries.length) - 1);
  }
  // The first tile of queries of which any sees `key` or one behind it.
  __host__ __device__ int64_t FirstQueryTile(int64_t key) const {
    const int64_t query = key - causal_offset;
    return !causal || query < 0 ? 0 : query / kTile;
  }
  __host__ __device__ int64_t query_tiles() const { return CeilDiv(queries.length, kTile); }
  __host__ __device__ int64_t key_tiles() const { return CeilDiv(keys.length, kTile); }
};

// Of a node whose inputs from `first` on are q, k and v, and whose mask, if any, is input `mask`. The mask's address is
// set at Launch.
inline Problem ProblemOf(const runtime::NodeDesc& desc, size_t first, size_t mask) {
  const ops::AttentionDims d = ops::AttentionDimsOf(desc.attributes, desc.inputs[first].shape,
                                                    desc.inputs[first + 1].shape, desc.inputs[first + 2].shape);
  Problem p;
  p.queries = Heads::Of(d, d.heads, d.q_length, d.head_size, d.RowOf(d.heads * d.head_size));
  p.outputs = Heads::Of(d, d.heads, d.q_length, d.value_size, d.heads * d.value_size);
  p.keys = Heads::Of(d, d.kv_heads, d.kv_length, d.head_size, d.RowOf(d.kv_heads * d.head_size));
  p.values = Heads::Of(d, d.kv_heads, d.kv_length, d.value_size, d.RowOf(d.kv_heads * d.value_size));
  p.batch = d.batch, p.heads = d.heads, p.group = d.heads / d.kv_heads;
  p.scale = static_cast<float>(d.scale), p.softcap = static_cast<float>(d.softcap);
  p.causal = d.causal, p.causal_offset = d.causal_offset;
  p.tf32 = desc.attributes.String(ops::kComputeAttribute) == ops::kComputeTf32;
  if (desc.inputs.size() <= mask) return p;
  p.bool_mask = desc.inputs[mask].dtype == DType::kBool;
  const Shape& shape = desc.inputs[mask].shape;
  int64_t stride = 1;
  for (size_t i = 1; i <= shape.size(); ++i) {
    const int64_t extent = shape[shape.size() - i];
    p.mask_strides[4 - i] = extent == 1 ? 0 : stride;
    stride *= extent;
  }
  return p;
}

// Index of the mask's element.
__device__ __forceinline__ int64_t MaskAt(const Problem& p, int64_t batch, int64_t head, int64_t query, int64_t key) {
  return batch * p.mask_strides[0] + head * p.mask_strides[1] + query * p.mask_strides[2] + key * p.mask_strides[3];
}

// A product of a query and a key becomes their score: scaled, capped, masked; -infinity where hidden and outside. Where
// there is a softcap, `slope` gets its derivative, else 1.
__device__ __forceinline__ float Score(const Problem& p, int64_t batch, int64_t head, int64_t query, int64_t key,
                                       float product, float* slope) {
  const float hidden = -std::numeric_limits<float>::infinity();
  *slope = 1;
  if (query >= p.queries.length || key >= p.VisibleKeys(query)) return hidden;
  float score = product * p.scale;
  if (p.softcap > 0) {
    const float t = DeviceMath::Tanh(score / p.softcap);
    score = p.softcap * t;
    *slope = 1 - t * t;
  }
  if (p.mask == nullptr) return score;
  const int64_t at = MaskAt(p, batch, head, query, key);
  if (p.bool_mask) return static_cast<const uint8_t*>(p.mask)[at] != 0 ? score : hidden;
  return score + static_cast<const float*>(p.mask)[at];
}

// Whether every query of the tile sees every key of it, and nothing is done to scores but the scaling.
__device__ __forceinline__ bool IsPlainTile(const Problem& p, int64_t query, int64_t key) {
  return p.mask == nullptr && p.softcap == 0 && query + kTile <= p.queries.length &&
         key + kTile <= p.VisibleKeys(query);
}

// Products of a tile of queries and keys become their scores.
__device__ __forceinline__ void ScoreTile(const Problem& p, int64_t batch, int64_t head, int64_t query, int64_t key,
                                          Micro& c) {
  const bool plain = IsPlainTile(p, query, key);
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      float slope;
      c[i][j] =
          plain ? c[i][j] * p.scale
                : Score(p, batch, head, query + kMicro * ThreadY() + i, key + kMicro * ThreadX() + j, c[i][j], &slope);
    }
  }
}

// Over the 16 threads with the same queries, which all get it.
template <typename Combine>
__device__ __forceinline__ float RowReduce(float value, Combine combine) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace ampd::cuda::attention

#endif  // AMPD_ENGINE_BACKEND_CUDA_ATTENTION_TILES_H_
