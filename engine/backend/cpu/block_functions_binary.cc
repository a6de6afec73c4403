#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;

AMPD_BLOCK2(Add)
AMPD_INT_BLOCK2(Add)
AMPD_BLOCK2(Sub)
AMPD_INT_BLOCK2(Sub)
AMPD_BLOCK2(Mul)
AMPD_INT_BLOCK2(Mul)
AMPD_BLOCK2(Div)
AMPD_INT_BLOCK2(Div)
AMPD_BLOCK3(DivGrad)
AMPD_BLOCK2(Pow)
AMPD_INT_BLOCK2(Pow)
AMPD_BLOCK3(PowGradBase)
AMPD_BLOCK3(PowGradExponent)
AMPD_BLOCK2(Max)
AMPD_INT_BLOCK2(Max)
AMPD_BLOCK3(MaxGrad)
AMPD_BLOCK2(Min)
AMPD_INT_BLOCK2(Min)
AMPD_BLOCK3(MinGrad)
AMPD_BLOCK2(Mod)
AMPD_INT_BLOCK2(Mod)
AMPD_BLOCK3(ModGrad)
AMPD_BLOCK3(Where)
AMPD_INT_BLOCK3(Where)
AMPD_BLOCK2(WhereGrad)
AMPD_BLOCK2(Equal)
AMPD_INT_BLOCK2(Equal)
AMPD_BLOCK2(Less)
AMPD_INT_BLOCK2(Less)
AMPD_BLOCK2(Greater)
AMPD_INT_BLOCK2(Greater)
AMPD_BLOCK2(LessEqual)
AMPD_INT_BLOCK2(LessEqual)
AMPD_BLOCK2(GreaterEqual)
AMPD_INT_BLOCK2(GreaterEqual)
AMPD_BLOCK2(LogicalAnd)
AMPD_BLOCK2(LogicalOr)
AMPD_BLOCK2(LogicalXor)

}  // namespace

absl::Span<const BlockOp> BinaryBlockOps() {
  static const BlockOp rows[] = {
      {OpKind::kAdd, 2, AddBlock, IntAddBlock, nullptr},
      {OpKind::kSub, 2, SubBlock, IntSubBlock, nullptr},
      {OpKind::kMul, 2, MulBlock, IntMulBlock, nullptr},
      {OpKind::kDiv, 2, DivBlock, IntDivBlock, nullptr},
      {OpKind::kDivGrad, 3, DivGradBlock, nullptr, nullptr},
      {OpKind::kPow, 2, PowBlock, IntPowBlock, nullptr},
      {OpKind::kPowGradBase, 3, PowGradBaseBlock, nullptr, nullptr},
      {OpKind::kPowGradExponent, 3, PowGradExponentBlock, nullptr, nullptr},
      {OpKind::kMax, 2, MaxBlock, IntMaxBlock, nullptr},
      {OpKind::kMaxGrad, 3, MaxGradBlock, nullptr, nullptr},
      {OpKind::kMin, 2, MinBlock, IntMinBlock, nullptr},
      {OpKind::kMinGrad, 3, MinGradBlock, nullptr, nullptr},
      {OpKind::kMod, 2, ModBlock, IntModBlock, nullptr},
      {OpKind::kModGrad, 3, ModGradBlock, nullptr, nullptr},
      {OpKind::kWhere, 3, WhereBlock, IntWhereBlock, nullptr},
      {OpKind::kWhereGrad, 2, WhereGradBlock, nullptr, nullptr},
      {OpKind::kEqual, 2, EqualBlock, IntEqualBlock, nullptr},
      {OpKind::kLess, 2, LessBlock, IntLessBlock, nullptr},
      {OpKind::kGreater, 2, GreaterBlock, IntGreaterBlock, nullptr},
      {OpKind::kLessEqual, 2, LessEqualBlock, IntLessEqualBlock, nullptr},
      {OpKind::kGreaterEqual, 2, GreaterEqualBlock, IntGreaterEqualBlock, nullptr},
      {OpKind::kLogicalAnd, 2, LogicalAndBlock, nullptr, nullptr},
      {OpKind::kLogicalOr, 2, LogicalOrBlock, nullptr, nullptr},
      {OpKind::kLogicalXor, 2, LogicalXorBlock, nullptr, nullptr},
  };
  return rows;
}

}  // namespace ampd::cpu
