// Kernels of their own for the chains of steps that networks are full of: norms, biases and residuals with what follows
// them. Other fused nodes are interpreted (fused_machine.h), at several times the instructions an element.
#ifndef AMPD_ENGINE_BACKEND_CUDA_FUSED_CHAINS_H_
#define AMPD_ENGINE_BACKEND_CUDA_FUSED_CHAINS_H_

#include <memory>

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/fused_program.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

// Computes what the interpreter of `compiled`, which is CompileFused(desc), does, to the bit. Null where there is no
// such kernel: for other chains, tensors that are not all of one 16-bit dtype, and last axes that are no multiples
// of 8.
std::unique_ptr<runtime::Kernel> PrepareChain(const Context* context, const runtime::NodeDesc& desc,
                                              const CompiledFused& compiled);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_FUSED_CHAINS_H_
