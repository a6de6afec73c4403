// Attention with all its scores in memory, index by index (Vaswani et al. 2017, section 3.2.1).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tests/support/op_rows/rows.h"

namespace ampd::testing {
namespace {

using ir::Attributes;
using ir::OpKind;
using runtime::KernelTable;
using runtime::NodeDesc;
using runtime::StepState;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Scores from which a library may compute, and round weights and score gradients to operands of 16 bits on the way.
constexpr int64_t kManyScores = int64_t{1} << 18;

// Index arithmetic of q, k, v and the mask, and the scores with a bound on their error.
class Scores {
 public:
  // q stands at input `first`; the mask, if any, at input `mask`.
  Scores(const NodeDesc& desc, const RefTensors& in, size_t first, size_t mask)
      : q(Operand(desc, in[first])),
        k(Operand(desc, in[first + 1])),
        v(Operand(desc, in[first + 2])),
        mask_(in.size() > mask ? &in[mask] : nullptr) {
    const Attributes& a = desc.attributes;
    packed_ = q.shape.size() == 3;
    batch = q.shape[0];
    heads = packed_ ? a.Int("heads", 1) : q.shape[1];
    kv_heads = packed_ ? a.Int("kv_heads", heads) : k.shape[1];
    queries = q.shape[packed_ ? 1 : 2];
    keys = k.shape[packed_ ? 1 : 2];
    size = packed_ ? q.shape[2] / heads : q.shape[3];
    value_size = packed_ ? v.shape[2] / kv_heads : v.shape[3];
    scale = a.Double("scale", 1 / std::sqrt(static_cast<double>(size)));
    softcap = a.Double("softcap");
    causal_ = a.Bool("causal");
    offset_ = a.Int("causal_offset");
    bool_mask_ = mask_ != nullptr && desc.inputs[mask].dtype == DType::kBool;
    const DType dtype = desc.inputs[first].dtype;
    if (desc.attributes.Bool(kRoundOperands)) roundoff = 1.01 * kTf32Roundoff;
    if (dtype != DType::kF32 && mask_ == nullptr && batch * heads * queries * keys >= kManyScores) {
      // The gradient's are made of weights that may have been rounded already.
      roundoff = 2.01 * UnitRoundoff(dtype);
      underflow = dtype == DType::kF16 ? 0x1p-24 : 0;
    }
  }

  int64_t KvHead(int64_t h) const { return h / (heads / kv_heads); }
  int64_t Q(int64_t b, int64_t h, int64_t i, int64_t e) const { return At(b, h, i, e, heads, queries, size); }
  int64_t K(int64_t b, int64_t h, int64_t j, int64_t e) const { return At(b, KvHead(h), j, e, kv_heads, keys, size); }
  int64_t V(int64_t b, int64_t h, int64_t j, int64_t e) const {
    return At(b, KvHead(h), j, e, kv_heads, keys, value_size);
  }
  int64_t Y(int64_t b, int64_t h, int64_t i, int64_t e) const { return At(b, h, i, e, heads, queries, value_size); }
  int64_t Row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * queries + i; }
  int64_t Mask(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t index[] = {b, h, i, j};
    int64_t at = 0, stride = 1;
    for (size_t d = 1; d <= mask_->shape.size(); ++d) {
      const int64_t extent = mask_->shape[mask_->shape.size() - d];
      at += extent == 1 ? 0 : index[4 - d] * stride;
      stride *= extent;
    }
    return at;
  }

  struct Score {
    double value;  // after softcap and mask; -infinity where hidden
    double slope;  // of the softcap
    double error;
  };
  Score Of(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double dot = 0, magnitude = 0;
    for (int64_t e = 0; e < size; ++e) {
      const double product = scale * q.data[Q(b, h, i, e)] * k.data[K(b, h, j, e)];
      dot += product;
      magnitude += std::fabs(product);
    }
    Score s{dot, 1, Gamma(static_cast<double>(size) + 3) * magnitude};
    if (softcap > 0) {
      s.value = softcap * std::tanh(dot / softcap);
      s.slope = 1 - std::pow(s.value / softcap, 2);
      s.error += Gamma(8) * std::fabs(s.value);
    }
    if (causal_ && j > i + offset_) s.value = -kInfinity;
    if (mask_ != nullptr) {
      const double m = mask_->data[Mask(b, h, i, j)];
      if (!bool_mask_) s.value += m, s.error += std::isfinite(m) ? Gamma(1) * std::fabs(m) : 0;
      if (bool_mask_ && m == 0) s.value = -kInfinity;
    }
    if (std::isfinite(s.value)) s.error += Gamma(1) * std::fabs(s.value);
    return s;
  }

  // As products read an input.
  static RefTensor Operand(const NodeDesc& desc, RefTensor t) {
    for (double& e : t.data) e = desc.attributes.Bool(kRoundOperands) ? RoundTf32(e) : e;
    return t;
  }

  const RefTensor q, k, v;
  // How far, relatively and besides, an operand may be that was not an input.
  double roundoff = 0, underflow = 0;
  int64_t batch, heads, kv_heads, queries, keys, size, value_size;
  double scale, softcap;

 private:
  int64_t At(int64_t b, int64_t h, int64_t t, int64_t e, int64_t of_heads, int64_t length, int64_t of_size) const {
    if (packed_) return ((b * length + t) * of_heads + h) * of_size + e;
    return ((b * of_heads + h) * length + t) * of_size + e;
  }
  const RefTensor* mask_;
  bool packed_, causal_, bool_mask_;
  int64_t offset_;
};

template <typename Visit>
void ForEachRow(const Scores& s, const Visit& visit) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) visit(b, h, i);
    }
  }
}

// y and the logarithm of the sum of exponentials; or bounds on their errors.
RefTensors Forward(const NodeDesc& desc, const RefTensors& in, bool errors) {
  const Scores s(desc, in, 0, 3);
  RefTensors out = {Filled(desc.outputs[0].shape), Filled(desc.outputs[1].shape)};
  ForEachRow(s, [&](int64_t b, int64_t h, int64_t i) {
    std::vector<Scores::Score> row;
    double largest = -kInfinity, error = 0, sum = 0;
    for (int64_t j = 0; j < s.keys; ++j) {
      row.push_back(s.Of(b, h, i, j));
      largest = std::max(largest, row.back().value);
    }
    for (const auto& score : row) {
      sum += largest == -kInfinity ? 0 : std::exp(score.value - largest);
      if (std::isfinite(score.value)) error = std::max(error, score.error + Gamma(2) * (largest - score.value));
    }
    const double log_sum = sum == 0 ? -kInfinity : largest + std::log(sum);
    const double tiles = static_cast<double>(s.keys) / 16 + 1;
    const double relative = 2 * error + Gamma(static_cast<double>(s.keys) + 32 + 8 * tiles);
    out[1].data[s.Row(b, h, i)] = errors ? (sum == 0 ? 0 : relative) : log_sum;
    if (sum == 0) return;
    for (int64_t j = 0; j < s.keys; ++j) {
      const double weight = std::exp(row[j].value - log_sum);
      for (int64_t e = 0; e < s.value_size; ++e) {
        const double value = s.v.data[s.V(b, h, j, e)], product = weight * value;
        const double error = (relative + s.roundoff) * std::fabs(product) + s.underflow * std::fabs(value) + 0x1p-140;
        out[0].data[s.Y(b, h, i, e)] += errors ? error : product;
      }
    }
  });
  return out;
}

enum GradInput { kDy, kQ, kK, kV, kY, kLogSum, kMask };

// Sums over e of dy v, a product of operands, and of dy y, which is none; and of both magnitudes.
struct Dots {
  double weight = 0, delta = 0, magnitude = 0;

  Dots(const Scores& s, const RefTensor& dy, const RefTensors& in, int64_t b, int64_t h, int64_t i, int64_t j) {
    for (int64_t e = 0; e < s.value_size; ++e) {
      const int64_t at = s.Y(b, h, i, e);
      const double value = dy.data[at] * s.v.data[s.V(b, h, j, e)], output = in[kDy].data[at] * in[kY].data[at];
      weight += value;
      delta += output;
      magnitude += std::fabs(value) + std::fabs(output);
    }
  }
};

// Gradients by q, k and v, or of attention_mask_grad by the mask; or bounds on their errors.
RefTensors Gradient(const NodeDesc& desc, const RefTensors& in, bool errors) {
  const Scores s(desc, in, 1, kMask);
  const RefTensor dy = Scores::Operand(desc, in[kDy]);
  RefTensors out;
  for (const ir::TensorType& t : desc.outputs) out.push_back(Filled(t.shape));
  const double terms = static_cast<double>(std::max(s.keys, s.queries * s.heads) + s.value_size);
  ForEachRow(s, [&](int64_t b, int64_t h, int64_t i) {
    const double log_sum = in[kLogSum].data[s.Row(b, h, i)];
    if (log_sum == -kInfinity) return;
    for (int64_t j = 0; j < s.keys; ++j) {
      const Scores::Score score = s.Of(b, h, i, j);
      if (score.value == -kInfinity) continue;
      const double weight = std::exp(score.value - log_sum);
      const Dots dots(s, dy, in, b, h, i, j);
      double relative = 0;
      if (errors) relative = score.error + Gamma(2) * (std::fabs(score.value) + std::fabs(log_sum)) + Gamma(terms + 16);
      // The slope 1 - t^2 is exact to a few roundings of 1.
      const double slope_error = s.softcap > 0 ? 2 * score.error / s.softcap + Gamma(16) : 0;
      const double raw = errors ? weight * relative * dots.magnitude : weight * (dots.weight - dots.delta);
      if (desc.op == OpKind::kAttentionMaskGrad) {
        out[0].data[s.Mask(b, h, i, j)] += raw;
        continue;
      }
      double grad = raw * score.slope;
      if (errors) {
        const double rounded = s.roundoff * weight * std::fabs((dots.weight - dots.delta) * score.slope);
        grad = raw * std::fabs(score.slope) + weight * dots.magnitude * slope_error + rounded + s.underflow / s.scale;
      }
      const auto f = [&](double v) { return errors ? std::fabs(v) : v; };
      for (int64_t e = 0; e < s.size; ++e) {
        out[0].data[s.Q(b, h, i, e)] += grad * f(s.scale * s.k.data[s.K(b, h, j, e)]);
        out[1].data[s.K(b, h, j, e)] += grad * f(s.scale * s.q.data[s.Q(b, h, i, e)]);
      }
      for (int64_t e = 0; e < s.value_size; ++e) {
        const double value = dy.data[s.Y(b, h, i, e)], product = weight * value;
        const double error = (relative + s.roundoff) * std::fabs(product) + s.underflow * std::fabs(value);
        out[2].data[s.V(b, h, j, e)] += errors ? error : product;
      }
    }
  });
  return out;
}

// Inputs of self_attention_grad.
enum SelfGradInput { kSelfDy, kSelfQkv, kSelfY, kSelfLogSum, kSelfMask };

// Columns `begin` to `end` of [batch, time, features].
RefTensor Columns(const RefTensor& t, int64_t begin, int64_t end) {
  RefTensor out = Filled({t.shape[0], t.shape[1], end - begin});
  for (int64_t r = 0; r < t.shape[0] * t.shape[1]; ++r) {
    for (int64_t c = begin; c < end; ++c) out.data[r * (end - begin) + c - begin] = t.data[r * t.shape[2] + c];
  }
  return out;
}

// Beside each other, by the last axis.
RefTensor Joined(const RefTensors& parts) {
  RefTensor out = Filled(parts[0].shape);
  out.shape[2] = 0;
  for (const RefTensor& part : parts) out.shape[2] += part.shape[2];
  out = Filled(out.shape);
  int64_t at = 0;
  for (const RefTensor& part : parts) {
    for (int64_t r = 0; r < part.shape[0] * part.shape[1]; ++r) {
      for (int64_t c = 0; c < part.shape[2]; ++c)
        out.data[r * out.shape[2] + at + c] = part.data[r * part.shape[2] + c];
    }
    at += part.shape[2];
  }
  return out;
}

// The same use of attention, or of attention_grad, and its inputs.
struct Apart {
  NodeDesc desc;
  RefTensors in;

  Apart(const NodeDesc& self, const RefTensors& inputs, size_t qkv) : desc(self), in(inputs) {
    const int64_t heads = self.attributes.Int("heads", 1), kv_heads = self.attributes.Int("kv_heads", heads);
    const int64_t size = inputs[qkv].shape[2] / (heads + 2 * kv_heads), keys = heads * size;
    const RefTensors parts = {Columns(inputs[qkv], 0, keys), Columns(inputs[qkv], keys, keys + kv_heads * size),
                              Columns(inputs[qkv], keys + kv_heads * size, inputs[qkv].shape[2])};
    const DType dtype = self.inputs[qkv].dtype;
    in.erase(in.begin() + static_cast<int64_t>(qkv));
    in.insert(in.begin() + static_cast<int64_t>(qkv), parts.begin(), parts.end());
    desc.inputs.erase(desc.inputs.begin() + static_cast<int64_t>(qkv));
    std::vector<ir::TensorType> types;
    for (const RefTensor& part : parts) types.push_back({dtype, part.shape});
    desc.inputs.insert(desc.inputs.begin() + static_cast<int64_t>(qkv), types.begin(), types.end());
    desc.op = qkv == 0 ? OpKind::kAttention : OpKind::kAttentionGrad;
    if (qkv != 0) desc.outputs = types;
  }
};

RefTensors SelfForward(const NodeDesc& desc, const RefTensors& in, bool errors) {
  const Apart apart(desc, in, 0);
  return Forward(apart.desc, apart.in, errors);
}

RefTensors SelfGradient(const NodeDesc& desc, const RefTensors& in, bool errors) {
  const Apart apart(desc, in, kSelfQkv);
  return {Joined(Gradient(apart.desc, apart.in, errors))};
}

// What the forward pass leaves, rounded as it stores it.
void AdjustGradInputs(const NodeDesc& desc, RefTensors* inputs) {
  NodeDesc forward{.op = OpKind::kAttention, .attributes = desc.attributes};
  RefTensors in = {(*inputs)[kQ], (*inputs)[kK], (*inputs)[kV]};
  for (size_t i : {kQ, kK, kV}) forward.inputs.push_back(desc.inputs[i]);
  if (inputs->size() > kMask) {
    in.push_back((*inputs)[kMask]);
    forward.inputs.push_back(desc.inputs[kMask]);
  }
  forward.outputs = {desc.inputs[kY], desc.inputs[kLogSum]};
  const RefTensors out = Forward(forward, in, false);
  for (size_t o : {0, 1}) {
    const size_t i = kY + o;
    for (int64_t e = 0; e < out[o].size(); ++e) {
      (*inputs)[i].data[e] = RoundToDType(out[o].data[e], desc.inputs[i].dtype);
    }
  }
}

void AdjustSelfGradInputs(const NodeDesc& desc, RefTensors* inputs) {
  Apart apart(desc, *inputs, kSelfQkv);
  AdjustGradInputs(apart.desc, &apart.in);
  (*inputs)[kSelfY] = apart.in[kY];
  (*inputs)[kSelfLogSum] = apart.in[kLogSum];
}

// Where q stands in a use of attention or its gradient without a mask that has kManyScores; else -1.
int FirstOperand(const NodeDesc& desc) {
  if (desc.op != OpKind::kAttention && desc.op != OpKind::kAttentionGrad) return -1;
  const size_t first = desc.op == OpKind::kAttention ? 0 : kQ, mask = desc.op == OpKind::kAttention ? 3 : kMask;
  const Shape &q = desc.inputs[first].shape, &k = desc.inputs[first + 1].shape;
  if (desc.inputs.size() > mask || q.size() != 4 || q[0] * q[1] * q[2] * k[2] < kManyScores) return -1;
  return static_cast<int>(first);
}

// Bool masks hide a third, and every key of query 1; f32 masks have infinities too. Of many scores without a mask keys
// are opposed to queries: scores and the logarithms of their sums lie near -100, where e^-log_sum is past fp32.
RefTensor Input(const NodeDesc& desc, int i, Random* random) {
  const std::map<OpKind, int> masks = {
      {OpKind::kAttention, 3}, {OpKind::kSelfAttention, 1}, {OpKind::kSelfAttentionGrad, kSelfMask}};
  const auto mask = masks.find(desc.op);
  RefTensor drawn;
  if (const int first = FirstOperand(desc); first >= 0 && (i == first || i == first + 1)) {
    const double sign = i == first ? 1 : -1;
    drawn = RandomTensor(random, desc.inputs[i].shape, desc.inputs[i].dtype, 5.75, 6.5);
    for (double& v : drawn.data) v *= sign;
    return drawn;
  }
  if (i != (mask == masks.end() ? static_cast<int>(kMask) : mask->second)) return drawn;
  drawn = Filled(desc.inputs[i].shape);
  const int64_t keys = drawn.shape.back(), rows = drawn.shape.size() > 1 ? drawn.shape[drawn.shape.size() - 2] : 1;
  const bool bools = desc.inputs[i].dtype == DType::kBool;
  for (int64_t e = 0; e < drawn.size(); ++e) {
    const bool hidden = random->Below(3) == 0 || (rows > 1 && e / keys % rows == 1);
    const double added = RoundToDType(random->Uniform(-2, 2), DType::kF32);
    drawn.data[e] = bools ? (hidden ? 0 : 1) : hidden ? -kInfinity : added;
  }
  return drawn;
}

struct Use {
  Attributes attributes;
  Shape q, k, v, mask;  // mask: empty is none
};

// Each of kManyScores or a few more: numbers of keys that are no multiple of a tile of 128, one that is, and a causal
// one.
std::vector<Use> LargeUses() {
  const auto use = [](const Attributes& attributes, int64_t heads, int64_t queries, int64_t keys) {
    return Use{attributes, {1, heads, queries, 8}, {1, heads, keys, 8}, {1, heads, keys, 8}, {}};
  };
  const Attributes none, causal{{"causal", int64_t{1}}};
  return {use(none, 7, 196, 192), use(none, 3, 274, 320), use(none, 1, 263, 1000), use(none, 4, 256, 256),
          use(causal, 8, 192, 192)};
}

std::vector<Use> Uses() {
  const Attributes none, causal{{"causal", int64_t{1}}};
  const auto heads = [](int64_t h, int64_t kv) { return Attributes{{"heads", h}, {"kv_heads", kv}}; };
  const auto with = [](Attributes a, const std::string& name, ir::Attribute value) {
    a.Set(name, std::move(value));
    return a;
  };
  return {
      {heads(1, 1), {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {}},
      {heads(2, 2), {2, 3, 8}, {2, 5, 8}, {2, 5, 6}, {}},
      {with(heads(4, 2), "causal", int64_t{1}), {2, 7, 12}, {2, 5, 6}, {2, 5, 10}, {}},
      {none, {2, 3, 4, 5}, {2, 1, 6, 5}, {2, 1, 6, 7}, {}},
      {causal, {1, 2, 150, 16}, {1, 2, 150, 16}, {1, 2, 150, 16}, {}},
      {with(causal, "causal_offset", int64_t{-2}), {1, 2, 5, 3}, {1, 2, 6, 3}, {1, 2, 6, 3}, {}},
      {with(none, "scale", 0.3), {1, 2, 70, 8}, {1, 2, 300, 8}, {1, 2, 300, 4}, {300}},
      {none, {2, 2, 130, 32}, {2, 2, 130, 32}, {2, 2, 130, 32}, {130, 130}},
      {with(causal, "softcap", 1.5), {2, 4, 5, 6}, {2, 2, 5, 6}, {2, 2, 5, 6}, {2, 1, 5, 5}},
      {with(heads(2, 1), "softcap", 0.7), {2, 4, 8}, {2, 6, 4}, {2, 6, 3}, {4, 6}},
      {none, {2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 4}, {2, 1, 1, 5}},
      {causal, {2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 4}, {1, 2, 3, 1}},
      {causal, {1, 2, 70, 100}, {1, 1, 70, 100}, {1, 1, 70, 150}, {}},
      {none, {1, 1, 65, 66}, {1, 1, 67, 66}, {1, 1, 67, 131}, {}},
  };
}

std::vector<OpShapes> Cases(bool gradient) {
  std::vector<OpShapes> list;
  std::vector<Use> uses = Uses();
  for (Use& use : LargeUses()) uses.push_back(std::move(use));
  for (const Use& use : uses) {
    std::vector<Shape> in = {use.q, use.k, use.v};
    if (gradient) {
      const bool packed = use.q.size() == 3;
      const int64_t heads = packed ? use.attributes.Int("heads") : use.q[1];
      Shape y = use.q;
      y.back() = packed ? use.v[2] / use.attributes.Int("kv_heads") * heads : use.v[3];
      in.insert(in.begin(), y);
      in.push_back(y);
      in.push_back({use.q[0], heads, use.q[packed ? 1 : 2]});
    }
    if (!use.mask.empty()) in.push_back(use.mask);
    list.push_back({use.attributes, in});
  }
  return list;
}

std::vector<OpShapes> GradientCases() {
  std::vector<OpShapes> list;
  for (const OpShapes& c : Cases(false)) {
    if (NumElements(c.inputs[1]) < 300) list.push_back(c);
  }
  return list;
}

OpRow ForwardRow() {
  constexpr DType f = DType::kF32;
  OpRow row{.op = OpKind::kAttention, .cases = Cases(false), .gradient_cases = GradientCases()};
  for (DType t : {f, DType::kF16, DType::kBF16}) {
    row.signatures.push_back({{t, t, t}, {t, f}});
    for (DType mask : {f, DType::kBool}) row.signatures.push_back({{t, t, t, mask}, {t, f}});
  }
  row.reference = [](const NodeDesc& d, const RefTensors& in, const StepState&) { return Forward(d, in, false); };
  row.error = [](const NodeDesc& d, const RefTensors& in, const RefTensors&) { return Forward(d, in, true); };
  row.input = Input;
  return row;
}

OpRow GradRow() {
  constexpr DType f = DType::kF32;
  OpRow row{.op = OpKind::kAttentionGrad, .cases = Cases(true)};
  for (DType t : {f, DType::kF16, DType::kBF16}) {
    row.signatures.push_back({{t, t, t, t, t, f}, {t, t, t}});
    for (DType mask : {f, DType::kBool}) row.signatures.push_back({{t, t, t, t, t, f, mask}, {t, t, t}});
  }
  row.reference = [](const NodeDesc& d, const RefTensors& in, const StepState&) { return Gradient(d, in, false); };
  row.error = [](const NodeDesc& d, const RefTensors& in, const RefTensors&) { return Gradient(d, in, true); };
  row.input = Input;
  row.adjust_inputs = AdjustGradInputs;
  return row;
}

std::vector<OpShapes> SelfCases(bool gradient) {
  struct Use {
    int64_t heads, kv_heads, size;
    Shape times;  // batch, time
    Attributes attributes;
    Shape mask;
  };
  const Attributes none, causal{{"causal", int64_t{1}}};
  std::vector<OpShapes> list;
  for (const Use& use : {Use{1, 1, 1, {1, 1}, none, {}},
                         {2, 2, 4, {2, 3}, none, {}},
                         {4, 2, 5, {2, 7}, causal, {}},
                         {3, 1, 8, {1, 70}, {{"scale", 0.3}}, {}},
                         {2, 2, 16, {2, 130}, causal, {}},
                         {2, 2, 66, {1, 65}, none, {}},
                         {2, 1, 6, {2, 5}, {{"softcap", 1.5}}, {2, 1, 5, 5}},
                         {2, 2, 4, {2, 6}, causal, {2, 1, 1, 6}}}) {
    Attributes attributes = use.attributes;
    attributes.Set("heads", use.heads);
    attributes.Set("kv_heads", use.kv_heads);
    const Shape qkv = {use.times[0], use.times[1], (use.heads + 2 * use.kv_heads) * use.size};
    const Shape y = {use.times[0], use.times[1], use.heads * use.size};
    std::vector<Shape> in = {qkv};
    if (gradient) in = {y, qkv, y, {use.times[0], use.heads, use.times[1]}};
    if (!use.mask.empty()) in.push_back(use.mask);
    list.push_back({attributes, in});
  }
  return list;
}

std::vector<OpRow> SelfAttentionRows() {
  constexpr DType f = DType::kF32;
  OpRow forward{.op = OpKind::kSelfAttention, .cases = SelfCases(false)};
  OpRow gradient{.op = OpKind::kSelfAttentionGrad, .cases = SelfCases(true)};
  for (const OpShapes& c : forward.cases) {
    if (NumElements(c.inputs[0]) < 500) forward.gradient_cases.push_back(c);
  }
  forward.constant_inputs = {1};
  for (DType t : {f, DType::kF16, DType::kBF16}) {
    forward.signatures.push_back({{t}, {t, f}});
    gradient.signatures.push_back({{t, t, t, f}, {t}});
    for (DType mask : {f, DType::kBool}) {
      forward.signatures.push_back({{t, mask}, {t, f}});
      gradient.signatures.push_back({{t, t, t, f, mask}, {t}});
    }
  }
  forward.reference = [](const NodeDesc& d, const RefTensors& in, const StepState&) {
    return SelfForward(d, in, false);
  };
  forward.error = [](const NodeDesc& d, const RefTensors& in, const RefTensors&) { return SelfForward(d, in, true); };
  gradient.reference = [](const NodeDesc& d, const RefTensors& in, const StepState&) {
    return SelfGradient(d, in, false);
  };
  gradient.error = [](const NodeDesc& d, const RefTensors& in, const RefTensors&) { return SelfGradient(d, in, true); };
  gradient.adjust_inputs = AdjustSelfGradInputs;
  forward.input = gradient.input = Input;
  return {forward, gradient};
}

}  // namespace

std::vector<OpRow> AttentionRows() {
  OpRow mask_grad = GradRow();
  mask_grad.op = OpKind::kAttentionMaskGrad;
  mask_grad.signatures.clear();
  constexpr DType f = DType::kF32;
  for (DType t : {f, DType::kF16, DType::kBF16}) mask_grad.signatures.push_back({{t, t, t, t, t, f, f}, {f}});
  mask_grad.cases.erase(std::remove_if(mask_grad.cases.begin(), mask_grad.cases.end(),
                                       [](const OpShapes& c) { return c.inputs.size() <= kMask; }),
                        mask_grad.cases.end());
  std::vector<OpRow> rows = SelfAttentionRows();
  rows.insert(rows.begin(), {ForwardRow(), GradRow(), mask_grad});
  return rows;
}

}  // namespace ampd::testing
