#include "engine/backend/cuda_build.h"

#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#endif

namespace ampd {

#ifdef __CUDACC__

CudaBuild ThisCudaBuild() {
  // Ascending, e.g. 750, 900.
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
  return {CUDART_VERSION, kArchitectures[0] / 10};
}

#else  // Compiled as plain C++, which runs on no GPU.

CudaBuild ThisCudaBuild() { return {}; }

#endif

}  // namespace ampd
