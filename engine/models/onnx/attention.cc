// Scaled dot-product attention (Attention, opsets 23 and later): the engine's own, which never holds all the scores,
// unless they are asked for.
#include <cmath>
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the optional fourth output holds.
enum ScoreOutput : int64_t { kRaw = 0, kCapped = 1, kBiased = 2, kProbabilities = 3 };

struct Operands {
  V q, k, v;           // [batch, heads, length, size]; k and v with their own number of heads
  V offset = nullptr;  // i32 [batch, 1, 1, 1]: keys before the first query, where they differ by sample
  int64_t past = 0;    // else this many
  int64_t batch, heads, queries, keys, size;
  int64_t kv_heads;
};

// [batch, length, heads * size] as [batch, heads, length, size].
V SplitHeads(Node& n, V x, int64_t heads) {
  const Shape& s = x->type.shape;
  return n.e.Transpose(n.e.Reshape(x, {s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

absl::Status CheckOperands(const Node& n, const Operands& o) {
  const Shape &q = o.q->type.shape, &k = o.k->type.shape, &v = o.v->type.shape;
  for (const Shape* shape : {&q, &k, &v}) {
    if (NumElements(*shape) == 0) return n.Unsupported(absl::StrCat("an operand of ", ShapeString(*shape)));
  }
  const bool fits = q[0] == k[0] && q[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] && q[1] % k[1] == 0;
  if (fits) return absl::OkStatus();
  return n.Bad(absl::StrCat("operands are ", ShapeString(q), ", ", ShapeString(k), ", ", ShapeString(v)));
}

absl::StatusOr<Operands> ReadOperands(Node& n) {
  Operands o{n[0], n[1], n[2]};
  if (n.rank(0) == 3) {
    const int64_t q = n.Int("q_num_heads", 0), kv = n.Int("kv_num_heads", 0);
    const bool fits = n.rank(1) == 3 && n.rank(2) == 3 && q > 0 && kv > 0 && n.shape(0)[2] % q == 0 &&
                      n.shape(1)[2] % kv == 0 && n.shape(2)[2] % kv == 0;
    if (!fits) return n.Bad(absl::StrCat(q, " and ", kv, " heads do not fit the operands"));
    o.q = SplitHeads(n, o.q, q);
    o.k = SplitHeads(n, o.k, kv);
    o.v = SplitHeads(n, o.v, kv);
  } else if (n.rank(0) != 4 || n.rank(1) != 4 || n.rank(2) != 4) {
    return n.Bad("operands need 3 or 4 axes");
  }
  if (n.Has(4) != n.Has(5)) return n.Bad("past_key and past_value go together");
  if (n.Has(4)) {
    if (n.rank(4) != 4 || n.rank(5) != 4) return n.Bad("past_key and past_value need 4 axes");
    o.past = n.shape(4)[2];
    o.k = n.e.Concat({n[4], o.k}, 2);
    o.v = n.e.Concat({n[5], o.v}, 2);
  }
  AMPD_RETURN_IF_ERROR(n.e.status());
  AMPD_RETURN_IF_ERROR(CheckOperands(n, o));
  const Shape &q = o.q->type.shape, &k = o.k->type.shape;
  o.batch = q[0], o.heads = q[1], o.queries = q[2], o.keys = k[2], o.size = q[3], o.kv_heads = k[1];
  return o;
}

// Query heads in groups share a head of keys and values: each is repeated.
V RepeatHeads(Node& n, V x, int64_t heads) {
  const Shape s = x->type.shape;
  if (s[1] == heads) return x;
  const V expanded = n.e.Expand(n.e.Reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], heads / s[1], s[2], s[3]});
  return n.e.Reshape(expanded, {s[0], heads, s[2], s[3]});
}

// i32 [queries, keys]: key - query.
V Distance(Node& n, const Operands& o) {
  if (!n.e.AllowConstant(static_cast<double>(o.queries) * static_cast<double>(o.keys))) return n.e.Placeholder();
  auto distance = std::make_shared<Tensor>(DType::kI32, Shape{o.queries, o.keys});
  for (int64_t i = 0; i < distance->size(); ++i) {
    distance->as<int32_t>()[i] = static_cast<int32_t>(i % o.keys - i / o.keys);
  }
  return n.e.Known(std::move(distance));
}

V And(Node& n, V a, V b) { return a == nullptr ? b : n.e.Binary("logical_and", a, b); }

// Which keys a query may see by position: causal if `causal`, within a window, not padding. Null: all of them.
V Allowed(Node& n, const Operands& o, bool causal) {
  V allowed = nullptr;
  const auto limit = [&](int64_t by) {
    return o.offset != nullptr ? n.e.AddScalar(o.offset, static_cast<double>(by))
                               : n.e.Scalar(DType::kI32, static_cast<double>(o.past + by));
  };
  const int64_t left = n.Int("left_window_size", -1), right = n.Int("right_window_size", -1);
  if (causal) allowed = And(n, allowed, n.e.Binary("less_equal", Distance(n, o), limit(0)));
  if (left >= 0) allowed = And(n, allowed, n.e.Binary("greater_equal", Distance(n, o), limit(-left)));
  if (right >= 0) allowed = And(n, allowed, n.e.Binary("less_equal", Distance(n, o), limit(right)));
  if (o.offset != nullptr) {
    auto keys = std::make_shared<Tensor>(DType::kI32, Shape{o.keys});
    for (int64_t i = 0; i < o.keys; ++i) keys->as<int32_t>()[i] = static_cast<int32_t>(i);
    allowed = And(n, allowed, n.e.Binary("less", n.e.Known(std::move(keys)), limit(o.queries)));
  }
  return allowed;
}

// The mask input, over all keys: those past its end are masked.
V FullMask(Node& n, const Operands& o) {
  V mask = n[3];
  const int64_t have = Emitter::Extent(mask, Emitter::Rank(mask) - 1);
  if (have >= o.keys || have == 1) return mask;
  Shape rest = mask->type.shape;
  rest.back() = o.keys - have;
  const bool boolean = mask->type.dtype == DType::kBool;
  const V filler = n.e.Expand(n.e.Scalar(mask->type.dtype, boolean ? 0 : -kInfinity), rest);
  return n.e.Concat({mask, filler}, Emitter::Rank(mask) - 1);
}

// What scores are masked by, broadcasting to them: a bool where none is added to, else numbers to be added; null:
// nothing.
V MaskOf(Node& n, const Operands& o, bool causal) {
  V allowed = Allowed(n, o, causal), mask = n.Has(3) ? FullMask(n, o) : nullptr;
  if (mask != nullptr && mask->type.dtype == DType::kBool) {
    allowed = And(n, allowed, mask);
    mask = nullptr;
  }
  if (allowed == nullptr || mask == nullptr) return allowed == nullptr ? mask : allowed;
  return n.e.Where(allowed, mask, n.e.Scalar(mask->type.dtype, -kInfinity));
}

V BiasOf(Node& n, V mask) {
  if (mask == nullptr || mask->type.dtype != DType::kBool) return mask;
  return n.e.Where(mask, n.e.Scalar(n.dtype(0), 0), n.e.Scalar(n.dtype(0), -kInfinity));
}

absl::StatusOr<V> SoftmaxOf(Node& n, V scores, V bias) {
  DType precision = scores->type.dtype;
  if (n.Attribute("softmax_precision") != nullptr) {
    const int64_t type = n.Int("softmax_precision", 0);
    // fp64 is not to be had; fp32 is the widest there is.
    if (type != ::onnx::TensorProto::DOUBLE) {
      AMPD_ASSIGN_OR_RETURN(precision, ToDType(static_cast<int>(type)));
    } else {
      precision = DType::kF32;
    }
  }
  const V p = n.e.Cast(n.e.Op1("softmax", {n.e.Cast(scores, precision)}, {{"axis", int64_t{3}}}), n.dtype(0));
  if (bias == nullptr) return p;
  // A query that sees no key gets zeros.
  const V largest = n.e.Reduce("reduce_max", bias, {Emitter::Rank(bias) - 1}, true);
  const V blind = n.e.Binary("equal", largest, n.e.Scalar(bias->type.dtype, -kInfinity));
  return n.e.Where(blind, n.e.Scalar(n.dtype(0), 0), p);
}

struct Scaling {
  double scale = 1, cap = 0;
};

V ByEngine(Node& n, const Operands& o, const Scaling& scaling) {
  // A frontier that is the same for every sample is an attribute; others are masks.
  const bool causal = n.Int("is_causal", 0) != 0, attribute = causal && o.offset == nullptr;
  ir::Attributes attributes{{"scale", scaling.scale}};
  if (scaling.cap > 0) attributes.Set("softcap", scaling.cap);
  if (attribute) attributes.Set("causal", int64_t{1});
  if (attribute && o.past > 0) attributes.Set("causal_offset", o.past);
  std::vector<V> inputs = {o.q, o.k, o.v};
  const V mask = MaskOf(n, o, causal && !attribute);
  if (mask != nullptr) inputs.push_back(mask->type.dtype == DType::kBool ? mask : n.e.Cast(mask, DType::kF32));
  return n.e.Op1("attention", inputs, attributes);
}

// Step by step, where the scores are an output; `shown` becomes what it holds.
absl::StatusOr<V> ByScores(Node& n, const Operands& o, const Scaling& scaling, V* shown) {
  const double root = std::sqrt(scaling.scale);
  const V keys = RepeatHeads(n, o.k, o.heads), values = RepeatHeads(n, o.v, o.heads);
  V scores = n.e.Matmul(n.e.MulScalar(o.q, root), n.e.MulScalar(keys, root), false, true);
  *shown = scores;
  const int64_t mode = n.Int("qk_matmul_output_mode", kRaw);
  if (scaling.cap > 0) {
    scores = n.e.MulScalar(n.e.Unary("tanh", n.e.MulScalar(scores, 1 / scaling.cap)), scaling.cap);
  }
  if (mode == kCapped) *shown = scores;
  const V bias = BiasOf(n, MaskOf(n, o, n.Int("is_causal", 0) != 0));
  if (bias != nullptr) scores = n.e.Add(scores, bias);
  if (mode == kBiased) *shown = scores;
  AMPD_RETURN_IF_ERROR(n.e.status());
  AMPD_ASSIGN_OR_RETURN(const V p, SoftmaxOf(n, scores, bias));
  if (mode == kProbabilities) *shown = p;
  return n.e.Matmul(p, values);
}

absl::Status Attention(Node& n) {
  AMPD_ASSIGN_OR_RETURN(Operands o, ReadOperands(n));
  if (n.Has(6)) {
    if (n.shape(6) != Shape{o.batch} || n.Has(4)) return n.Bad("nonpad_kv_seqlen has to be [batch], without past_key");
    const V valid = n.e.Reshape(n.e.Cast(n[6], DType::kI32), {o.batch, 1, 1, 1});
    o.offset = n.e.AddScalar(valid, -static_cast<double>(o.queries));
  }
  const double usual = 1 / std::sqrt(static_cast<double>(o.size));
  const Scaling scaling{n.Attribute("scale") != nullptr ? n.Float("scale", 1) : usual, n.Float("softcap", 0)};
  V y = nullptr, shown = nullptr;
  if (n.Wants(3)) {
    AMPD_ASSIGN_OR_RETURN(y, ByScores(n, o, scaling, &shown));
  } else {
    y = ByEngine(n, o, scaling);
  }
  if (n.rank(0) == 3 && n.e.ok()) {
    y = n.e.Reshape(n.e.Transpose(y, {0, 2, 1, 3}), {o.batch, o.queries, o.heads * y->type.shape[3]});
  }
  AMPD_RETURN_IF_ERROR(n.Out(0, y));
  AMPD_RETURN_IF_ERROR(n.Out(1, o.k));
  AMPD_RETURN_IF_ERROR(n.Out(2, o.v));
  return n.Out(3, shown);
}

}  // namespace

std::vector<Rule> AttentionRules() { return {{"Attention", Attention, 3}}; }

}  // namespace ampd::models::onnx
