// As engine/backend/cuda/dynamic_shared.h, whose place it takes: it has the same guard, and cuda_runtime.h includes it.
#ifndef AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_
#define AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_

namespace ampd::cuda {

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(cuda_on_host::dynamic_shared);
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_DYNAMIC_SHARED_H_
