#include "engine/ops/elementwise_functions.h"

#include <cmath>
#include <limits>

namespace ampd::ops {
namespace {

using ir::OpKind;

constexpr DType kBool = DType::kBool;

// The integer next to `bound` on the side where `round` goes, within int64; doubles below 2^63 convert exactly.
int64_t IntegerBound(double bound, double (*round)(double)) {
  const double rounded = round(bound);
  if (rounded >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (!(rounded > -0x1p63)) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(rounded);
}

int32_t FlagsOf(OpKind op, const ir::Attributes& attributes) {
  switch (op) {
    case OpKind::kMod:
    case OpKind::kModGrad:
      return attributes.Bool("fmod") ? 1 : 0;
    case OpKind::kWhereGrad:
      return static_cast<int32_t>(attributes.Int("branch"));
    case OpKind::kIsInf:
      return (attributes.Int("positive", 1) != 0 ? 1 : 0) | (attributes.Int("negative", 1) != 0 ? 2 : 0);
    default:
      return 0;
  }
}

std::vector<ElementwiseSignature> Signatures(ElementwiseFunction function, size_t inputs, bool integers) {
  if (IsLogical(function)) return {{std::vector<DType>(inputs, kBool), {kBool}}};
  std::vector<DType> dtypes = {DType::kF32};
  if (!IsF32Alone(function)) dtypes.insert(dtypes.end(), {DType::kF16, DType::kBF16});
  if (integers) dtypes.insert(dtypes.end(), {DType::kI32, DType::kI64, DType::kU8});
  const bool of_bools = function == ElementwiseFunction::kEqual || function == ElementwiseFunction::kWhere;
  if (of_bools) dtypes.push_back(kBool);
  std::vector<ElementwiseSignature> signatures;
  for (DType t : dtypes) {
    std::vector<DType> of_inputs(inputs, t);
    if (Chooses(function)) of_inputs[0] = kBool;
    signatures.push_back({std::move(of_inputs), {IsTest(function) ? kBool : t}});
  }
  return signatures;
}

}  // namespace

ElementwiseFunction FunctionOf(OpKind op, const ir::Attributes& attributes) {
  if (op == OpKind::kBiasAdd) return ElementwiseFunction::kAdd;
  const bool tanh_form = attributes.String("approximate") == "tanh";
  if (op == OpKind::kGelu && tanh_form) return ElementwiseFunction::kGeluTanh;
  if (op == OpKind::kGeluGrad && tanh_form) return ElementwiseFunction::kGeluTanhGrad;
#define X(kind, function, inputs) \
  if (op == OpKind::k##kind) return ElementwiseFunction::k##function;
  AMPD_ELEMENTWISE_FUNCTIONS(X, X)
#undef X
  return ElementwiseFunction::kNone;
}

ElementwiseConstants ConstantsOf(OpKind op, const ir::Attributes& attributes) {
  ElementwiseConstants c;
  c.flags = FlagsOf(op, attributes);
  if (op == OpKind::kClip || op == OpKind::kClipGrad) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double low = attributes.Double("min", -kInfinity), high = attributes.Double("max", kInfinity);
    c.alpha = static_cast<float>(low);
    c.beta = static_cast<float>(high);
    c.low = IntegerBound(low, std::ceil);
    c.high = IntegerBound(high, std::floor);
    return c;
  }
  const double alpha = op == OpKind::kLeakyRelu || op == OpKind::kLeakyReluGrad       ? 0.01
                       : op == OpKind::kHardSigmoid || op == OpKind::kHardSigmoidGrad ? 0.2
                                                                                      : 1.0;
  c.alpha = static_cast<float>(attributes.Double("alpha", alpha));
  c.beta = static_cast<float>(attributes.Double("beta", 0.5));
  return c;
}

std::vector<ElementwiseSignature> ElementwiseSignatures(OpKind op) {
#define X(kind, function, inputs) \
  if (op == OpKind::k##kind) return Signatures(ElementwiseFunction::k##function, inputs, false);
#define X_I(kind, function, inputs) \
  if (op == OpKind::k##kind) return Signatures(ElementwiseFunction::k##function, inputs, true);
  AMPD_ELEMENTWISE_FUNCTIONS(X, X_I)
#undef X
#undef X_I
  return {};
}

}  // namespace ampd::ops
