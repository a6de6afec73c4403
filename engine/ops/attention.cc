#include <algorithm>
#include <cmath>

#include "engine/core/status.h"
#include "engine/ops/attention_dims.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace ampd::ops {

using ir::OpKind;
using ir::TensorType;

AttentionDims AttentionDimsOf(const ir::Attributes& attributes, const Shape& q, const Shape& k, const Shape& v) {
  AttentionDims d;
  d.packed = q.size() == 3;
  d.batch = q[0];
  d.heads = d.packed ? attributes.Int("heads", 1) : q[1];
  d.kv_heads = d.packed ? attributes.Int("kv_heads", d.heads) : k[1];
  d.q_length = q[d.packed ? 1 : 2];
  d.kv_length = k[d.packed ? 1 : 2];
  d.head_size = d.packed ? q[2] / d.heads : q[3];
  d.value_size = d.packed ? v[2] / d.kv_heads : v[3];
  d.scale = attributes.Double("scale", 1.0 / std::sqrt(static_cast<double>(d.head_size)));
  d.softcap = attributes.Double("softcap", 0);
  d.causal = attributes.Bool("causal");
  d.causal_offset = attributes.Int("causal_offset", 0);
  d.row = attributes.Int(kRowAttribute, 0);
  return d;
}

AttentionDims SelfAttentionDimsOf(const ir::Attributes& attributes, const Shape& qkv) {
  const int64_t heads = attributes.Int("heads", 1), kv_heads = attributes.Int("kv_heads", heads);
  const int64_t size = qkv[2] / (heads + 2 * kv_heads);
  const Shape keys = {qkv[0], qkv[1], kv_heads * size};
  AttentionDims d = AttentionDimsOf(attributes, {qkv[0], qkv[1], heads * size}, keys, keys);
  d.row = qkv[2];
  return d;
}

namespace {

// What is wrong with a use's constants; empty if nothing is.
std::string WrongNumber(const AttentionDims& d) {
  if (!std::isfinite(d.scale)) return "scale is not finite";
  if (!(d.softcap >= 0 && std::isfinite(d.softcap))) return "softcap must be 0 or positive";
  if (d.causal_offset > (int64_t{1} << 40) || d.causal_offset < -(int64_t{1} << 40)) {
    return "causal_offset is out of range";
  }
  return "";
}

// q, k and v, of which the first stands at `first` among the inputs.
absl::Status ReadDims(OpKind op, const OpCall& call, int first, AttentionDims* dims) {
  const Shape &q = call.inputs[first].shape, &k = call.inputs[first + 1].shape, &v = call.inputs[first + 2].shape;
  const auto bad = [&](const std::string& what) {
    return BadNode(op, call,
                   absl::StrCat(what, ": q ", ShapeString(q), ", k ", ShapeString(k), ", v ", ShapeString(v)));
  };
  if ((q.size() != 3 && q.size() != 4) || k.size() != q.size() || v.size() != q.size()) {
    return bad("needs [batch, time, features] or [batch, heads, time, features] of all three");
  }
  for (const Shape* shape : {&q, &k, &v}) {
    for (int64_t extent : *shape) {
      if (extent < 1 || extent > (int64_t{1} << 40)) return bad("has an extent out of range");
    }
  }
  for (const char* name : {"heads", "kv_heads"}) {
    if (call.attributes.Has(name) && call.attributes.Int(name) < 1) return bad(absl::StrCat(name, " is below 1"));
  }
  const AttentionDims d = AttentionDimsOf(call.attributes, q, k, v);
  if (d.heads % d.kv_heads != 0) return bad(absl::StrCat(d.heads, " heads are not whole ", d.kv_heads, " groups"));
  const int64_t k_size = d.packed ? k[2] / d.kv_heads : k[3];
  const bool whole = !d.packed || (q[2] % d.heads == 0 && k[2] % d.kv_heads == 0 && v[2] % d.kv_heads == 0);
  if (!whole) return bad(absl::StrCat("features are not whole ", d.heads, " and ", d.kv_heads, " heads"));
  const bool fits = k[0] == q[0] && v[0] == q[0] && k_size == d.head_size && v[d.packed ? 1 : 2] == d.kv_length &&
                    (d.packed || v[1] == d.kv_heads);
  if (!fits) return bad("do not fit together");
  if (const std::string wrong = WrongNumber(d); !wrong.empty()) return bad(wrong);
  *dims = d;
  return absl::OkStatus();
}

// self_attention's one tensor, which stands at `input`.
absl::Status ReadSelfDims(OpKind op, const OpCall& call, int input, AttentionDims* dims) {
  const Shape& qkv = call.inputs[input].shape;
  const auto bad = [&](const std::string& what) {
    return BadNode(op, call, absl::StrCat(what, ": ", ShapeString(qkv)));
  };
  if (qkv.size() != 3) return bad("needs [batch, time, features of q, k and v]");
  for (int64_t extent : qkv) {
    if (extent < 1 || extent > (int64_t{1} << 40)) return bad("has an extent out of range");
  }
  const int64_t heads = call.attributes.Int("heads", 1), kv_heads = call.attributes.Int("kv_heads", heads);
  if (heads < 1 || heads > qkv[2]) return bad(absl::StrCat("heads is ", heads));
  if (kv_heads < 1 || heads % kv_heads != 0) {
    return bad(absl::StrCat(heads, " heads are not whole ", kv_heads, " groups"));
  }
  if (qkv[2] % (heads + 2 * kv_heads) != 0) {
    return bad(absl::StrCat("features are not whole ", heads, " + 2 x ", kv_heads, " heads"));
  }
  *dims = SelfAttentionDimsOf(call.attributes, qkv);
  const std::string wrong = WrongNumber(*dims);
  return wrong.empty() ? absl::OkStatus() : bad(wrong);
}

absl::Status CheckMask(OpKind op, const OpCall& call, int input, const AttentionDims& d) {
  if (call.inputs.size() <= static_cast<size_t>(input)) return absl::OkStatus();
  const Shape& mask = call.inputs[input].shape;
  const int64_t scores[] = {d.batch, d.heads, d.q_length, d.kv_length};
  bool fits = mask.size() <= 4;
  for (size_t i = 1; fits && i <= mask.size(); ++i) {
    fits = mask[mask.size() - i] == 1 || mask[mask.size() - i] == scores[4 - i];
  }
  if (fits) return absl::OkStatus();
  return BadNode(op, call,
                 absl::StrCat("mask ", ShapeString(mask), " does not broadcast to the scores ", ShapeString(scores)));
}

Shape OutputShape(const AttentionDims& d) {
  if (d.packed) return {d.batch, d.q_length, d.heads * d.value_size};
  return {d.batch, d.heads, d.q_length, d.value_size};
}

absl::Status InferAttention(const OpCall& call, std::vector<TensorType>* outputs) {
  AttentionDims d;
  AMPD_RETURN_IF_ERROR(ReadDims(OpKind::kAttention, call, 0, &d));
  AMPD_RETURN_IF_ERROR(CheckMask(OpKind::kAttention, call, 3, d));
  *outputs = {{call.inputs[0].dtype, OutputShape(d)}, {DType::kF32, {d.batch, d.heads, d.q_length}}};
  return absl::OkStatus();
}

absl::Status CheckGradInputs(OpKind kOp, const OpCall& call) {
  AttentionDims d;
  AMPD_RETURN_IF_ERROR(ReadDims(kOp, call, 1, &d));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, OutputShape(d)));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 4, OutputShape(d)));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 5, {d.batch, d.heads, d.q_length}));
  return CheckMask(kOp, call, 6, d);
}

absl::Status InferAttentionGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckGradInputs(OpKind::kAttentionGrad, call));
  *outputs = {call.inputs[1], call.inputs[2], call.inputs[3]};
  return absl::OkStatus();
}

absl::Status InferMaskGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  AMPD_RETURN_IF_ERROR(CheckGradInputs(OpKind::kAttentionMaskGrad, call));
  outputs->push_back(call.inputs[6]);
  return absl::OkStatus();
}

absl::Status InferSelfAttention(const OpCall& call, std::vector<TensorType>* outputs) {
  AttentionDims d;
  AMPD_RETURN_IF_ERROR(ReadSelfDims(OpKind::kSelfAttention, call, 0, &d));
  AMPD_RETURN_IF_ERROR(CheckMask(OpKind::kSelfAttention, call, 1, d));
  *outputs = {{call.inputs[0].dtype, OutputShape(d)}, {DType::kF32, {d.batch, d.heads, d.q_length}}};
  return absl::OkStatus();
}

absl::Status InferSelfAttentionGrad(const OpCall& call, std::vector<TensorType>* outputs) {
  constexpr OpKind kOp = OpKind::kSelfAttentionGrad;
  AttentionDims d;
  AMPD_RETURN_IF_ERROR(ReadSelfDims(kOp, call, 1, &d));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 0, OutputShape(d)));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 2, OutputShape(d)));
  AMPD_RETURN_IF_ERROR(RequireShape(kOp, call, 3, {d.batch, d.heads, d.q_length}));
  AMPD_RETURN_IF_ERROR(CheckMask(kOp, call, 4, d));
  outputs->push_back(call.inputs[1]);
  return absl::OkStatus();
}

void SelfAttentionGradient(GradientContext& c) {
  const bool masked = c.node().inputs.size() > 1;
  if (masked && c.needs_grad(1)) return c.RefuseInput(1);
  std::vector<ir::ValueId> inputs = {c.output_grad(0), c.input(0), c.output(0), c.output(1)};
  if (masked) inputs.push_back(c.input(1));
  c.AddInputGrad(0, c.Emit(OpKind::kSelfAttentionGrad, inputs, c.node().attributes, "grad")[0]);
}

void AttentionGradient(GradientContext& c) {
  std::vector<ir::ValueId> inputs = {c.output_grad(0), c.input(0), c.input(1), c.input(2), c.output(0), c.output(1)};
  const bool masked = c.node().inputs.size() > 3;
  if (masked) inputs.push_back(c.input(3));
  const ir::Attributes& attributes = c.node().attributes;
  const std::vector<ir::ValueId> grads = c.Emit(OpKind::kAttentionGrad, inputs, attributes, "grad");
  for (int i = 0; i < 3; ++i) {
    if (c.needs_grad(i)) c.AddInputGrad(i, grads[i]);
  }
  if (masked && c.needs_grad(3)) {
    c.AddInputGrad(3, c.Emit(OpKind::kAttentionMaskGrad, inputs, attributes, "grad_mask")[0]);
  }
}

// Sum of VisibleKeys() over the queries.
double VisiblePairs(const AttentionDims& d) {
  const auto queries = static_cast<double>(d.q_length), keys = static_cast<double>(d.kv_length);
  if (!d.causal) return queries * keys;
  // Query i sees i + first of them, within bounds: none before `ramp`, all from `full` on.
  const auto first = static_cast<double>(d.causal_offset + 1);
  const double ramp = std::min(std::max(0.0, -first), queries);
  const double full = std::min(std::max(ramp, keys - first), queries);
  return (full - ramp) * (ramp + full - 1 + 2 * first) / 2 + (queries - full) * keys;
}

double FlopsOf(const AttentionDims& d, double products) {
  const double pairs = VisiblePairs(d);
  return products * pairs * static_cast<double>(d.batch * d.heads) * static_cast<double>(d.head_size + d.value_size);
}

// A product of q and k, and one of the weights and v.
double Flops(const ir::Attributes& attributes, const TensorType* qkv, double products) {
  return FlopsOf(AttentionDimsOf(attributes, qkv[0].shape, qkv[1].shape, qkv[2].shape), products);
}

double SelfForwardFlops(const OpCall& call, const std::vector<TensorType>&) {
  return FlopsOf(SelfAttentionDimsOf(call.attributes, call.inputs[0].shape), 2);
}
double SelfGradFlops(const OpCall& call, const std::vector<TensorType>&) {
  return FlopsOf(SelfAttentionDimsOf(call.attributes, call.inputs[1].shape), 5);
}

double ForwardFlops(const OpCall& call, const std::vector<TensorType>&) {
  return Flops(call.attributes, call.inputs.data(), 2);
}
// Five products: the scores again, and the gradients of v, of the weights, of q and of k.
double GradFlops(const OpCall& call, const std::vector<TensorType>&) {
  return Flops(call.attributes, call.inputs.data() + 1, 5);
}

double MaskGradFlops(const OpCall& call, const std::vector<TensorType>&) {
  return Flops(call.attributes, call.inputs.data() + 1, 2);
}

}  // namespace

std::vector<OpDef> AttentionDefs() {
  return {{.kind = OpKind::kAttention,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData, Role::kData, Role::kMask},
           .optional_inputs = 1,
           .output_suffixes = {"", ".log_sum"},
           .infer = InferAttention,
           .gradient = AttentionGradient,
           .flops = ForwardFlops},
          {.kind = OpKind::kAttentionGrad,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData, Role::kData, Role::kData, Role::kData, Role::kFloat, Role::kMask},
           .optional_inputs = 1,
           .output_suffixes = {"_q", "_k", "_v"},
           .infer = InferAttentionGrad,
           .flops = GradFlops},
          {.kind = OpKind::kAttentionMaskGrad,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData, Role::kData, Role::kData, Role::kData, Role::kFloat, Role::kFloat},
           .output_suffixes = {""},
           .infer = InferMaskGrad,
           .flops = MaskGradFlops},
          {.kind = OpKind::kSelfAttention,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kMask},
           .optional_inputs = 1,
           .output_suffixes = {"", ".log_sum"},
           .infer = InferSelfAttention,
           .gradient = SelfAttentionGradient,
           .flops = SelfForwardFlops},
          {.kind = OpKind::kSelfAttentionGrad,
           .precision = PrecisionClass::kAllow,
           .inputs = {Role::kData, Role::kData, Role::kData, Role::kFloat, Role::kMask},
           .optional_inputs = 1,
           .output_suffixes = {""},
           .infer = InferSelfAttentionGrad,
           .flops = SelfGradFlops}};
}

}  // namespace ampd::ops
