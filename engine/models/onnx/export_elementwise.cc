// Elementwise operations.
#include <cmath>
#include <functional>
#include <utility>

#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;

// Operands are broadcast to the output's rank in one arrangement.
absl::Status Elementwise(ExportNode& n, const std::string& op, const ir::Attributes& attributes = {}) {
  const Arrangement at = n.e.Common(n.node().inputs, n.out());
  const size_t rank = n.out_dims().size();
  std::vector<T> inputs;
  for (size_t i = 0; i < n.inputs(); ++i) inputs.push_back(n.e.Operand(n.in(i), at, rank));
  Dims dims;
  for (int64_t axis : at.axes) dims.push_back(n.out_dims()[static_cast<size_t>(axis)]);
  n.e.Bind(n.out(), at, n.e.Op(op, inputs, dims, attributes));
  return absl::OkStatus();
}

absl::Status Plain(ExportNode& n) { return Elementwise(n, n.onnx); }

absl::Status WithAlpha(ExportNode& n) {
  const double fallback = n.node().op == OpKind::kLeakyRelu ? 0.01 : 1;
  return Elementwise(n, n.onnx, {{"alpha", n.a.Double("alpha", fallback)}});
}

absl::Status HardSigmoid(ExportNode& n) {
  return Elementwise(n, n.onnx, {{"alpha", n.a.Double("alpha", 0.2)}, {"beta", n.a.Double("beta", 0.5)}});
}

absl::Status IsInf(ExportNode& n) {
  return Elementwise(n, n.onnx,
                     {{"detect_positive", n.a.Int("positive", 1)}, {"detect_negative", n.a.Int("negative", 1)}});
}

absl::Status Mod(ExportNode& n) {
  const bool fmod = n.a.Bool("fmod");
  if (IsFloat(n.type(0).dtype) && !fmod) return n.Refuse("has floats with the sign of the divisor");
  return Elementwise(n, n.onnx, {{"fmod", int64_t{fmod}}});
}

absl::Status Cast(ExportNode& n) {
  // Of the result, which the attribute only names.
  const DType dtype = n.e.graph().type(n.out()).dtype;
  const int type = ElementTypeOf(dtype);
  if (type == 0) return n.Refuse(absl::StrCat("gives ", DTypeName(dtype), ", which this version of ONNX has not"));
  return Elementwise(n, n.onnx, {{"to", int64_t{type}}});
}

// Functions of one operand that take several nodes.
absl::Status Composed(ExportNode& n, const std::function<T(Exporter& e, T x)>& function) {
  const Arrangement at = n.e.At(n.in(0));
  n.e.Bind(n.out(), at, function(n.e, n.e.Get(n.in(0), at)));
  return absl::OkStatus();
}

// x / 2 (1 + erf(x / sqrt(2))), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) in place of erf.
absl::Status Gelu(ExportNode& n) {
  const DType dtype = n.type(0).dtype;
  const bool tanh = n.a.String("approximate") == "tanh";
  return Composed(n, [&](Exporter& e, T x) {
    const auto scaled = [&](T y, double factor) { return e.Op("Mul", {y, e.Scalar(dtype, factor)}, x->dims); };
    T inner;
    if (tanh) {
      const T cube = e.Op("Mul", {e.Op("Mul", {x, x}, x->dims), x}, x->dims);
      inner = scaled(e.Op("Add", {x, scaled(cube, 0.044715)}, x->dims), std::sqrt(2 / M_PI));
    } else {
      inner = scaled(x, std::sqrt(0.5));
    }
    const T curve = e.Op(tanh ? "Tanh" : "Erf", {inner}, x->dims);
    const T shifted = e.Op("Add", {curve, e.Scalar(dtype, 1)}, x->dims);
    return scaled(e.Op("Mul", {x, shifted}, x->dims), 0.5);
  });
}

absl::Status Silu(ExportNode& n) {
  return Composed(n, [](Exporter& e, T x) { return e.Op("Mul", {x, e.Op("Sigmoid", {x}, x->dims)}, x->dims); });
}

absl::Status Clip(ExportNode& n) {
  const DType dtype = n.type(0).dtype;
  return Composed(n, [&](Exporter& e, T x) {
    std::vector<T> inputs = {x, n.a.Has("min") ? e.Scalar(dtype, n.a.Double("min")) : nullptr};
    if (n.a.Has("max")) inputs.push_back(e.Scalar(dtype, n.a.Double("max")));
    if (inputs.back() == nullptr) inputs.pop_back();
    return e.Op("Clip", inputs, x->dims);
  });
}

absl::Status ZerosLike(ExportNode& n) {
  const DType dtype = n.type(0).dtype;
  return Composed(n, [&](Exporter& e, T x) { return e.Expand(e.Scalar(dtype, 0), x->dims); });
}

}  // namespace

std::vector<Writer> ElementwiseWriters() {
  std::vector<Writer> writers = {
      {OpKind::kCast, Cast, "Cast"},
      {OpKind::kLeakyRelu, WithAlpha, "LeakyRelu"},
      {OpKind::kElu, WithAlpha, "Elu"},
      {OpKind::kHardSigmoid, HardSigmoid, "HardSigmoid"},
      {OpKind::kIsInf, IsInf, "IsInf"},
      {OpKind::kMod, Mod, "Mod"},
      {OpKind::kGelu, Gelu},
      {OpKind::kSilu, Silu},
      {OpKind::kClip, Clip},
      {OpKind::kZerosLike, ZerosLike},
  };
  const std::pair<OpKind, const char*> plain[] = {
      {OpKind::kAdd, "Add"},
      {OpKind::kBiasAdd, "Add"},
      {OpKind::kSub, "Sub"},
      {OpKind::kMul, "Mul"},
      {OpKind::kDiv, "Div"},
      {OpKind::kPow, "Pow"},
      {OpKind::kMin, "Min"},
      {OpKind::kMax, "Max"},
      {OpKind::kRelu, "Relu"},
      {OpKind::kSigmoid, "Sigmoid"},
      {OpKind::kTanh, "Tanh"},
      {OpKind::kSoftplus, "Softplus"},
      {OpKind::kNeg, "Neg"},
      {OpKind::kExp, "Exp"},
      {OpKind::kLog, "Log"},
      {OpKind::kSqrt, "Sqrt"},
      {OpKind::kAbs, "Abs"},
      {OpKind::kReciprocal, "Reciprocal"},
      {OpKind::kErf, "Erf"},
      {OpKind::kSign, "Sign"},
      {OpKind::kFloor, "Floor"},
      {OpKind::kCeil, "Ceil"},
      {OpKind::kRound, "Round"},
      {OpKind::kSin, "Sin"},
      {OpKind::kCos, "Cos"},
      {OpKind::kWhere, "Where"},
      {OpKind::kEqual, "Equal"},
      {OpKind::kLess, "Less"},
      {OpKind::kGreater, "Greater"},
      {OpKind::kLessEqual, "LessOrEqual"},
      {OpKind::kGreaterEqual, "GreaterOrEqual"},
      {OpKind::kLogicalAnd, "And"},
      {OpKind::kLogicalOr, "Or"},
      {OpKind::kLogicalXor, "Xor"},
      {OpKind::kLogicalNot, "Not"},
      {OpKind::kIsNan, "IsNaN"},
  };
  for (const auto& [op, onnx] : plain) writers.push_back({op, Plain, onnx});
  return writers;
}

}  // namespace ampd::models::onnx
