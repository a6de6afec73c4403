// What a captured step decides by, all of it in device memory; and the small kernels that decide. For .cu files and
// step_loop.cc.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STEP_CONTROL_H_
#define AMPD_ENGINE_BACKEND_CUDA_STEP_CONTROL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "engine/backend/cuda/arena_passes.h"
#include "engine/runtime/step_loop.h"

namespace ampd::cuda {

// Of one phase.
struct PhaseControl {
  optim::LossScalerState scaler;
  // 1 / scale.
  float unscale = 1;
  // Sum over the micro-batches so far.
  double loss = 0;
  CheckResult check;
  UpdateControl update;
};

// Of the loop.
struct StepControl {
  uint64_t attempted_step = 0;
  // Not 0: everything that follows changes nothing.
  int32_t halt = 0;
  // Records written since the loop was made.
  uint64_t records = 0;
};

// Where fed batches lie: `slots` times `bytes_per_slot`; step s is in slot s % slots, which begins with the weights of
// its micro-batches, by phase.
struct FeedRing {
  const char* data = nullptr;
  int64_t slots = 1;
  int64_t bytes_per_slot = 0;
};

// Records in page-locked memory, `size` of them, a power of two: record i is at i % size. `count` is written behind a
// record.
struct RecordRing {
  runtime::StepRecord* records = nullptr;
  uint64_t* count = nullptr;
  int64_t size = 1;
};

// Of a phase; constants of the loop.
struct DecisionConfig {
  int32_t phase = 0;
  optim::LossScaleConfig loss_scale;
  double clip_norm = 0;  // 0: none
  // The numbers of the update that follows n applied steps are at n % table_size, a power of two.
  const optim::UpdateScalars* table = nullptr;
  int64_t table_size = 1;
};

// Everything here only enqueues; pointers are the device's.

absl::Status EnqueueBeginPhase(cudaStream_t stream, PhaseControl* phase);
// Writes the StepState of micro-batch `index` of `count`, of `size` samples each.
absl::Status EnqueueBeginMicroBatch(cudaStream_t stream, const StepControl* control, const PhaseControl* phase,
                                    const FeedRing& ring, int32_t phase_index, int64_t index, int64_t count,
                                    int64_t size, uint64_t seed, runtime::StepState* state);
// Copies `bytes` at `offset` of the step's slot; both are multiples of 16 from aligned memory.
absl::Status EnqueueGather(cudaStream_t stream, int sm_count, const StepControl* control, const FeedRing& ring,
                           int64_t offset, int64_t bytes, void* to);
absl::Status EnqueueAddLoss(cudaStream_t stream, const StepControl* control, const FeedRing& ring, int32_t phase_index,
                            int64_t index, int64_t count, const float* mean, PhaseControl* phase);
// Moves the scaler, fills in the update's control, writes the record; halts where it cannot decide or the training
// cannot go on by itself.
absl::Status EnqueueDecide(cudaStream_t stream, StepControl* control, PhaseControl* phase, const DecisionConfig& config,
                           const RecordRing& records);
// Makes the pending state the committed one where the step was applied. `bytes` is a multiple of 16.
absl::Status EnqueueCommitState(cudaStream_t stream, int sm_count, const PhaseControl* phase, const void* pending,
                                int64_t bytes, void* committed);
absl::Status EnqueueEndStep(cudaStream_t stream, StepControl* control);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STEP_CONTROL_H_
