// The CUDA backend, or what stands in for it where no CUDA toolkit was found at build time. Link
// ampd_backend_cuda_or_none, which is exactly one of engine/backend/cuda and engine/backend/no_cuda.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
#define AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"

namespace ampd {

// A backend on the CUDA device of this UUID ("GPU-..."), or on the first one if it is empty. UNIMPLEMENTED: this build
// has no CUDA. UNAVAILABLE, with CUDA's error: no driver, one that is too old, or no device. NOT_FOUND: no such device.
// `autotune_dir`: an existing folder for what is measured of libraries' algorithms and of the ways to launch steps, so
// that later backends that have it too choose the same ones and give the same bits; empty: that ends with the backend.
absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend(const std::string& uuid,
                                                                  const std::string& autotune_dir = "");

// A GPU as plans for it need it.
struct AbsentGpu {
  std::string name;
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
};

// A backend that plans as MakeCudaBackend()'s does on such a GPU, which need not be here, and runs nothing: padding,
// published copies, what is joined, and the workspace of every kernel, of convolutions and attention as cuDNN's plans
// for the GPU have it; products of matrices ask for what they do anywhere. cuDNN takes some 10 ms for each convolution
// and attention that differs from those before; a plan fails with RESOURCE_EXHAUSTED at the 121st. UNIMPLEMENTED: this
// build has no CUDA, or no cuDNN. INVALID_ARGUMENT, saying what is missing, for a GPU of which not all is known.
absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaPlanner(const AbsentGpu& gpu);
// The library that it asks, e.g. "cuDNN 9.19.0", and the folder that its files lie in; empty where it is UNIMPLEMENTED.
std::string CudaPlanLibrary();
std::string CudaPlanLibraryFolder();

// Versions by name of what this build's CUDA backend calls: "cuda", "cublas", and "cudnn" where it has it; and of CUDA
// the version that the driver is for, "cuda_driver", where there is one. Empty: this build has no CUDA.
std::map<std::string, std::string> CudaLibraries();

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
