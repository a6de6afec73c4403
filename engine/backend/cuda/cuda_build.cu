#include "engine/backend/cuda_build.h"

namespace ampd {

#ifdef __CUDACC__

CudaBuild ThisCudaBuild() {
  // Ascending, e.g. 750, 900.
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
  return {__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10, kArchitectures[0] / 10};
}

#else  // Compiled as plain C++, which runs on no GPU.

CudaBuild ThisCudaBuild() { return {}; }

#endif

}  // namespace ampd
