#include "engine/backend/cpu/block_functions.h"

#include "engine/ops/elementwise_functions.h"

namespace ampd::cpu {
using ir::OpKind;

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

bool HasBlockFunction(OpKind op) { return op == OpKind::kCast || MakeBlockFunction(op, {}) != nullptr; }

BlockFunction MakeBlockFunction(OpKind op, const ir::Attributes& attributes) {
  // A row beside a whole tensor is all that sets bias_add apart.
  const BlockOp* row = FindBlockOp(op == OpKind::kBiasAdd ? OpKind::kAdd : op);
  if (row == nullptr) return nullptr;
  return [loop = FloatsOf(*row, attributes), constants = ops::ConstantsOf(op, attributes)](
             const float* const* operands, int64_t n, float* y) { loop(operands, n, constants, y); };
}

}  // namespace ampd::cpu
