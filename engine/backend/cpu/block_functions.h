// Internal to the CPU backend: elementwise ops as loops over blocks of f32 that fit the first-level cache. The kernels
// of single ops and of fused nodes are made of these. Bools are 0 and 1.
#ifndef AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_
#define AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_

#include <cstdint>
#include <functional>

#include "engine/ir/attributes.h"
#include "engine/ir/op_kind.h"

namespace ampd::cpu {

// y[i] = f(operands[0][i], operands[1][i], ...) for i in 0..n-1. `y` overlaps no operand.
using BlockFunction = std::function<void(const float* const* operands, int64_t n, float* y)>;

bool HasBlockFunction(ir::OpKind op);

// `op` with its constants; null where HasBlockFunction() is false. A cast is none: what it rounds to is its dtype.
BlockFunction MakeBlockFunction(ir::OpKind op, const ir::Attributes& attributes);

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_
