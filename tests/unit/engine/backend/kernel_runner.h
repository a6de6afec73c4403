// Runs one kernel outside any plan: poisoned outputs and workspace, guards behind them, published parameters.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_RUNNER_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_RUNNER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/kernel_table.h"
#include "engine/runtime/memory.h"
#include "tests/support/ref_tensor.h"

namespace ampd::testing {

// The outputs, or for an effect op the inputs it writes. Outputs and workspace hold NaN before; a write behind either
// is an INTERNAL error. Inputs that desc.parameter_inputs marks are published as the kernel asks, from masters
// `masters[i]` (f32; null: the input itself). `memory`: the backend's.
absl::StatusOr<std::vector<Tensor>> RunKernel(const runtime::KernelTable& table, const runtime::NodeDesc& desc,
                                              const std::vector<RefTensor>& inputs, const runtime::StepState& step,
                                              const std::vector<const RefTensor*>& masters = {},
                                              runtime::Memory* memory = runtime::HostMemory());

bool SameBits(const Tensor& a, const Tensor& b);

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_KERNEL_RUNNER_H_
