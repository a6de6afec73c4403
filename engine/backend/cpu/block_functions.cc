#include "engine/backend/cpu/block_functions.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ampd::cpu {
namespace {

using ir::OpKind;

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

}  // namespace

const BlockOp* FindBlockOp(OpKind op) {
  for (absl::Span<const BlockOp> rows : {UnaryBlockOps(), ActivationBlockOps(), BinaryBlockOps()}) {
    for (const BlockOp& row : rows) {
      if (row.op == op) return &row;
    }
  }
  return nullptr;
}

FloatLoop FloatsOf(const BlockOp& row, const ir::Attributes& attributes) {
  return row.alternative != nullptr && attributes.String("approximate") == "tanh" ? row.alternative : row.floats;
}

ops::ElementwiseConstants ConstantsOf(OpKind op, const ir::Attributes& attributes) {
  ops::ElementwiseConstants c;
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

bool HasBlockFunction(OpKind op) { return op == OpKind::kCast || MakeBlockFunction(op, {}) != nullptr; }

BlockFunction MakeBlockFunction(OpKind op, const ir::Attributes& attributes) {
  // A row beside a whole tensor is all that sets bias_add apart.
  const BlockOp* row = FindBlockOp(op == OpKind::kBiasAdd ? OpKind::kAdd : op);
  if (row == nullptr) return nullptr;
  return [loop = FloatsOf(*row, attributes), constants = ConstantsOf(op, attributes)](
             const float* const* operands, int64_t n, float* y) { loop(operands, n, constants, y); };
}

}  // namespace ampd::cpu
