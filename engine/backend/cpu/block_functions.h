// The elementwise operations over short runs of memory in the first-level cache: what the elementwise kernels, and
// whatever fuses them, are made of. Pure; thread-safe; bits do not depend on the instruction set but for sin, cos, pow
// and mod, which are the C library's.
#ifndef AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_
#define AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_

#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "engine/ir/attributes.h"
#include "engine/ir/op_kind.h"
#include "engine/ops/elementwise.h"

namespace ampd::cpu {

// `n` elements of each input, any n >= 0, to `n` at `output`, which overlaps no input. Floats of any dtype and bools (0
// or 1) are f32 here; the caller rounds into the op's dtypes. Integers are int64; the caller truncates to their width.
template <typename T>
using BlockLoop = void (*)(const T* const* inputs, int64_t n, const ops::ElementwiseConstants& constants, T* output);
using FloatLoop = BlockLoop<float>;
using IntegerLoop = BlockLoop<int64_t>;

// Inputs an elementwise op has at most.
inline constexpr int kMaxBlockInputs = 3;

struct BlockOp {
  ir::OpKind op;
  int inputs;
  FloatLoop floats;       // of floats and bools
  IntegerLoop integers;   // null: not of integers
  FloatLoop alternative;  // gelu's tanh form; else null
};

// By file: functions of one operand, activations, functions of several.
absl::Span<const BlockOp> UnaryBlockOps();
absl::Span<const BlockOp> ActivationBlockOps();
absl::Span<const BlockOp> BinaryBlockOps();

// The row of `op`, or null where it is not elementwise.
const BlockOp* FindBlockOp(ir::OpKind op);

// The function of a node on floats: `row.floats`, or its alternative where the attributes say so.
FloatLoop FloatsOf(const BlockOp& row, const ir::Attributes& attributes);

// y[i] = f(operands[0][i], operands[1][i], ...) for i in 0..n-1. `y` overlaps no operand.
using BlockFunction = std::function<void(const float* const* operands, int64_t n, float* y)>;

// Whether a fused node may hold `op`.
bool HasBlockFunction(ir::OpKind op);

// `op` with its constants; null where HasBlockFunction() is false. A cast is none: what it rounds to is its dtype.
BlockFunction MakeBlockFunction(ir::OpKind op, const ir::Attributes& attributes);

// Definitions of block functions; for the files of the tables. `name` is a function of ops::elementwise.
#define AMPD_BLOCK1(name)                                                                                         \
  AMPD_CPU_CLONES void name##Block(const float* const* in, int64_t n, const ops::ElementwiseConstants& constants, \
                                   float* __restrict y) {                                                         \
    const float* __restrict a = in[0];                                                                            \
    const ops::ElementwiseConstants c = constants;                                                                \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::name<VectorMath>(c, a[i]);                           \
  }
#define AMPD_BLOCK2(name)                                                                                         \
  AMPD_CPU_CLONES void name##Block(const float* const* in, int64_t n, const ops::ElementwiseConstants& constants, \
                                   float* __restrict y) {                                                         \
    const float* __restrict a = in[0];                                                                            \
    const float* __restrict b = in[1];                                                                            \
    const ops::ElementwiseConstants c = constants;                                                                \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::name<VectorMath>(c, a[i], b[i]);                     \
  }
#define AMPD_BLOCK3(name)                                                                                         \
  AMPD_CPU_CLONES void name##Block(const float* const* in, int64_t n, const ops::ElementwiseConstants& constants, \
                                   float* __restrict y) {                                                         \
    const float* __restrict a = in[0];                                                                            \
    const float* __restrict b = in[1];                                                                            \
    const float* __restrict d = in[2];                                                                            \
    const ops::ElementwiseConstants c = constants;                                                                \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::name<VectorMath>(c, a[i], b[i], d[i]);               \
  }
#define AMPD_INT_BLOCK1(name)                                                                                  \
  void Int##name##Block(const int64_t* const* in, int64_t n, const ops::ElementwiseConstants& c, int64_t* y) { \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::Int##name(c, in[0][i]);                           \
  }
#define AMPD_INT_BLOCK2(name)                                                                                  \
  void Int##name##Block(const int64_t* const* in, int64_t n, const ops::ElementwiseConstants& c, int64_t* y) { \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::Int##name(c, in[0][i], in[1][i]);                 \
  }
#define AMPD_INT_BLOCK3(name)                                                                                  \
  void Int##name##Block(const int64_t* const* in, int64_t n, const ops::ElementwiseConstants& c, int64_t* y) { \
    for (int64_t i = 0; i < n; ++i) y[i] = ops::elementwise::Int##name(c, in[0][i], in[1][i], in[2][i]);       \
  }

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_BLOCK_FUNCTIONS_H_
