// Operations on single elements: arithmetic, activations, comparisons, logic and casts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/status.h"
#include "engine/models/onnx/node.h"
#include "engine/models/onnx/tensor_proto.h"

namespace ampd::models::onnx {
namespace {

// Element of a small operation table: ONNX's name and the engine's.
struct NamePair {
  const char* onnx;
  const char* engine;
};

constexpr NamePair kUnary[] = {
    {"Exp", "exp"},           {"Log", "log"},         {"Sqrt", "sqrt"},       {"Reciprocal", "reciprocal"},
    {"Erf", "erf"},           {"Floor", "floor"},     {"Ceil", "ceil"},       {"Round", "round"},
    {"Sin", "sin"},           {"Cos", "cos"},         {"Sigmoid", "sigmoid"}, {"Tanh", "tanh"},
    {"Softplus", "softplus"}, {"Not", "logical_not"}, {"IsNaN", "is_nan"},
};

constexpr NamePair kBinary[] = {
    {"Add", "add"},         {"Sub", "sub"},         {"Mul", "mul"},
    {"Div", "div"},         {"Equal", "equal"},     {"Less", "less"},
    {"Max", "max"},         {"Greater", "greater"}, {"LessOrEqual", "less_equal"},
    {"Min", "min"},         {"Sum", "add"},         {"GreaterOrEqual", "greater_equal"},
    {"Mean", "add"},        {"And", "logical_and"}, {"Or", "logical_or"},
    {"Xor", "logical_xor"},
};

template <size_t n>
const char* EngineName(const NamePair (&table)[n], const std::string& op) {
  for (const NamePair& pair : table) {
    if (op == pair.onnx) return pair.engine;
  }
  return "";
}

absl::Status Unary(Node& n) { return n.Out(n.e.Unary(EngineName(kUnary, n.op()), n[0])); }

// Before opset 7, `b` broadcasts from `axis` of `a` on, and only where the attribute says so.
V AlignToAxis(Node& n, V a, V b) {
  if (n.opset() >= 7 || n.Int("broadcast", 0) == 0 || n.Attribute("axis") == nullptr) return b;
  const int64_t rank = Emitter::Rank(a), own = Emitter::Rank(b);
  const int64_t axis = n.Int("axis", 0) < 0 ? n.Int("axis", 0) + rank : n.Int("axis", 0);
  if (axis < 0 || axis + own > rank) return n.e.Fail(n.Bad(absl::StrCat("axis is ", n.Int("axis", 0))));
  Shape shape(b->type.shape);
  shape.resize(static_cast<size_t>(own + rank - axis - own), 1);
  return n.e.Reshape(b, shape);
}

absl::Status Binary(Node& n) {
  V b = AlignToAxis(n, n[0], n[1]);
  const bool equality = n.op() == "Equal" && n.dtype(0) == DType::kBool && n.dtype(1) == DType::kBool;
  if (equality) return n.Out(n.e.Unary("logical_not", n.e.Binary("logical_xor", n[0], b)));
  return n.Out(n.e.Binary(EngineName(kBinary, n.op()), n[0], b));
}

// Max, Min, Sum, Mean of one or more operands.
absl::Status Variadic(Node& n) {
  V y = n[0];
  for (int i = 1; i < n.inputs(); ++i) {
    if (!n.Has(i)) return n.Bad(absl::StrCat("input ", i, " is missing"));
    y = n.e.Binary(EngineName(kBinary, n.op()), y, n[i]);
  }
  if (n.op() == "Mean" && n.inputs() > 1) y = n.e.Div(y, n.e.Scalar(y->type.dtype, n.inputs()));
  return n.Out(y);
}

absl::Status Neg(Node& n) {
  if (IsFloat(n.dtype(0)) || n[0]->host != nullptr) return n.Out(n.e.Unary("neg", n[0]));
  return n.Out(n.e.Sub(n.e.Scalar(n.dtype(0), 0), n[0]));
}

absl::Status Abs(Node& n) {
  if (n.dtype(0) == DType::kU8) return n.Out(n[0]);
  if (IsFloat(n.dtype(0)) || n[0]->host != nullptr) return n.Out(n.e.Unary("abs", n[0]));
  return n.Out(n.e.Binary("max", n[0], n.e.Sub(n.e.Scalar(n.dtype(0), 0), n[0])));
}

absl::Status Sign(Node& n) {
  if (IsFloat(n.dtype(0))) return n.Out(n.e.Unary("sign", n[0]));
  const DType t = n.dtype(0);
  const V zero = n.e.Scalar(t, 0), one = n.e.Scalar(t, 1);
  const V below = t == DType::kU8 ? zero : n.e.Where(n.e.Binary("less", n[0], zero), n.e.Scalar(t, -1), zero);
  return n.Out(n.e.Where(n.e.Binary("greater", n[0], zero), one, below));
}

absl::Status Relu(Node& n) {
  if (IsFloat(n.dtype(0))) return n.Out(n.e.Unary("relu", n[0]));
  return n.Out(n.e.Binary("max", n[0], n.e.Scalar(n.dtype(0), 0)));
}

absl::Status LeakyRelu(Node& n) { return n.Out(n.e.Unary("leaky_relu", n[0], {{"alpha", n.Float("alpha", 0.01)}})); }

absl::Status Elu(Node& n) { return n.Out(n.e.Unary("elu", n[0], {{"alpha", n.Float("alpha", 1)}})); }

// Klambauer et al. 2017: gamma * elu(x; alpha).
absl::Status Selu(Node& n) {
  const V y = n.e.Unary("elu", n[0], {{"alpha", n.Float("alpha", 1.6732631921768188)}});
  return n.Out(n.e.MulScalar(y, n.Float("gamma", 1.0507010221481323)));
}

// Barron 2017: max(0, x) + min(0, alpha (exp(x / alpha) - 1)).
absl::Status Celu(Node& n) {
  const double alpha = n.Float("alpha", 1);
  const V y = n.e.Unary("elu", n.e.MulScalar(n[0], 1 / alpha), {{"alpha", 1.0}});
  return n.Out(n.e.MulScalar(y, alpha));
}

absl::Status Gelu(Node& n) {
  return n.Out(n.e.Unary("gelu", n[0], {{"approximate", n.String("approximate", "none")}}));
}

absl::Status HardSigmoid(Node& n) {
  return n.Out(n.e.Unary("hard_sigmoid", n[0], {{"alpha", n.Float("alpha", 0.2)}, {"beta", n.Float("beta", 0.5)}}));
}

absl::Status HardSwish(Node& n) {
  return n.Out(n.e.Mul(n[0], n.e.Unary("hard_sigmoid", n[0], {{"alpha", 1.0 / 6}, {"beta", 0.5}})));
}

absl::Status Swish(Node& n) {
  return n.Out(n.e.Mul(n[0], n.e.Unary("sigmoid", n.e.MulScalar(n[0], n.Float("alpha", 1)))));
}

absl::Status Softsign(Node& n) { return n.Out(n.e.Div(n[0], n.e.AddScalar(n.e.Unary("abs", n[0]), 1))); }

absl::Status Mish(Node& n) { return n.Out(n.e.Mul(n[0], n.e.Unary("tanh", n.e.Unary("softplus", n[0])))); }

absl::Status ThresholdedRelu(Node& n) {
  const V alpha = n.e.Scalar(n.dtype(0), n.Float("alpha", 1));
  return n.Out(n.e.Where(n.e.Binary("greater", n[0], alpha), n[0], n.e.Scalar(n.dtype(0), 0)));
}

absl::Status PRelu(Node& n) {
  V slope = n[1];
  // Before opset 7 a slope holds for the second axis.
  if (n.opset() < 7 && n.rank(1) == 1 && n.rank(0) > 2) {
    Shape shape{n.shape(1)[0]};
    shape.resize(static_cast<size_t>(n.rank(0) - 1), 1);
    slope = n.e.Reshape(slope, shape);
  }
  const V zero = n.e.Scalar(n.dtype(0), 0);
  return n.Out(n.e.Where(n.e.Binary("less", n[0], zero), n.e.Mul(n[0], slope), n[0]));
}

absl::Status Pow(Node& n) {
  const DType base = n.dtype(0), exponent = n.dtype(1);
  const V power = AlignToAxis(n, n[0], n[1]);
  if (base == exponent) return n.Out(n.e.Binary("pow", n[0], power));
  if (!IsFloat(base) && IsFloat(exponent)) {
    const V y = n.e.Binary("pow", n.e.Cast(n[0], DType::kF32), n.e.Cast(power, DType::kF32));
    return n.Out(n.e.Cast(y, base));
  }
  return n.Out(n.e.Binary("pow", n[0], n.e.Cast(power, base)));
}

// Python's % on integers and floats; with fmod, C's.
absl::Status Mod(Node& n) {
  if (n.Int("fmod", 0) == 0) return n.Out(n.e.Binary("mod", n[0], n[1]));
  const V a = n[0], b = n[1];
  const DType t = n.dtype(0);
  const V zero = n.e.Scalar(t, 0);
  if (!IsFloat(t)) return n.Out(n.e.Sub(a, n.e.Mul(n.e.Div(a, b), b)));
  // The magnitude of the remainder by |b|, with the sign of a.
  const V r = n.e.Binary("mod", n.e.Unary("abs", a), n.e.Unary("abs", b));
  return n.Out(n.e.Where(n.e.Binary("less", a, zero), n.e.Unary("neg", r), r));
}

// A known bound of Clip, or an input of opset 11 and later.
absl::Status Clip(Node& n) {
  V y = n[0];
  const DType t = n.dtype(0);
  const bool attributes = n.opset() < 11;
  const auto bound = [&](int input, const char* name) -> V {
    if (!attributes) return n.Has(input) ? n[input] : nullptr;
    return n.Attribute(name) != nullptr ? n.e.Scalar(t, n.Float(name, 0)) : nullptr;
  };
  const V low = bound(1, "min"), high = bound(2, "max");
  const bool known = (low == nullptr || low->host != nullptr) && (high == nullptr || high->host != nullptr);
  if (known && IsFloat(t)) {
    ir::Attributes limits;
    if (low != nullptr && low->host->size() == 1) limits.Set("min", DoubleAt(low->host->view(), 0));
    if (high != nullptr && high->host->size() == 1) limits.Set("max", DoubleAt(high->host->view(), 0));
    // Where the limits cross, the upper one holds.
    if (limits.Has("min") && limits.Has("max") && limits.Double("min") > limits.Double("max")) {
      limits.Set("min", limits.Double("max"));
    }
    return n.Out(limits.items().empty() ? y : n.e.Unary("clip", y, limits));
  }
  if (low != nullptr) y = n.e.Binary("max", y, low);
  if (high != nullptr) y = n.e.Binary("min", y, high);
  return n.Out(y);
}

absl::Status Where(Node& n) { return n.Out(n.e.Where(n[0], n[1], n[2])); }

absl::Status IsInf(Node& n) {
  if (n.Int("detect_positive", 1) != 0 && n.Int("detect_negative", 1) != 0) return n.Out(n.e.Unary("is_inf", n[0]));
  const double infinity = std::numeric_limits<double>::infinity();
  if (n.Int("detect_positive", 1) != 0) return n.Out(n.e.Binary("equal", n[0], n.e.Scalar(n.dtype(0), infinity)));
  if (n.Int("detect_negative", 1) != 0) return n.Out(n.e.Binary("equal", n[0], n.e.Scalar(n.dtype(0), -infinity)));
  return n.Out(n.e.Expand(n.e.Known(HostFilled(DType::kBool, {}, 0)), n.shape(0)));
}

V CastTo(Node& n, V x, DType dtype) { return n.e.Cast(x, dtype, IsF8(dtype) && n.Int("saturate", 1) != 0); }

absl::Status Cast(Node& n) {
  AMPD_ASSIGN_OR_RETURN(const DType dtype, ToDType(static_cast<int>(n.Int("to", 0))));
  return n.Out(CastTo(n, n[0], dtype));
}

absl::Status CastLike(Node& n) { return n.Out(CastTo(n, n[0], n.dtype(1))); }

absl::Status Identity(Node& n) { return n.Out(n[0]); }

}  // namespace

std::vector<Rule> ElementwiseRules() {
  std::vector<Rule> rules = {
      {"Neg", Neg, 1},
      {"Abs", Abs, 1},
      {"Sign", Sign, 1},
      {"Relu", Relu, 1},
      {"LeakyRelu", LeakyRelu, 1},
      {"Elu", Elu, 1},
      {"Selu", Selu, 1},
      {"Celu", Celu, 1},
      {"Gelu", Gelu, 1},
      {"HardSigmoid", HardSigmoid, 1},
      {"HardSwish", HardSwish, 1},
      {"Swish", Swish, 1},
      {"Softsign", Softsign, 1},
      {"Mish", Mish, 1},
      {"ThresholdedRelu", ThresholdedRelu, 1},
      {"PRelu", PRelu, 2},
      {"Pow", Pow, 2},
      {"Mod", Mod, 2},
      {"Clip", Clip, 1},
      {"Where", Where, 3},
      {"IsInf", IsInf, 1},
      {"Cast", Cast, 1},
      {"CastLike", CastLike, 2},
      {"Identity", Identity, 1},
  };
  for (const NamePair& pair : kUnary) rules.push_back({pair.onnx, Unary, 1});
  for (const NamePair& pair : kBinary) {
    const std::string name = pair.onnx;
    const bool variadic = name == "Max" || name == "Min" || name == "Sum" || name == "Mean";
    rules.push_back({pair.onnx, variadic ? Variadic : Binary, variadic ? 1 : 2});
  }
  return rules;
}

}  // namespace ampd::models::onnx
