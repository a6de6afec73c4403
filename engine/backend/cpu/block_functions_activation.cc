#include "engine/backend/cpu/block_functions.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vector_math.h"

namespace ampd::cpu {
namespace {

using ir::OpKind;

AMPD_BLOCK1(Relu)
AMPD_BLOCK2(ReluGrad)
AMPD_BLOCK1(LeakyRelu)
AMPD_BLOCK2(LeakyReluGrad)
AMPD_BLOCK1(Elu)
AMPD_BLOCK2(EluGrad)
AMPD_BLOCK1(Gelu)
AMPD_BLOCK1(GeluTanh)
AMPD_BLOCK2(GeluGrad)
AMPD_BLOCK2(GeluTanhGrad)
AMPD_BLOCK1(Silu)
AMPD_BLOCK2(SiluGrad)
AMPD_BLOCK1(Sigmoid)
AMPD_BLOCK2(SigmoidGrad)
AMPD_BLOCK1(Tanh)
AMPD_BLOCK2(TanhGrad)
AMPD_BLOCK1(Softplus)
AMPD_BLOCK2(SoftplusGrad)
AMPD_BLOCK1(HardSigmoid)
AMPD_BLOCK2(HardSigmoidGrad)
AMPD_BLOCK1(Clip)
AMPD_INT_BLOCK1(Clip)
AMPD_BLOCK2(ClipGrad)

}  // namespace

absl::Span<const BlockOp> ActivationBlockOps() {
  static const BlockOp rows[] = {
      {OpKind::kRelu, 1, ReluBlock, nullptr, nullptr},
      {OpKind::kReluGrad, 2, ReluGradBlock, nullptr, nullptr},
      {OpKind::kLeakyRelu, 1, LeakyReluBlock, nullptr, nullptr},
      {OpKind::kLeakyReluGrad, 2, LeakyReluGradBlock, nullptr, nullptr},
      {OpKind::kElu, 1, EluBlock, nullptr, nullptr},
      {OpKind::kEluGrad, 2, EluGradBlock, nullptr, nullptr},
      {OpKind::kGelu, 1, GeluBlock, nullptr, GeluTanhBlock},
      {OpKind::kGeluGrad, 2, GeluGradBlock, nullptr, GeluTanhGradBlock},
      {OpKind::kSilu, 1, SiluBlock, nullptr, nullptr},
      {OpKind::kSiluGrad, 2, SiluGradBlock, nullptr, nullptr},
      {OpKind::kSigmoid, 1, SigmoidBlock, nullptr, nullptr},
      {OpKind::kSigmoidGrad, 2, SigmoidGradBlock, nullptr, nullptr},
      {OpKind::kTanh, 1, TanhBlock, nullptr, nullptr},
      {OpKind::kTanhGrad, 2, TanhGradBlock, nullptr, nullptr},
      {OpKind::kSoftplus, 1, SoftplusBlock, nullptr, nullptr},
      {OpKind::kSoftplusGrad, 2, SoftplusGradBlock, nullptr, nullptr},
      {OpKind::kHardSigmoid, 1, HardSigmoidBlock, nullptr, nullptr},
      {OpKind::kHardSigmoidGrad, 2, HardSigmoidGradBlock, nullptr, nullptr},
      {OpKind::kClip, 1, ClipBlock, IntClipBlock, nullptr},
      {OpKind::kClipGrad, 2, ClipGradBlock, nullptr, nullptr},
  };
  return rows;
}

}  // namespace ampd::cpu
