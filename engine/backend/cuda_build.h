// What the CUDA backend of this program was built with; needs no driver.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BUILD_H_
#define AMPD_ENGINE_BACKEND_CUDA_BUILD_H_

namespace ampd {

struct CudaBuild {
  // Of the toolkit, e.g. 13000 for 13.0; 0: built without CUDA.
  int version = 0;
  // The lowest compute capability that kernels were compiled for, e.g. 75 for 7.5; 0 without CUDA.
  int min_compute_capability = 0;
};

CudaBuild ThisCudaBuild();

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CUDA_BUILD_H_
