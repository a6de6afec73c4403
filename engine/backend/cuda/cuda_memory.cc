#include "engine/backend/cuda/cuda_memory.h"

#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {

int64_t CudaMemory::free_bytes() const {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

absl::StatusOr<void*> CudaMemory::Allocate(int64_t bytes, absl::string_view what) {
  AMPD_ASSIGN_OR_RETURN(DeviceArray array, DeviceArray::Allocate(bytes, what));
  AMPD_RETURN_IF_ERROR(Zero(array.as<void>(), bytes));
  return array.Release();
}

void CudaMemory::Free(void* p) { static_cast<void>(cudaFree(p)); }

absl::Status CudaMemory::Upload(const void* host, int64_t bytes, void* to) {
  const cudaStream_t stream = context_->stream();
  AMPD_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
                            "upload");
  // Other devices are given pageable memory by a copy of it that the driver makes before it returns.
  if (!context_->properties().reads_pageable_memory) return absl::OkStatus();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  AMPD_CUDA_RETURN_IF_ERROR(cudaStreamIsCapturing(stream, &capture), "capture status");
  return capture == cudaStreamCaptureStatusNone ? context_->Wait() : absl::OkStatus();
}

absl::Status CudaMemory::Download(const void* from, int64_t bytes, void* host) {
  AMPD_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, context_->stream()), "download");
  return context_->Wait();
}

absl::Status CudaMemory::Copy(const void* from, int64_t bytes, void* to) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, context_->stream()),
                  "copy");
}

absl::Status CudaMemory::Zero(void* p, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemsetAsync(p, 0, static_cast<size_t>(bytes), context_->stream()), "zero");
}

}  // namespace ampd::cuda
