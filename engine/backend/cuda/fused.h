// What the kernel of fused nodes can hold.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_H_

#include "engine/ir/op_kind.h"

namespace ampd::cuda {

// For runtime::Backend::CanFuse().
bool CanFuse(ir::OpKind op);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_H_
