// Internal: runs a kernel's blocks, one after the other.
#ifndef AMPD_TESTS_SUPPORT_CUDA_ON_HOST_RUN_GRID_H_
#define AMPD_TESTS_SUPPORT_CUDA_ON_HOST_RUN_GRID_H_

#include <cstddef>
#include <functional>

#include "tests/support/cuda_on_host/cuda_runtime_api.h"

namespace cuda_on_host {

// Calls `body` as every thread of every block. One call at a time.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

}  // namespace cuda_on_host

#endif  // AMPD_TESTS_SUPPORT_CUDA_ON_HOST_RUN_GRID_H_
