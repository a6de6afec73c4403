#include "engine/backend/cuda/fused_attention.h"

namespace ampd::cuda {

absl::StatusOr<std::shared_ptr<FusedAttention>> FusedAttention::Create(const FusedAttentionDesc&, Context*) {
  return absl::UnimplementedError("[attention] this build has no cuDNN");
}

}  // namespace ampd::cuda
