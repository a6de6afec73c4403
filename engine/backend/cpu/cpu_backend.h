// The CPU backend: the embedded default, and the numeric reference of other backends at equal dtypes. GEMM and
// convolution are oneDNN's; everything else is plain loops over fp32 blocks.
#ifndef AMPD_ENGINE_BACKEND_CPU_CPU_BACKEND_H_
#define AMPD_ENGINE_BACKEND_CPU_CPU_BACKEND_H_

#include <memory>

#include "engine/runtime/backend.h"

namespace ampd {

// Adds a row for every op of docs/ops.md (but reshape, which is a view) and every dtype it takes. The kernels of one
// table share a oneDNN stream: use them from one thread at a time. Values are stored and rounded in the graph's dtypes
// and products accumulate in fp32. Equal bits at equal thread count and instruction set.
//
// Prepare returns INTERNAL, naming the node, where oneDNN refuses a shape. bf16 falls back to fp32 arithmetic with one
// rounding where the processor has no bf16 kernels.
void RegisterCpuKernels(runtime::KernelTable* table);

// A backend whose passes over the arenas use up to `threads` threads (at least 1). Never null. Kernels use the thread
// count of their NodeDesc. `padding` is there to see on the CPU what padding does on a device that gains from it: here
// it costs time and memory.
std::unique_ptr<runtime::Backend> MakeCpuBackend(int threads, passes::PaddingPolicy padding = {});

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CPU_CPU_BACKEND_H_
