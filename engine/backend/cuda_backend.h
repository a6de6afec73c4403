// The CUDA backend, or what stands in for it where no CUDA toolkit was found at build time. Link
// ampd_backend_cuda_or_none, which is exactly one of engine/backend/cuda and engine/backend/no_cuda.
#ifndef AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
#define AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"

namespace ampd {

// A backend on the CUDA device of this UUID ("GPU-..."), or on the first one if it is empty. UNIMPLEMENTED: this build
// has no CUDA. UNAVAILABLE, with CUDA's error: no driver, one that is too old, or no device. NOT_FOUND: no such device.
// `autotune_dir`: an existing folder for what is measured of libraries' algorithms, so that later backends that have it
// too run the same ones and give the same bits; empty: that ends with the backend.
absl::StatusOr<std::unique_ptr<runtime::Backend>> MakeCudaBackend(const std::string& uuid,
                                                                  const std::string& autotune_dir = "");

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CUDA_BACKEND_H_
