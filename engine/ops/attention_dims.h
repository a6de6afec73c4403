// The extents and constants of one use of attention, self_attention or a gradient of them, for the shape rule and for
// kernels.
#ifndef AMPD_ENGINE_OPS_ATTENTION_DIMS_H_
#define AMPD_ENGINE_OPS_ATTENTION_DIMS_H_

#include <cstdint>

#include "engine/core/shape.h"
#include "engine/ir/attributes.h"

namespace ampd::ops {

struct AttentionDims {
  int64_t batch = 1;
  int64_t heads = 1;     // of queries; kv_heads divides it
  int64_t kv_heads = 1;  // query head h reads key head h / (heads / kv_heads)
  int64_t q_length = 1;
  int64_t kv_length = 1;
  int64_t head_size = 1;   // of queries and keys
  int64_t value_size = 1;  // of values
  bool packed = false;     // [batch, time, heads * size]; else [batch, heads, time, size]
  // Of packed q, k and v that lie side by side in one tensor: elements from one time to the next; 0: they do not.
  int64_t row = 0;
  double scale = 1;
  double softcap = 0;  // 0: none
  bool causal = false;
  int64_t causal_offset = 0;

  // Elements from one time to the next of packed q, k or v (and their gradients) with `features`.
  int64_t RowOf(int64_t features) const { return row > 0 ? row : features; }
  // Elements of self_attention's tensor before k, and before v.
  int64_t keys_at() const { return heads * head_size; }
  int64_t values_at() const { return (heads + kv_heads) * head_size; }

  // Keys 0 to this - 1 may be seen by query `i`.
  int64_t VisibleKeys(int64_t i) const {
    if (!causal) return kv_length;
    const int64_t end = i + causal_offset + 1;
    return end < 0 ? 0 : end < kv_length ? end : kv_length;
  }
};

// Of inputs that the shape rule of attention accepts: q, k and v of equal rank, 3 or 4, and attributes heads and
// kv_heads of at least 1.
AttentionDims AttentionDimsOf(const ir::Attributes& attributes, const Shape& q, const Shape& k, const Shape& v);

// Of self_attention's [batch, time, (heads + 2 kv_heads) * size], which its shape rule accepts.
AttentionDims SelfAttentionDimsOf(const ir::Attributes& attributes, const Shape& qkv);

// The attribute by which kernels of attention learn of AttentionDims::row; no graph has it.
inline constexpr char kRowAttribute[] = "row";

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_ATTENTION_DIMS_H_
