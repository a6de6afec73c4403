// A block's dynamic shared memory.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_
#define AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_

#include <cuda_runtime.h>

namespace ampd::cuda {

// Its start, aligned to 128 bytes; as much as the launch asked for, undefined at first.
template <typename T>
__device__ inline T* DynamicShared() {
  extern __shared__ __align__(128) unsigned char ampd_dynamic_shared[];
  return reinterpret_cast<T*>(ampd_dynamic_shared);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_
