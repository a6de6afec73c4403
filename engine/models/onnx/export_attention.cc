// Attention, as products and a softmax.
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"
#include "engine/ops/attention_dims.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using Ints = std::vector<int64_t>;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

class AttentionWriter {
 public:
  explicit AttentionWriter(ExportNode& n)
      : n_(n),
        e_(n.e),
        self_(n.node().op == OpKind::kSelfAttention),
        d_(self_ ? ops::SelfAttentionDimsOf(n.a, n.type(0).shape)
                 : ops::AttentionDimsOf(n.a, n.type(0).shape, n.type(1).shape, n.type(2).shape)),
        mask_(self_ ? 1 : 3),
        batch_(n.dims(0)[0]) {}

  absl::Status Write() {
    AMPD_RETURN_IF_ERROR(n_.OnlyOutputs(1));
    if (n_.type(0).dtype != DType::kF32) return n_.Refuse("has 16-bit operands");
    if (self_) Split();
    const T q = Heads(0, d_.heads, d_.q_length, d_.head_size, false);
    const T k = Repeated(Heads(1, d_.kv_heads, d_.kv_length, d_.head_size, true), d_.head_size, d_.kv_length);
    const T v = Repeated(Heads(2, d_.kv_heads, d_.kv_length, d_.value_size, false), d_.kv_length, d_.value_size);
    const Dims scores = {batch_, {d_.heads}, {d_.q_length}, {d_.kv_length}};
    T s = Scaled(e_.Op("MatMul", {q, k}, scores), d_.scale);
    if (d_.softcap > 0) {
      s = Scaled(e_.Op("Tanh", {Scaled(s, 1 / d_.softcap)}, scores), d_.softcap);
    }
    bool may_hide_all = false;
    s = Causal(Masked(s, &may_hide_all), &may_hide_all);
    T weights = e_.Op("Softmax", {s}, scores, {{"axis", int64_t{3}}});
    if (may_hide_all) weights = ZeroWhereAllIsHidden(s, weights);
    const T y = e_.Op("MatMul", {weights, v}, {batch_, {d_.heads}, {d_.q_length}, {d_.value_size}});
    Bind(y);
    return absl::OkStatus();
  }

 private:
  // The one tensor as q, k and v.
  void Split() {
    const Ints sizes = {d_.heads * d_.head_size, d_.kv_heads * d_.head_size, d_.kv_heads * d_.head_size};
    std::vector<Dims> dims;
    for (const int64_t size : sizes) dims.push_back({batch_, {d_.q_length}, {size}});
    split_ =
        e_.Ops("Split", {e_.Get(n_.in(0)), e_.Ints(sizes, "split")}, dims, {true, true, true}, {{"axis", int64_t{2}}});
  }

  // q, k or v as [N, heads, time, features], or with the last two exchanged.
  T Heads(size_t i, int64_t heads, int64_t time, int64_t features, bool exchanged) {
    if (!d_.packed) {
      return e_.Get(n_.in(i), exchanged ? Arrangement{{0, 1, 3, 2}, {}} : InOrder(4));
    }
    const T split = e_.Reshape(self_ ? split_[i] : e_.Get(n_.in(i)), {batch_, {time}, {heads}, {features}});
    return e_.Transpose(split, exchanged ? Ints{0, 2, 3, 1} : Ints{0, 2, 1, 3});
  }

  // Each head of keys or values for all heads of queries that read it.
  T Repeated(T x, int64_t rows, int64_t columns) {
    const int64_t group = d_.heads / d_.kv_heads;
    if (group == 1) return x;
    const Dims one = {batch_, {d_.kv_heads}, {1}, {rows}, {columns}},
               all = {batch_, {d_.kv_heads}, {group}, {rows}, {columns}};
    return e_.Reshape(e_.Expand(e_.Reshape(x, one), all), {batch_, {d_.heads}, {rows}, {columns}});
  }

  T Scaled(T x, double factor) { return factor == 1 ? x : e_.Op("Mul", {x, e_.Scalar(DType::kF32, factor)}, x->dims); }

  T Masked(T scores, bool* may_hide_all) {
    if (!n_.Has(mask_)) return scores;
    const T mask = e_.Get(n_.in(mask_));
    *may_hide_all = true;
    if (n_.type(mask_).dtype != DType::kBool) return e_.Op("Add", {scores, mask}, scores->dims);
    return e_.Op("Where", {mask, scores, e_.Scalar(DType::kF32, kHidden)}, scores->dims);
  }

  T Causal(T scores, bool* may_hide_all) {
    if (!d_.causal) return scores;
    Tensor seen(DType::kBool, {d_.q_length, d_.kv_length});
    for (int64_t q = 0; q < d_.q_length; ++q) {
      for (int64_t k = 0; k < d_.kv_length && k <= q + d_.causal_offset; ++k) {
        seen.as<uint8_t>()[static_cast<size_t>(q * d_.kv_length + k)] = 1;
      }
    }
    *may_hide_all = *may_hide_all || d_.causal_offset < 0;
    const T mask = e_.Constant("causal", seen);
    return e_.Op("Where", {mask, scores, e_.Scalar(DType::kF32, kHidden)}, scores->dims);
  }

  T ZeroWhereAllIsHidden(T scores, T weights) {
    Dims rows = scores->dims;
    rows[3] = {};
    const T largest = e_.Op("ReduceMax", {scores}, rows, {{"axes", Ints{3}}, {"keepdims", int64_t{1}}});
    const T hidden = e_.Op("Equal", {largest, e_.Scalar(DType::kF32, kHidden)}, rows);
    return e_.Op("Where", {hidden, e_.Scalar(DType::kF32, 0), weights}, weights->dims);
  }

  void Bind(T y) {
    if (!d_.packed) return e_.Bind(n_.out(), InOrder(4), y);
    e_.Bind(n_.out(), InOrder(3), e_.Reshape(e_.Transpose(y, {0, 2, 1, 3}), n_.out_dims()));
  }

  ExportNode& n_;
  Exporter& e_;
  const bool self_;
  const ops::AttentionDims d_;
  const size_t mask_;  // input
  const Dim batch_;
  std::vector<T> split_;  // of self_attention
};

absl::Status Attention(ExportNode& n) { return AttentionWriter(n).Write(); }

}  // namespace

std::vector<Writer> AttentionWriters() {
  return {{OpKind::kAttention, Attention}, {OpKind::kSelfAttention, Attention}};
}

}  // namespace ampd::models::onnx
