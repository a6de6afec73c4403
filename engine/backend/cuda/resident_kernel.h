// The kernel that takes steps of a small network: what it is given, and its launch. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_RESIDENT_KERNEL_H_
#define AMPD_ENGINE_BACKEND_CUDA_RESIDENT_KERNEL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "engine/backend/cuda/arena_entries.h"
#include "engine/backend/cuda/resident_program.h"
#include "engine/backend/cuda/step_control.h"
#include "engine/backend/cuda/step_decisions.h"

namespace ampd::cuda {

// At the beginning of the block's dynamic shared memory.
struct ResidentHeader {
  StepControl control;
  PhaseControl phase;
  runtime::StepState state;
  // On their way from global memory before they are needed: by the step's parity.
  runtime::MicroBatchWeight weights[2];
  optim::UpdateScalars scalars;
  // What `phase` and `state` were last begun with.
  float begun_scale;
  runtime::MicroBatchWeight begun_weight;
  Verdict verdict;
};

// What is in shared memory during a launch.
struct ResidentArena {
  char* global;
  int64_t offset;
  int64_t bytes;  // a multiple of 16
  bool changes;   // is written back
};
inline constexpr int kMostResidentArenas = 8;

// A piece of a parameter's gradient, which a warp looks at.
struct ResidentGradient {
  int64_t offset;
  int32_t size;
  int32_t slot;   // in backward order
  int32_t first;  // where the piece begins in the slot
};

// What the kernel is given. Addresses may be tagged (resident_program.h) where they are not the loop's. The lists are
// in shared memory, since the first-level cache loses what it holds whenever records are shown to the host; long ones
// of a kernel that interprets may be in global memory.
struct ResidentSteps {
  const ResidentInstruction* instructions;
  int32_t instruction_count;
  const char* operands;
  bool interprets;
  // Whether the first instruction needs what a step begins with: its state, and gradients that are zero.
  bool begins_first;
  int64_t scratch, fragments;  // offsets in shared memory
  // Of two slots of the ring there, this step's and the next one's; -1: there is no room for them.
  int64_t batches;
  const float* loss;

  StepControl* control;
  PhaseControl* phase;
  // Steps of a halted loop are computed, which changes nothing; else none is.
  bool runs_halted;
  FeedRing ring;
  DecisionConfig decision;
  RecordRing records;
  uint64_t seed;

  ResidentArena arenas[kMostResidentArenas];
  int32_t arena_count;
  float* gradients;
  int32_t gradient_floats;

  const ResidentGradient* gradient_pieces;
  int32_t gradient_piece_count;

  optim::OptimizerConfig optimizer;
  UpdateArenas update;
  const UpdateEntry* entries;  // each a warp's
  int32_t entry_count;
  const RangeRule* rules;
};
static_assert(sizeof(ResidentSteps) <= 4096);

// Shared memory that the kernel needs besides: sums over the block use it.
inline constexpr int64_t kResidentReductionBytes = 4096;

// Needs a device.
absl::Status AllowResidentSteps(int64_t shared_bytes);
// Only enqueues.
absl::Status EnqueueResidentSteps(cudaStream_t stream, const ResidentSteps& what, int64_t steps, int64_t shared_bytes);

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_RESIDENT_KERNEL_H_
