// The backend that a program of tests shared between backends is linked with.
#ifndef AMPD_TESTS_UNIT_ENGINE_BACKEND_TESTED_BACKEND_H_
#define AMPD_TESTS_UNIT_ENGINE_BACKEND_TESTED_BACKEND_H_

#include <vector>

#include "engine/runtime/backend.h"
#include "tests/unit/engine/backend/kernel_runner.h"

namespace ampd::testing {

// One for the whole program, defined beside each backend's tests; null where there is no device.
runtime::Backend* TheBackend();

// RunKernel() on it.
inline absl::StatusOr<std::vector<Tensor>> RunTested(const runtime::NodeDesc& desc,
                                                     const std::vector<RefTensor>& inputs,
                                                     const runtime::StepState& step = {}) {
  return RunKernel(TheBackend()->kernels(), desc, inputs, step, {}, TheBackend()->memory());
}

}  // namespace ampd::testing

#endif  // AMPD_TESTS_UNIT_ENGINE_BACKEND_TESTED_BACKEND_H_
