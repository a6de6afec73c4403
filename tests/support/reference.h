// Every operation of docs/ops.md in float64, written from that page by plain loops and independent of any backend.
#ifndef AMPD_TESTS_SUPPORT_REFERENCE_H_
#define AMPD_TESTS_SUPPORT_REFERENCE_H_

#include <vector>

#include "engine/runtime/kernel_table.h"
#include "engine/runtime/step_state.h"
#include "tests/support/ref_tensor.h"

namespace ampd::testing {

// The outputs of one node, with the shapes of `desc.outputs`; dtypes play no part and nothing is rounded, except that
// cast rounds. Threads are ignored. An effect op returns what it writes: batch_norm_update the new running mean,
// running variance and batch count; accumulate_grad the new gradient slot (`inputs[1]` is the old one). A window of
// pooling with no real cell gives -infinity (max) or 0 (avg).
std::vector<RefTensor> ReferenceOp(const runtime::NodeDesc& desc, const std::vector<RefTensor>& inputs,
                                   const runtime::StepState& step);

// How far a kernel that computes in fp32 and rounds once into the outputs' dtypes may be from ReferenceOp() of the same
// inputs, element by element: for sums of n terms gamma(n) * sum of magnitudes (Higham 2002, section 3.1) with fp32's
// unit roundoff, plus the final rounding, half a unit in the last place.
std::vector<RefTensor> ErrorBound(const runtime::NodeDesc& desc, const std::vector<RefTensor>& inputs,
                                  const std::vector<RefTensor>& outputs, const runtime::StepState& step);

// dtypes of what ReferenceOp() returns: of the outputs, or of the inputs an effect op writes.
std::vector<DType> ResultDTypes(const runtime::NodeDesc& desc);

// One line for the first element of `actual` farther than `bound` from `expected`; empty if there is none. NaN matches
// NaN only and an infinity the same infinity, except that a value which rounds past MaxFinite(dtype) within its bound
// may be infinite. The line also tells how many elements are not finite where they should be, and the first of them.
std::string Compare(const RefTensor& actual, const RefTensor& expected, const RefTensor& bound, DType dtype);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_REFERENCE_H_
