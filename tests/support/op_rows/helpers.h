// Shared by the files of rows: signatures, broadcasting, and rows of elementwise ops.
#ifndef AMPD_TESTS_SUPPORT_OP_ROWS_HELPERS_H_
#define AMPD_TESTS_SUPPORT_OP_ROWS_HELPERS_H_

#include <functional>
#include <vector>

#include "tests/support/op_rows.h"

namespace ampd::testing {

inline const std::vector<DType> kFloatTypes = {DType::kF32, DType::kF16, DType::kBF16};
inline const std::vector<DType> kIntegerTypes = {DType::kI32, DType::kI64, DType::kU8};
inline const std::vector<DType> kNumberTypes = {DType::kF32, DType::kF16, DType::kBF16,
                                                DType::kI32, DType::kI64, DType::kU8};
inline const std::vector<DType> kEveryType = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                                              DType::kI32, DType::kI64, DType::kU8,   DType::kBool};

// `count` inputs and one output, all of one of `dtypes`.
std::vector<runtime::KernelTable::Signature> SameSignatures(const std::vector<DType>& dtypes, size_t count);

// `count` inputs of one shape each: one element, odd extents, more than a block, enough for two threads.
std::vector<OpShapes> SameShapes(size_t count, const ir::Attributes& attributes = {});

// Two or three inputs that broadcast against each other in every way.
std::vector<OpShapes> BroadcastShapes(size_t count, const ir::Attributes& attributes = {});

void Append(std::vector<OpShapes>* cases, std::vector<OpShapes> more);

// Which element of a tensor of shape `from` stands at element `i` of shape `to` that it broadcasts to.
int64_t BroadcastElement(const Shape& from, const Shape& to, int64_t i);

// The index along each axis of element `i`, and back.
Shape IndexOf(const Shape& shape, int64_t i);
int64_t ElementAt(const Shape& shape, const Shape& index);

// Small integers of either sign for integer tensors (u8: not negative); an empty tensor for others.
RefTensor SmallIntegers(const ir::TensorType& type, Random* random, int64_t low = -9, int64_t high = 9);

// As the integer dtype stores it: modulo its width.
double Wrapped(double value, DType dtype);

// An op whose output at a place is `f` of the inputs broadcast there; `error` of the same, in absolute terms (null: the
// result is exact). Fills in the reference, the error and inputs for integers.
using ElementFunction = std::function<double(const runtime::NodeDesc& desc, const double* in)>;
using ElementError = std::function<double(const runtime::NodeDesc& desc, const double* in, double out)>;
OpRow ElementwiseRow(ir::OpKind op, ElementFunction f, ElementError error);

// `roundings` of the result's magnitude.
ElementError Relative(double roundings);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_OP_ROWS_HELPERS_H_
