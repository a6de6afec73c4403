// What attention and its gradient share: where the heads lie in memory, and what happens to a tile of scores.
#ifndef AMPD_ENGINE_BACKEND_CPU_ATTENTION_TILES_H_
#define AMPD_ENGINE_BACKEND_CPU_ATTENTION_TILES_H_

#include <algorithm>
#include <cstdint>

#include "engine/backend/cpu/convert.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/ops/attention_dims.h"

namespace ampd::cpu {

// Queries and keys of a tile: its scores, 32 KiB, stay in the first-level cache.
inline constexpr int64_t kTileQueries = 64;
inline constexpr int64_t kTileKeys = 128;

// Rows of f32, `stride` elements apart.
struct FloatRows {
  const float* data = nullptr;
  int64_t stride = 0;

  FloatRows From(int64_t row) const { return {data + row * stride, stride}; }
};

// One head of q, k, v or of their gradients: `size` elements at each of the times.
struct HeadRows {
  int64_t first = 0;   // element of time 0
  int64_t stride = 0;  // elements from one time to the next
  int64_t size = 0;
};

// `head` of `heads`; packed ones lie `row` elements from one time to the next.
HeadRows HeadOf(const ops::AttentionDims& d, int64_t batch, int64_t head, int64_t heads, int64_t length, int64_t size,
                int64_t row);

// Times begin..end-1 as f32: in place if the tensor is f32, else in `buffer`. `tf32`: in `buffer`, rounded to 10
// fraction bits.
FloatRows LoadHead(const TensorView& tensor, const HeadRows& head, int64_t begin, int64_t end, bool tf32,
                   float* buffer);
// Writes rows [.., head.size], dense at `rows`, to times begin..end-1.
void StoreHead(const float* rows, const TensorView& tensor, const HeadRows& head, int64_t begin, int64_t end);

// What is done to scores between the product and the softmax.
class ScoreRules {
 public:
  // `mask` may be null.
  ScoreRules(const ops::AttentionDims& dims, const TensorView* mask);

  // Past the last key that any query before `queries_end` may see.
  int64_t KeysEnd(int64_t queries_end) const { return dims_.VisibleKeys(queries_end - 1); }

  // Softcap, mask and causality on a tile [queries, kTileKeys] of scaled products. Where `slope` is not null and there
  // is a softcap, it gets the softcap's derivative.
  void Apply(int64_t batch, int64_t head, int64_t query, int64_t queries, int64_t key, int64_t keys, float* scores,
             float* slope) const;

  // Adds a tile of gradients of the masked scores to a mask's gradient.
  void AddMaskGrad(int64_t batch, int64_t head, int64_t query, int64_t queries, int64_t key, int64_t keys,
                   const float* grads, float* mask_grad) const;

  bool has_softcap() const { return dims_.softcap > 0; }

 private:
  int64_t MaskAt(int64_t batch, int64_t head, int64_t query, int64_t key) const;

  ops::AttentionDims dims_;
  const void* mask_ = nullptr;
  bool bool_mask_ = false;
  int64_t mask_strides_[4] = {};  // over batch, head, query, key; 0 where it broadcasts
};

// c [rows, columns] = alpha op(a) op(b) + beta c, on this thread.
void TileProduct(bool transpose_a, bool transpose_b, int64_t rows, int64_t columns, int64_t inner, float alpha,
                 FloatRows a, FloatRows b, float beta, float* c, int64_t c_stride);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_ATTENTION_TILES_H_
