#include "engine/backend/cuda_backend.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend(const std::string&, const std::string&) {
  return absl::UnimplementedError("CUDA backend: built without a CUDA toolkit");
}

absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaPlanner(const AbsentGpu&) {
  return absl::UnimplementedError("built without a CUDA toolkit");
}

std::string CudaPlanLibrary() { return ""; }
std::string CudaPlanLibraryFolder() { return ""; }

std::map<std::string, std::string> CudaLibraries() { return {}; }

}  // namespace ampd
