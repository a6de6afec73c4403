// Shapes, attributes and inputs on which every kernel of a backend is tested: odd extents, extents of one, uneven
// padding, strides larger than the window.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_CASES_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_CASES_H_

#include <string>
#include <vector>

#include "engine/runtime/kernel_table.h"
#include "tests/support/reference.h"

namespace ampd::testing {

struct KernelCase {
  runtime::NodeDesc desc;
  std::vector<RefTensor> inputs;  // exact in the dtypes of desc.inputs
  runtime::StepState step;
};

// Every op and combination of operand dtypes that a backend must have.
std::vector<std::pair<ir::OpKind, runtime::KernelTable::Signature>> RequiredKernels();

// The cases for one row of a kernel table. Deterministic. Output types come from the op's own shape rule.
std::vector<KernelCase> KernelCases(ir::OpKind op, const runtime::KernelTable::Signature& signature);

// "conv2d f16[2, 5, 5, 3] ... -> ..."
std::string Describe(const runtime::NodeDesc& desc);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_CASES_H_
