// Values that change between steps and reach kernels through one fixed address, so that a captured step need not
// change.
#ifndef AMPD_ENGINE_RUNTIME_STEP_STATE_H_
#define AMPD_ENGINE_RUNTIME_STEP_STATE_H_

#include <cstdint>

namespace ampd::runtime {

// Trivially copyable: what runs a step copies it to the backend's memory, and kernels read it there.
struct StepState {
  // Seed of every random stream of the job.
  uint64_t seed = 0;
  // Attempted steps before this one; the step counter of every random draw.
  uint64_t attempted_step = 0;
  // Position within the global batch of the micro-batch's first sample.
  uint32_t first_sample = 0;
  // Gradient of the loss: loss scale * share of the micro-batch in the mean over the batch.
  float loss_seed = 1.0f;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_STEP_STATE_H_
