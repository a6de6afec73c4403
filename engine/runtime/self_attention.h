// Kernels of self_attention made of a backend's kernels of attention, which read q, k and v where they lie.
#ifndef AMPD_ENGINE_RUNTIME_SELF_ATTENTION_H_
#define AMPD_ENGINE_RUNTIME_SELF_ATTENTION_H_

#include "engine/core/dtype.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::runtime {

// Adds self_attention on operands of `dtype`, with each kind of mask and without. `attention` makes the backend's
// kernels of attention: these take packed operands with the attribute ops::kRowAttribute, which says how far one time
// of q, k and v is from the next, and views into the one tensor, which begin where a head does.
void AddSelfAttention(KernelTable* table, DType dtype, const PrepareKernel& attention);
// The same of self_attention_grad, by kernels of attention_grad, whose results lie as their operands do.
void AddSelfAttentionGrad(KernelTable* table, DType dtype, const PrepareKernel& gradient);

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_SELF_ATTENTION_H_
