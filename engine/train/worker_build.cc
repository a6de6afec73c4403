#include "engine/train/worker_build.h"

#include "engine/backend/cuda_backend.h"
#include "engine/backend/cuda_build.h"

namespace ampd::train {

v1::WorkerBuild ThisBuild() {
  const CudaBuild cuda = ThisCudaBuild();
  v1::WorkerBuild build;
  build.set_cuda_version(cuda.version);
  build.set_min_compute_capability(cuda.min_compute_capability);
  return build;
}

std::string PlanLibraryFolder() { return CudaPlanLibraryFolder(); }

}  // namespace ampd::train
