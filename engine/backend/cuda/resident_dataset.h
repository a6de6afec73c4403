// A training's samples in the device's memory, and the kernel that makes of them what a batch fed by the host would be.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_DATASET_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_DATASET_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/core/host_device.h"
#include "engine/runtime/memory.h"
#include "engine/runtime/step_loop.h"

namespace ampd::cuda {

// Where an input of one micro-batch lies in a slot of the feed ring.
struct FeedPlace {
  int64_t offset = 0;  // of the first micro-batch
  int64_t bytes = 0;   // of one micro-batch
  int64_t stride = 0;  // from one to the next
};

// What a slot of the ring is made of, all of them alike; the ring is the device's.
struct SlotLayout {
  char* ring = nullptr;
  int64_t slots = 1;
  int64_t bytes_per_slot = 0;
  // Of the micro-batches' weights, with which a slot begins.
  int64_t weight_bytes = 0;
  int64_t micro_batches = 1;
  int64_t micro_batch_size = 1;
  // Of 0 bytes: no plan reads it.
  FeedPlace input;
  FeedPlace target;

  AMPD_HOST_DEVICE int64_t batch_size() const { return micro_batches * micro_batch_size; }
};

// The samples, as the kernel sees them; pointers are the device's. Of what no plan reads there is none.
struct ResidentSamples {
  const void* values = nullptr;
  const uint32_t* targets = nullptr;
  int64_t values_per_sample = 0;
  bool bytes = false;
  ImageAugmentation augmentation;
  // How many of `mean` and `std` there are; null: values are left as they are.
  int64_t channels = 1;
  const double* mean = nullptr;
  const double* std = nullptr;
  // Of bytes, every result, 256 a channel; null: they are computed.
  const float* table = nullptr;
  uint64_t seed = 0;
  int64_t target_words = 0;
  int64_t one_hot = 0;
};

// Thread-compatible, as the loop it belongs to.
class ResidentDataset {
 public:
  // Reads and uploads the samples piece by piece. RESOURCE_EXHAUSTED where they take more than `samples.max_bytes`,
  // below 0 a sixteenth of what is free, or more than there is; UNIMPLEMENTED where they do not make the bytes that the
  // plans read; errors of samples.read.
  static absl::StatusOr<std::unique_ptr<ResidentDataset>> Create(Context* context, runtime::Memory* memory,
                                                                 const runtime::StoredSamples& samples,
                                                                 const SlotLayout& layout);

  // What step `step` is made of, for Expand(). The slot of the step must not be in use. INVALID_ARGUMENT as
  // StepLoop::FeedSamples.
  absl::Status Note(uint64_t step, absl::Span<const int64_t> samples,
                    absl::Span<const runtime::MicroBatchWeight> weights);

  // Writes the slots of steps [first, end), all of which were noted, no more than there are slots. Only enqueues, on
  // `stream`.
  absl::Status Expand(cudaStream_t stream, uint64_t first, uint64_t end) const;

 private:
  ResidentDataset(Context* context, const SlotLayout& layout) : context_(context), layout_(layout) {}
  absl::Status AllocateNotes();
  absl::Status AllocateSamples(const runtime::StoredSamples& samples);
  absl::Status Upload(runtime::Memory* memory, const runtime::StoredSamples& samples);
  absl::Status UploadNormalization(runtime::Memory* memory, const runtime::StoredSamples& samples);

  Context* const context_;
  const SlotLayout layout_;
  int64_t size_ = 0;
  int64_t note_bytes_ = 0;
  ResidentSamples samples_;
  DeviceArray values_, targets_, mean_, std_, table_, device_notes_;
  // By slot: the weights, then the batch's samples as i32.
  PinnedArray notes_;
};

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_DATASET_H_
