#include "engine/backend/cuda/device_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {

absl::StatusOr<DeviceArray> DeviceArray::Allocate(int64_t bytes, absl::string_view what) {
  DeviceArray array;
  const cudaError_t error = cudaMalloc(&array.data_, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (error == cudaErrorMemoryAllocation) {
    // Else the error would be the next call's, too.
    static_cast<void>(cudaGetLastError());
    size_t free = 0, total = 0;
    AMPD_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free, &total), "free memory");
    return absl::ResourceExhaustedError(absl::StrCat("[cuda] out of device memory: ", bytes, " bytes asked for ", what,
                                                     ", ", free, " of ", total, " free"));
  }
  AMPD_CUDA_RETURN_IF_ERROR(error, absl::StrCat("memory for ", what));
  return array;
}

absl::StatusOr<DeviceArray> DeviceArray::Upload(Context* context, const void* host, int64_t bytes,
                                                absl::string_view what) {
  AMPD_ASSIGN_OR_RETURN(DeviceArray array, Allocate(bytes, what));
  AMPD_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(array.data_, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, context->stream()), what);
  AMPD_RETURN_IF_ERROR(context->Wait());
  return array;
}

DeviceArray::~DeviceArray() { static_cast<void>(cudaFree(data_)); }

absl::StatusOr<PinnedArray> PinnedArray::Allocate(int64_t bytes, absl::string_view what) {
  PinnedArray array;
  const cudaError_t error =
      cudaHostAlloc(&array.data_, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocMapped);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  AMPD_CUDA_RETURN_IF_ERROR(error, absl::StrCat("page-locked memory of ", bytes, " bytes for ", what));
  return array;
}

PinnedArray::~PinnedArray() { static_cast<void>(cudaFreeHost(data_)); }

}  // namespace ampd::cuda
