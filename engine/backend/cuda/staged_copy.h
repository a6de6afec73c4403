// Batches on their way to the device by way of page-locked memory.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STAGED_COPY_H_
#define AMPD_ENGINE_BACKEND_CUDA_STAGED_COPY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/core/worker_pool.h"

namespace ampd::cuda {

// What lies in one piece in the caller's memory, and begins at byte `at` behind the batch's beginning on the device.
struct StagedPiece {
  int64_t at;
  const char* from;
  int64_t bytes;
};

// Copy() is called from one thread at a time.
class StagedCopier {
 public:
  // Of batches of at most `most_bytes`: large ones are copied by several threads, since one alone takes longer for a
  // batch of images than a fast device for its step.
  explicit StagedCopier(int64_t most_bytes);

  // Copies `pieces`, in the order of their places and apart from each other, to `staging`, which is page-locked, and
  // enqueues their way on to `device`, a large batch's chunk by chunk while the next is copied. What lies between
  // pieces is anything. `pieces` may change after the call, `staging` once the stream is done.
  absl::Status Copy(absl::Span<const StagedPiece> pieces, char* staging, char* device, cudaStream_t stream);

 private:
  void Stage(char* to, const char* from, int64_t bytes);

  WorkerPool pool_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STAGED_COPY_H_
