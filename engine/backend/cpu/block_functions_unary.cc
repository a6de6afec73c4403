#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;

AMPD_BLOCK1(Neg)
AMPD_INT_BLOCK1(Neg)
AMPD_BLOCK1(Exp)
AMPD_BLOCK1(Log)
AMPD_BLOCK1(Sqrt)
AMPD_BLOCK2(SqrtGrad)
AMPD_BLOCK1(Abs)
AMPD_INT_BLOCK1(Abs)
AMPD_BLOCK2(AbsGrad)
AMPD_BLOCK1(Reciprocal)
AMPD_BLOCK2(ReciprocalGrad)
AMPD_BLOCK1(Erf)
AMPD_BLOCK2(ErfGrad)
AMPD_BLOCK1(Sign)
AMPD_INT_BLOCK1(Sign)
AMPD_BLOCK1(Floor)
AMPD_BLOCK1(Ceil)
AMPD_BLOCK1(Round)
AMPD_BLOCK1(Sin)
AMPD_BLOCK2(SinGrad)
AMPD_BLOCK1(Cos)
AMPD_BLOCK2(CosGrad)
AMPD_BLOCK1(ZerosLike)
AMPD_INT_BLOCK1(ZerosLike)
AMPD_BLOCK1(IsNan)
AMPD_BLOCK1(IsInf)
AMPD_BLOCK1(LogicalNot)

}  // namespace

absl::Span<const BlockOp> UnaryBlockOps() {
  static const BlockOp rows[] = {
      {OpKind::kNeg, 1, NegBlock, IntNegBlock, nullptr},
      {OpKind::kExp, 1, ExpBlock, nullptr, nullptr},
      {OpKind::kLog, 1, LogBlock, nullptr, nullptr},
      {OpKind::kSqrt, 1, SqrtBlock, nullptr, nullptr},
      {OpKind::kSqrtGrad, 2, SqrtGradBlock, nullptr, nullptr},
      {OpKind::kAbs, 1, AbsBlock, IntAbsBlock, nullptr},
      {OpKind::kAbsGrad, 2, AbsGradBlock, nullptr, nullptr},
      {OpKind::kReciprocal, 1, ReciprocalBlock, nullptr, nullptr},
      {OpKind::kReciprocalGrad, 2, ReciprocalGradBlock, nullptr, nullptr},
      {OpKind::kErf, 1, ErfBlock, nullptr, nullptr},
      {OpKind::kErfGrad, 2, ErfGradBlock, nullptr, nullptr},
      {OpKind::kSign, 1, SignBlock, IntSignBlock, nullptr},
      {OpKind::kFloor, 1, FloorBlock, nullptr, nullptr},
      {OpKind::kCeil, 1, CeilBlock, nullptr, nullptr},
      {OpKind::kRound, 1, RoundBlock, nullptr, nullptr},
      {OpKind::kSin, 1, SinBlock, nullptr, nullptr},
      {OpKind::kSinGrad, 2, SinGradBlock, nullptr, nullptr},
      {OpKind::kCos, 1, CosBlock, nullptr, nullptr},
      {OpKind::kCosGrad, 2, CosGradBlock, nullptr, nullptr},
      {OpKind::kZerosLike, 1, ZerosLikeBlock, IntZerosLikeBlock, nullptr},
      {OpKind::kIsNan, 1, IsNanBlock, nullptr, nullptr},
      {OpKind::kIsInf, 1, IsInfBlock, nullptr, nullptr},
      {OpKind::kLogicalNot, 1, LogicalNotBlock, nullptr, nullptr},
  };
  return rows;
}

}  // namespace ampd::cpu
