#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/backend/cuda/conv.h"
#include "engine/backend/cuda_backend.h"

namespace ampd {
namespace {

std::string CudaVersion(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

std::map<std::string, std::string> CudaLibraries() {
  std::map<std::string, std::string> libraries;
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) libraries["cuda"] = CudaVersion(version);
  // 0: none is installed.
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) libraries["cuda_driver"] = CudaVersion(version);
  const size_t cublas = cublasLtGetVersion();
  libraries["cublas"] = absl::StrCat(cublas / 10000, ".", cublas / 100 % 100, ".", cublas % 100);
  const std::string cudnn = cuda::ConvLibraryName();
  if (absl::StartsWith(cudnn, "cuDNN ")) libraries["cudnn"] = std::string(absl::StripPrefix(cudnn, "cuDNN "));
  return libraries;
}

}  // namespace ampd
