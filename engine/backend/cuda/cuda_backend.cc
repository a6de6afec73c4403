#include "engine/backend/cuda_backend.h"

#include <utility>

#include "engine/backend/cuda/context.h"
#include "engine/core/status.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend() {
  absl::StatusOr<std::unique_ptr<cuda::Context>> context = cuda::Context::Open("");
  if (!context.ok()) return Annotate(context.status(), "CUDA backend");
  return absl::UnimplementedError("CUDA backend: training on CUDA devices is not supported yet");
}

}  // namespace ampd
