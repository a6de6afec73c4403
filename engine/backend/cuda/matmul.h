// A matmul node as products that Gemm computes.
#ifndef AMPD_ENGINE_BACKEND_CUDA_MATMUL_H_
#define AMPD_ENGINE_BACKEND_CUDA_MATMUL_H_

#include <cstdint>
#include <vector>

#include "engine/backend/cuda/gemm.h"
#include "engine/runtime/kernel_table.h"

namespace ampd::cuda {

struct MatmulLoop {
  int64_t extent = 1;
  // Elements from one turn to the next; 0 where the operand is broadcast.
  int64_t a = 0, b = 0, d = 0;
};

// The gemm for every turn of every loop, the last one turning fastest.
struct MatmulProducts {
  GemmDesc gemm;
  std::vector<MatmulLoop> loops;
};

// `desc` is a matmul with valid types. Operands keep their dtypes. Batch axes that move alike are one; one right
// operand for all left ones makes their rows the rows of one matrix; of what is left the longest is the gemm's batch,
// and the rest are loops (none, but for operands broadcast in turns).
MatmulProducts ProductsOf(const runtime::NodeDesc& desc);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_MATMUL_H_
