#include "tests/unit/engine/backend/tested_backend.h"

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/cuda_backend_impl.h"

namespace ampd::testing {

runtime::Backend* TheBackend() {
  static runtime::Backend* const backend = []() -> runtime::Backend* {
    absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open("");
    return context.ok() ? new cuda::CudaBackend(*std::move(context)) : nullptr;
  }();
  return backend;
}

}  // namespace ampd::testing
