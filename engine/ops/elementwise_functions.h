// The list of elementwise.h's functions, and what a backend must know of each beside the function itself. Pure.
#ifndef AMPD_ENGINE_OPS_ELEMENTWISE_FUNCTIONS_H_
#define AMPD_ENGINE_OPS_ELEMENTWISE_FUNCTIONS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/ir/attributes.h"
#include "engine/ir/op_kind.h"
#include "engine/ops/elementwise.h"

namespace ampd::ops {

// X(op, function, inputs): OpKind::k<op> is elementwise::<function> of so many inputs. An op that stands twice (gelu)
// has two forms, see FunctionOf(). X_I: there is also Int<function>, of integers.
#define AMPD_UNARY_FUNCTIONS(X, X_I)   \
  X_I(Neg, Neg, 1)                     \
  X(Exp, Exp, 1)                       \
  X(Log, Log, 1)                       \
  X(Sqrt, Sqrt, 1)                     \
  X(SqrtGrad, SqrtGrad, 2)             \
  X_I(Abs, Abs, 1)                     \
  X(AbsGrad, AbsGrad, 2)               \
  X(Reciprocal, Reciprocal, 1)         \
  X(ReciprocalGrad, ReciprocalGrad, 2) \
  X(Erf, Erf, 1)                       \
  X(ErfGrad, ErfGrad, 2)               \
  X_I(Sign, Sign, 1)                   \
  X(Floor, Floor, 1)                   \
  X(Ceil, Ceil, 1)                     \
  X(Round, Round, 1)                   \
  X(Sin, Sin, 1)                       \
  X(SinGrad, SinGrad, 2)               \
  X(Cos, Cos, 1)                       \
  X(CosGrad, CosGrad, 2)               \
  X_I(ZerosLike, ZerosLike, 1)         \
  X(IsNan, IsNan, 1)                   \
  X(IsInf, IsInf, 1)                   \
  X(LogicalNot, LogicalNot, 1)

#define AMPD_ACTIVATION_FUNCTIONS(X, X_I) \
  X(Relu, Relu, 1)                        \
  X(ReluGrad, ReluGrad, 2)                \
  X(LeakyRelu, LeakyRelu, 1)              \
  X(LeakyReluGrad, LeakyReluGrad, 2)      \
  X(Elu, Elu, 1)                          \
  X(EluGrad, EluGrad, 2)                  \
  X(Gelu, Gelu, 1)                        \
  X(Gelu, GeluTanh, 1)                    \
  X(GeluGrad, GeluGrad, 2)                \
  X(GeluGrad, GeluTanhGrad, 2)            \
  X(Silu, Silu, 1)                        \
  X(SiluGrad, SiluGrad, 2)                \
  X(Sigmoid, Sigmoid, 1)                  \
  X(SigmoidGrad, SigmoidGrad, 2)          \
  X(Tanh, Tanh, 1)                        \
  X(TanhGrad, TanhGrad, 2)                \
  X(Softplus, Softplus, 1)                \
  X(SoftplusGrad, SoftplusGrad, 2)        \
  X(HardSigmoid, HardSigmoid, 1)          \
  X(HardSigmoidGrad, HardSigmoidGrad, 2)  \
  X_I(Clip, Clip, 1)                      \
  X(ClipGrad, ClipGrad, 2)

#define AMPD_BINARY_FUNCTIONS(X, X_I)    \
  X_I(Add, Add, 2)                       \
  X_I(Sub, Sub, 2)                       \
  X_I(Mul, Mul, 2)                       \
  X_I(Div, Div, 2)                       \
  X(DivGrad, DivGrad, 3)                 \
  X_I(Pow, Pow, 2)                       \
  X(PowGradBase, PowGradBase, 3)         \
  X(PowGradExponent, PowGradExponent, 3) \
  X_I(Max, Max, 2)                       \
  X(MaxGrad, MaxGrad, 3)                 \
  X_I(Min, Min, 2)                       \
  X(MinGrad, MinGrad, 3)                 \
  X_I(Mod, Mod, 2)                       \
  X(ModGrad, ModGrad, 3)                 \
  X_I(Where, Where, 3)                   \
  X(WhereGrad, WhereGrad, 2)             \
  X_I(Equal, Equal, 2)                   \
  X_I(Less, Less, 2)                     \
  X_I(Greater, Greater, 2)               \
  X_I(LessEqual, LessEqual, 2)           \
  X_I(GreaterEqual, GreaterEqual, 2)     \
  X(LogicalAnd, LogicalAnd, 2)           \
  X(LogicalOr, LogicalOr, 2)             \
  X(LogicalXor, LogicalXor, 2)

#define AMPD_ELEMENTWISE_FUNCTIONS(X, X_I) \
  AMPD_UNARY_FUNCTIONS(X, X_I)             \
  AMPD_ACTIVATION_FUNCTIONS(X, X_I)        \
  AMPD_BINARY_FUNCTIONS(X, X_I)

enum class ElementwiseFunction : uint8_t {
#define X(op, function, inputs) k##function,
  AMPD_ELEMENTWISE_FUNCTIONS(X, X)
#undef X
      kNone,
};

// Of a node with these attributes; kNone where the op is not elementwise. kBiasAdd is kAdd: a row beside a whole tensor
// is all that sets it apart. kCast has none: what it rounds to is its dtype.
ElementwiseFunction FunctionOf(ir::OpKind op, const ir::Attributes& attributes);

ElementwiseConstants ConstantsOf(ir::OpKind op, const ir::Attributes& attributes);

// Of bools.
constexpr bool IsLogical(ElementwiseFunction f) {
  return f == ElementwiseFunction::kLogicalNot || f == ElementwiseFunction::kLogicalAnd ||
         f == ElementwiseFunction::kLogicalOr || f == ElementwiseFunction::kLogicalXor;
}
// The result is a bool.
constexpr bool IsTest(ElementwiseFunction f) {
  return f == ElementwiseFunction::kIsNan || f == ElementwiseFunction::kIsInf || f == ElementwiseFunction::kEqual ||
         f == ElementwiseFunction::kLess || f == ElementwiseFunction::kGreater ||
         f == ElementwiseFunction::kLessEqual || f == ElementwiseFunction::kGreaterEqual;
}
// The first operand is a bool.
constexpr bool Chooses(ElementwiseFunction f) {
  return f == ElementwiseFunction::kWhere || f == ElementwiseFunction::kWhereGrad;
}
// No 16-bit floats: its precision class is DENY.
constexpr bool IsF32Alone(ElementwiseFunction f) {
  return f == ElementwiseFunction::kExp || f == ElementwiseFunction::kLog || f == ElementwiseFunction::kReciprocal ||
         f == ElementwiseFunction::kReciprocalGrad || f == ElementwiseFunction::kPow ||
         f == ElementwiseFunction::kPowGradBase || f == ElementwiseFunction::kPowGradExponent;
}

// Dtypes of the inputs, and of the one output, that every backend has a kernel for; none for kBiasAdd and kCast.
using ElementwiseSignature = std::pair<std::vector<DType>, std::vector<DType>>;
std::vector<ElementwiseSignature> ElementwiseSignatures(ir::OpKind op);

}  // namespace ampd::ops

#endif  // AMPD_ENGINE_OPS_ELEMENTWISE_FUNCTIONS_H_
