// What the tests know of an op, one file an op in tests/support/op_rows/: its meaning in float64, written from
// docs/ops.md by plain loops and independent of any backend, and the shapes it is tried on. ReferenceOp(),
// ErrorBound(), the walk over every kernel of a backend, and the gradient check read these rows.
#ifndef AMPD_TESTS_SUPPORT_OP_ROWS_H_
#define AMPD_TESTS_SUPPORT_OP_ROWS_H_

#include <functional>
#include <vector>

#include "engine/runtime/kernel_table.h"
#include "tests/support/ref_tensor.h"

namespace ampd::testing {

using RefTensors = std::vector<RefTensor>;

// One use of an op. Shapes of every input, optional ones only where the case has them.
struct OpShapes {
  ir::Attributes attributes;
  std::vector<Shape> inputs;
};

struct OpRow {
  ir::OpKind op = ir::OpKind::kAdd;
  // Operand dtypes that every backend has a kernel for, as KernelTable::Signature lists them. Optional inputs: one
  // signature for each number of inputs.
  std::vector<runtime::KernelTable::Signature> signatures;
  // Odd extents, extents of one, every attribute. A case is run for each signature of as many inputs; all for each
  // signature if the op is variadic.
  std::vector<OpShapes> cases;
  // Small uses whose gradient is compared with finite differences: float inputs are parameters. Empty for ops without a
  // gradient rule. Non-float inputs take their dtypes from the first signature of as many inputs.
  std::vector<OpShapes> gradient_cases;
  // Float inputs that have no gradient, such as targets and weights: drawn as for `cases`, not parameters. Positions
  // that a case does not have are passed over.
  std::vector<int> constant_inputs;
  // How many of the first outputs have a gradient; the others are saved for the backward pass.
  int differentiable_outputs = 1;
  // Float inputs of gradient cases, away from kinks and poles; null: uniform in [-1, 1).
  std::function<RefTensor(const runtime::NodeDesc&, int i, Random*)> gradient_input;
  // The outputs, unrounded.
  std::function<RefTensors(const runtime::NodeDesc&, const RefTensors& inputs, const runtime::StepState&)> reference;
  // Absolute error, element by element, that a kernel computing in fp32 may make before the one rounding into the
  // output's dtype. Null: none (the result is exact in fp32).
  std::function<RefTensors(const runtime::NodeDesc&, const RefTensors& inputs, const RefTensors& outputs)> error;
  // Values of input `i`, exact in its dtype; an empty tensor or a null function: uniform in [-3, 3), bools even, i32
  // must be given.
  std::function<RefTensor(const runtime::NodeDesc&, int i, Random*)> input;
  // Inputs that depend on other inputs (a maximum's position, a forward pass's statistics): changes the drawn ones.
  std::function<void(const runtime::NodeDesc&, RefTensors* inputs)> adjust_inputs;
};

// The row of `op`, or null.
const OpRow* FindOpRow(ir::OpKind op);
const std::vector<OpRow>& AllOpRows();

// fp32's unit roundoff, and Higham's gamma(n) = n u / (1 - n u) for a sum of n terms (Higham 2002, section 3.1).
inline constexpr double kF32Roundoff = 0x1p-24;
double Gamma(double n);

// Set on a desc for the references (no kernel knows of it): operands of every product are rounded to 10 fraction bits,
// inputs and what the op makes by itself alike, nothing else. Attention and the recurrences carry it out; what they
// cannot know to the bit, such as weights relative to a running maximum, their errors allow for.
inline constexpr char kRoundOperands[] = "round_operands";
// 11 significant bits, ties to even, as TF32 keeps them; and the most that this changes a number relatively.
double RoundTf32(double x);
inline constexpr double kTf32Roundoff = 0x1p-11;

// `roundings` fp32 roundings of each output's own magnitude: for elementwise functions of finite results.
std::function<RefTensors(const runtime::NodeDesc&, const RefTensors&, const RefTensors&)> RelativeError(
    double roundings);

// The draws of one case's inputs, by `row.input` and `row.adjust_inputs`.
RefTensors DrawInputs(const OpRow& row, const runtime::NodeDesc& desc, Random* random);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_OP_ROWS_H_
