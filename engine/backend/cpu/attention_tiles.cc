#include "engine/backend/cpu/attention_tiles.h"

#include <oneapi/dnnl/dnnl.h>

#include <limits>

#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

AMPD_CPU_CLONES void SoftcapLoop(float* __restrict scores, float cap, int64_t n) {
  const float inverse = 1 / cap;
  for (int64_t i = 0; i < n; ++i) scores[i] = cap * TanhF(scores[i] * inverse);
}

AMPD_CPU_CLONES void SlopeLoop(const float* __restrict scores, float cap, int64_t n, float* __restrict slope) {
  const float inverse = 1 / cap;
  for (int64_t i = 0; i < n; ++i) {
    const float t = scores[i] * inverse;
    slope[i] = 1 - t * t;
  }
}

void HideLoop(const uint8_t* mask, int64_t stride, int64_t n, float* scores) {
  for (int64_t i = 0; i < n; ++i) scores[i] = mask[i * stride] != 0 ? scores[i] : kHidden;
}

void AddLoop(const float* mask, int64_t stride, int64_t n, float* scores) {
  for (int64_t i = 0; i < n; ++i) scores[i] += mask[i * stride];
}

}  // namespace

HeadRows HeadOf(const ops::AttentionDims& d, int64_t batch, int64_t head, int64_t heads, int64_t length, int64_t size,
                int64_t row) {
  if (d.packed) return {batch * length * row + head * size, row, size};
  return {(batch * heads + head) * length * size, size, size};
}

FloatRows LoadHead(const TensorView& tensor, const HeadRows& head, int64_t begin, int64_t end, bool tf32,
                   float* buffer) {
  const int64_t first = head.first + begin * head.stride;
  if (tensor.dtype == DType::kF32 && !tf32) return {tensor.as<float>() + first, head.stride};
  const bool dense = head.stride == head.size;
  const int64_t rows = dense ? 1 : end - begin, size = dense ? (end - begin) * head.size : head.size;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = Load(tensor, first + r * head.stride, size, buffer + r * size);
    if (tf32) RoundToTf32(from, size, buffer + r * size);
  }
  return {buffer, head.size};
}

void StoreHead(const float* rows, const TensorView& tensor, const HeadRows& head, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t, rows += head.size) {
    const int64_t first = head.first + t * head.stride;
    FromF32(rows, head.size, tensor.dtype, tensor.as<char>() + first * SizeOf(tensor.dtype));
  }
}

ScoreRules::ScoreRules(const ops::AttentionDims& dims, const TensorView* mask) : dims_(dims) {
  if (mask == nullptr) return;
  mask_ = mask->data;
  bool_mask_ = mask->dtype == DType::kBool;
  int64_t stride = 1;
  for (size_t i = 1; i <= mask->shape.size(); ++i) {
    const int64_t extent = mask->shape[mask->shape.size() - i];
    mask_strides_[4 - i] = extent == 1 ? 0 : stride;
    stride *= extent;
  }
}

int64_t ScoreRules::MaskAt(int64_t batch, int64_t head, int64_t query, int64_t key) const {
  return batch * mask_strides_[0] + head * mask_strides_[1] + query * mask_strides_[2] + key * mask_strides_[3];
}

void ScoreRules::Apply(int64_t batch, int64_t head, int64_t query, int64_t queries, int64_t key, int64_t keys,
                       float* scores, float* slope) const {
  for (int64_t i = 0; i < queries; ++i, scores += kTileKeys) {
    if (has_softcap()) {
      const auto cap = static_cast<float>(dims_.softcap);
      SoftcapLoop(scores, cap, keys);
      if (slope != nullptr) SlopeLoop(scores, cap, keys, slope + i * kTileKeys);
    }
    if (mask_ != nullptr) {
      const int64_t at = MaskAt(batch, head, query + i, key);
      if (bool_mask_) {
        HideLoop(static_cast<const uint8_t*>(mask_) + at, mask_strides_[3], keys, scores);
      } else {
        AddLoop(static_cast<const float*>(mask_) + at, mask_strides_[3], keys, scores);
      }
    }
    const int64_t visible = std::clamp<int64_t>(dims_.VisibleKeys(query + i) - key, 0, keys);
    std::fill(scores + visible, scores + keys, kHidden);
  }
}

void ScoreRules::AddMaskGrad(int64_t batch, int64_t head, int64_t query, int64_t queries, int64_t key, int64_t keys,
                             const float* grads, float* mask_grad) const {
  for (int64_t i = 0; i < queries; ++i, grads += kTileKeys) {
    float* to = mask_grad + MaskAt(batch, head, query + i, key);
    for (int64_t j = 0; j < keys; ++j) to[j * mask_strides_[3]] += grads[j];
  }
}

void TileProduct(bool transpose_a, bool transpose_b, int64_t rows, int64_t columns, int64_t inner, float alpha,
                 FloatRows a, FloatRows b, float beta, float* c, int64_t c_stride) {
  // Fails for wrong arguments only.
  dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', rows, columns, inner, alpha, a.data, a.stride, b.data,
             b.stride, beta, c, c_stride);
}

}  // namespace ampd::cpu
