// The elementwise operations, as scalar functions every backend shares: one element in fp32 (floats) or int64
// (integers), rounded by the caller into the operation's dtype. docs/ops.md says what each means.
//
// `M` gives a backend's functions of f32: Exp, Expm1, Log, Log1p (of [0, 1]), Sigmoid, Tanh, Erf, NormalCdf, NormalPdf,
// Sin, Cos, Pow, Remainder (C's fmodf), Floor, Ceil, RoundEven, Sqrt. All pure; thread-safe. constexpr makes them
// callable on a GPU.
#ifndef AMPD_ENGINE_OPS_ELEMENTWISE_H_
#define AMPD_ENGINE_OPS_ELEMENTWISE_H_

#include <cstdint>
#include <limits>

namespace ampd::ops {

// A node's attributes, as the functions take them.
struct ElementwiseConstants {
  float alpha = 0;  // leaky_relu, elu, hard_sigmoid; clip: min, -infinity if absent
  float beta = 0;   // hard_sigmoid; clip: max, +infinity if absent
  // clip of integers, in their range.
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  // gelu: tanh form. mod: the result has the dividend's sign. where_grad: of the second branch. is_inf: 1 positive, 2
  // negative infinities count, as bits.
  int32_t flags = 0;
};

namespace elementwise {

using C = ElementwiseConstants;

#define AMPD_ELEMENTWISE(name, ...) \
  template <class M>                \
  [[gnu::always_inline]] constexpr float name(const C& c [[maybe_unused]], __VA_ARGS__)

// Functions.
AMPD_ELEMENTWISE(Neg, float x) { return -x; }
AMPD_ELEMENTWISE(Exp, float x) { return M::Exp(x); }
AMPD_ELEMENTWISE(Log, float x) { return M::Log(x); }
AMPD_ELEMENTWISE(Sqrt, float x) { return M::Sqrt(x); }
AMPD_ELEMENTWISE(SqrtGrad, float dy, float y) { return dy / (2.0f * y); }
AMPD_ELEMENTWISE(Abs, float x) { return x < 0 ? -x : x + 0.0f; }
AMPD_ELEMENTWISE(AbsGrad, float dy, float x) { return x > 0 ? dy : (x < 0 ? -dy : x * 0.0f); }
AMPD_ELEMENTWISE(Reciprocal, float x) { return 1.0f / x; }
AMPD_ELEMENTWISE(ReciprocalGrad, float dy, float y) { return -(dy * y) * y; }
AMPD_ELEMENTWISE(Erf, float x) { return M::Erf(x); }
// 2 / sqrt(pi) e^-x^2 = 2 sqrt(2) pdf(sqrt(2) x).
AMPD_ELEMENTWISE(ErfGrad, float dy, float x) { return dy * (2.82842712f * M::NormalPdf(1.41421356f * x)); }
AMPD_ELEMENTWISE(Sign, float x) { return x > 0 ? 1.0f : (x < 0 ? -1.0f : x); }
AMPD_ELEMENTWISE(Floor, float x) { return M::Floor(x); }
AMPD_ELEMENTWISE(Ceil, float x) { return M::Ceil(x); }
AMPD_ELEMENTWISE(Round, float x) { return M::RoundEven(x); }
AMPD_ELEMENTWISE(Sin, float x) { return M::Sin(x); }
AMPD_ELEMENTWISE(SinGrad, float dy, float x) { return dy * M::Cos(x); }
AMPD_ELEMENTWISE(Cos, float x) { return M::Cos(x); }
AMPD_ELEMENTWISE(CosGrad, float dy, float x) { return -dy * M::Sin(x); }
AMPD_ELEMENTWISE(ZerosLike, float) { return 0; }

// Activations. Comparisons are written so that NaN takes the branch that keeps it.
AMPD_ELEMENTWISE(Relu, float x) { return x <= 0 ? 0.0f : x; }
AMPD_ELEMENTWISE(ReluGrad, float dy, float y) { return y <= 0 ? 0.0f : dy; }
AMPD_ELEMENTWISE(LeakyRelu, float x) { return x < 0 ? c.alpha * x : x; }
AMPD_ELEMENTWISE(LeakyReluGrad, float dy, float x) { return x <= 0 ? c.alpha * dy : dy; }
AMPD_ELEMENTWISE(Elu, float x) {
  const float below = c.alpha * M::Expm1(x < 0 ? x : 0.0f);
  return x < 0 ? below : x;
}
AMPD_ELEMENTWISE(EluGrad, float dy, float x) {
  const float slope = c.alpha * M::Exp(x < 0 ? x : 0.0f);
  return dy * (x <= 0 ? slope : 1.0f);
}
// Hendrycks and Gimpel 2016: x cdf(x), or with cdf(x) ~ sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
AMPD_ELEMENTWISE(Gelu, float x) { return x == -std::numeric_limits<float>::infinity() ? -0.0f : x * M::NormalCdf(x); }
AMPD_ELEMENTWISE(GeluGrad, float dy, float x) {
  // Past +-15 the density is 0 in f32; clamping keeps its product with x finite.
  const float t = x > 15 ? 15.0f : (x < -15 ? -15.0f : x);
  return dy * (M::NormalCdf(t) + t * M::NormalPdf(t));
}
AMPD_ELEMENTWISE(GeluTanh, float x) {
  const float y = x * M::Sigmoid(1.59576912f * (x + 0.044715f * (x * x * x)));
  return x == -std::numeric_limits<float>::infinity() ? -0.0f : y;
}
AMPD_ELEMENTWISE(GeluTanhGrad, float dy, float x) {
  // Past +-8 the sigmoid is 0 or 1 in f32; clamping keeps its argument and the product with x finite.
  const float t = x > 8 ? 8.0f : (x < -8 ? -8.0f : x);
  const float s = M::Sigmoid(1.59576912f * (t + 0.044715f * (t * t * t)));
  return dy * (s + t * s * (1 - s) * (1.59576912f * (1 + 0.134145f * (t * t))));
}
AMPD_ELEMENTWISE(Silu, float x) { return x == -std::numeric_limits<float>::infinity() ? -0.0f : x * M::Sigmoid(x); }
AMPD_ELEMENTWISE(SiluGrad, float dy, float x) {
  // Past +-100 the sigmoid's tail is 0 in f32; clamping keeps the product with x finite.
  const float t = x > 100 ? 100.0f : (x < -100 ? -100.0f : x);
  return dy * (M::Sigmoid(t) * (1 + t * M::Sigmoid(-t)));
}
AMPD_ELEMENTWISE(Sigmoid, float x) { return M::Sigmoid(x); }
AMPD_ELEMENTWISE(SigmoidGrad, float dy, float y) { return dy * (y * (1 - y)); }
AMPD_ELEMENTWISE(Tanh, float x) { return M::Tanh(x); }
AMPD_ELEMENTWISE(TanhGrad, float dy, float y) { return dy * ((1 - y) * (1 + y)); }
AMPD_ELEMENTWISE(Softplus, float x) {
  const float tail = M::Log1p(M::Exp(x > 0 ? -x : x));
  return (x <= 0 ? 0.0f : x) + tail;
}
AMPD_ELEMENTWISE(SoftplusGrad, float dy, float x) { return dy * M::Sigmoid(x); }
AMPD_ELEMENTWISE(HardSigmoid, float x) {
  const float y = c.alpha * x + c.beta;
  return y < 0 ? 0.0f : (y > 1 ? 1.0f : y);
}
AMPD_ELEMENTWISE(HardSigmoidGrad, float dy, float x) {
  const float y = c.alpha * x + c.beta;
  return y <= 0 || y >= 1 ? 0.0f : c.alpha * dy;
}
// Where min > max, max: as ONNX's Clip and torch.clamp.
AMPD_ELEMENTWISE(Clip, float x) {
  const float y = x < c.alpha ? c.alpha : x;
  return y > c.beta ? c.beta : y;
}
AMPD_ELEMENTWISE(ClipGrad, float dy, float x) { return x < c.alpha || x > c.beta ? 0.0f : dy; }

// Two operands.
AMPD_ELEMENTWISE(Add, float a, float b) { return a + b; }
AMPD_ELEMENTWISE(Sub, float a, float b) { return a - b; }
AMPD_ELEMENTWISE(Mul, float a, float b) { return a * b; }
AMPD_ELEMENTWISE(Div, float a, float b) { return a / b; }
AMPD_ELEMENTWISE(DivGrad, float dy, float a, float b) { return -(dy / b) * (a / b); }
AMPD_ELEMENTWISE(Pow, float a, float b) { return M::Pow(a, b); }
AMPD_ELEMENTWISE(PowGradBase, float dy, float a, float b) { return b == 0 ? 0.0f : dy * (b * M::Pow(a, b - 1)); }
AMPD_ELEMENTWISE(PowGradExponent, float dy, float a, float b) {
  return a == 0 && b >= 0 ? 0.0f : dy * (M::Pow(a, b) * M::Log(a));
}
AMPD_ELEMENTWISE(Max, float a, float b) { return a > b || a != a ? a : b; }
AMPD_ELEMENTWISE(Min, float a, float b) { return a < b || a != a ? a : b; }
AMPD_ELEMENTWISE(MaxGrad, float dy, float x, float other) { return x < other ? 0.0f : (x == other ? 0.5f * dy : dy); }
AMPD_ELEMENTWISE(MinGrad, float dy, float x, float other) { return x > other ? 0.0f : (x == other ? 0.5f * dy : dy); }
AMPD_ELEMENTWISE(Mod, float a, float b) {
  const float r = M::Remainder(a, b);
  return c.flags == 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
AMPD_ELEMENTWISE(ModGrad, float dy, float a, float b) {
  // The whole quotient, exact: what is left of a after the remainder, divided.
  const float q = (a - Mod<M>(c, a, b)) / b;
  return -dy * M::RoundEven(q);
}

// Bools are 0 and 1.
AMPD_ELEMENTWISE(Where, float condition, float a, float b) { return condition != 0 ? a : b; }
AMPD_ELEMENTWISE(WhereGrad, float condition, float dy) { return (condition != 0) == (c.flags == 0) ? dy : 0.0f; }
AMPD_ELEMENTWISE(Equal, float a, float b) { return a == b ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(Less, float a, float b) { return a < b ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(Greater, float a, float b) { return a > b ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(LessEqual, float a, float b) { return a <= b ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(GreaterEqual, float a, float b) { return a >= b ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(LogicalAnd, float a, float b) { return a != 0 && b != 0 ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(LogicalOr, float a, float b) { return a != 0 || b != 0 ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(LogicalXor, float a, float b) { return (a != 0) != (b != 0) ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(LogicalNot, float a) { return a != 0 ? 0.0f : 1.0f; }
AMPD_ELEMENTWISE(IsNan, float x) { return x != x ? 1.0f : 0.0f; }
AMPD_ELEMENTWISE(IsInf, float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool positive = x == kInfinity && (c.flags & 1) != 0;
  const bool negative = x == -kInfinity && (c.flags & 2) != 0;
  return positive || negative ? 1.0f : 0.0f;
}

#undef AMPD_ELEMENTWISE

// Integers: computed modulo 2^64 and stored modulo their width. Nothing traps: what has no value is 0.
constexpr int64_t Wrap(uint64_t x) { return static_cast<int64_t>(x); }
constexpr uint64_t Bits(int64_t x) { return static_cast<uint64_t>(x); }

#define AMPD_ELEMENTWISE_INT(name, ...) constexpr int64_t Int##name(const C& c [[maybe_unused]], __VA_ARGS__)

AMPD_ELEMENTWISE_INT(Neg, int64_t x) { return Wrap(-Bits(x)); }
AMPD_ELEMENTWISE_INT(Abs, int64_t x) { return x < 0 ? Wrap(-Bits(x)) : x; }
AMPD_ELEMENTWISE_INT(Sign, int64_t x) { return (x > 0) - (x < 0); }
AMPD_ELEMENTWISE_INT(ZerosLike, int64_t) { return 0; }
AMPD_ELEMENTWISE_INT(Clip, int64_t x) {
  const int64_t y = x < c.low ? c.low : x;
  return y > c.high ? c.high : y;
}
AMPD_ELEMENTWISE_INT(Add, int64_t a, int64_t b) { return Wrap(Bits(a) + Bits(b)); }
AMPD_ELEMENTWISE_INT(Sub, int64_t a, int64_t b) { return Wrap(Bits(a) - Bits(b)); }
AMPD_ELEMENTWISE_INT(Mul, int64_t a, int64_t b) { return Wrap(Bits(a) * Bits(b)); }
AMPD_ELEMENTWISE_INT(Div, int64_t a, int64_t b) { return b == 0 ? 0 : (b == -1 ? Wrap(-Bits(a)) : a / b); }
AMPD_ELEMENTWISE_INT(Mod, int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t r = a % b;
  return c.flags == 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
AMPD_ELEMENTWISE_INT(Pow, int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
  uint64_t result = 1, power = Bits(a);
  for (uint64_t left = Bits(b); left != 0; left >>= 1, power *= power) {
    if ((left & 1) != 0) result *= power;
  }
  return Wrap(result);
}
AMPD_ELEMENTWISE_INT(Max, int64_t a, int64_t b) { return a > b ? a : b; }
AMPD_ELEMENTWISE_INT(Min, int64_t a, int64_t b) { return a < b ? a : b; }
AMPD_ELEMENTWISE_INT(Where, int64_t condition, int64_t a, int64_t b) { return condition != 0 ? a : b; }
AMPD_ELEMENTWISE_INT(Equal, int64_t a, int64_t b) { return a == b; }
AMPD_ELEMENTWISE_INT(Less, int64_t a, int64_t b) { return a < b; }
AMPD_ELEMENTWISE_INT(Greater, int64_t a, int64_t b) { return a > b; }
AMPD_ELEMENTWISE_INT(LessEqual, int64_t a, int64_t b) { return a <= b; }
AMPD_ELEMENTWISE_INT(GreaterEqual, int64_t a, int64_t b) { return a >= b; }

#undef AMPD_ELEMENTWISE_INT

}  // namespace elementwise
}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_ELEMENTWISE_H_
