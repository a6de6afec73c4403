// How a step is decided, by one thread of the device. For .cu files.
#ifndef AMPD_ENGINE_BACKEND_CUDA_STEP_DECISIONS_H_
#define AMPD_ENGINE_BACKEND_CUDA_STEP_DECISIONS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/step_control.h"
#include "engine/optim/scaler_transition.h"
#include "engine/optim/update_scalars.h"

namespace ampd::cuda {

__device__ __forceinline__ const char* SlotOf(const StepControl* control, const FeedRing& ring) {
  return ring.data +
         static_cast<int64_t>(control->attempted_step % static_cast<uint64_t>(ring.slots)) * ring.bytes_per_slot;
}

__device__ __forceinline__ runtime::MicroBatchWeight WeightOf(const StepControl* control, const FeedRing& ring,
                                                              int64_t at) {
  return reinterpret_cast<const runtime::MicroBatchWeight*>(SlotOf(control, ring))[at];
}

// What the step updates by if it is applied, but for the gradients' factor.
__device__ __forceinline__ const optim::UpdateScalars* ScalarsOfNext(const DecisionConfig& config,
                                                                     const PhaseControl& phase) {
  return config.table + (phase.scaler.steps_applied & (config.table_size - 1));
}

__device__ inline void BeginPhase(PhaseControl* phase) {
  phase->unscale = 1.0f / phase->scaler.scale;
  phase->loss = 0;
}

__device__ inline void BeginMicroBatch(const StepControl* control, const PhaseControl* phase,
                                       const runtime::MicroBatchWeight& w, uint64_t seed, uint32_t first_sample,
                                       runtime::StepState* state) {
  state->seed = seed;
  state->attempted_step = control->attempted_step;
  state->first_sample = first_sample;
  state->loss_seed = static_cast<float>(static_cast<double>(phase->scaler.scale) * w.weight / w.total);
}

__device__ inline void AddLoss(const runtime::MicroBatchWeight& w, const float* mean, PhaseControl* phase) {
  phase->loss += static_cast<double>(*mean) * w.weight / w.total;
}

// Fills in what an applied step updates by.
__device__ inline void PrepareUpdate(const DecisionConfig& config, const optim::UpdateScalars& scalars,
                                     PhaseControl* phase) {
  phase->update.scalars = scalars;
  // The scale's reciprocal is rounded once by way of double, too.
  float factor = phase->unscale;
  if (config.clip_norm > 0) {
    const double clip = optim::ClipFactor(sqrt(phase->check.gradients.sum_of_squares), config.clip_norm);
    factor = static_cast<float>(clip / static_cast<double>(phase->scaler.scale));
  }
  phase->update.scalars.gradient_factor = factor;
  phase->update.apply = 1;
}

// What was decided of a step.
struct Verdict {
  uint64_t attempted_step = 0;
  float scale_before = 1;
  optim::ScalerDecision decision = optim::ScalerDecision::kSkip;
  bool decided = false;
  // False: the loop was halted before, and there is no record.
  bool recorded = false;
};

__device__ inline void WriteRecord(const DecisionConfig& config, const Verdict& verdict, const PhaseControl& phase,
                                   const RecordRing& ring, StepControl* control) {
  if (!verdict.recorded) return;
  runtime::StepRecord record;
  record.attempted_step = verdict.attempted_step;
  record.phase = config.phase;
  record.decided = verdict.decided;
  record.decision = verdict.decision;
  record.loss = phase.loss;
  record.check = phase.check.gradients;
  record.first_bad_state = phase.check.first_bad_state;
  record.first_bad_state_is_nan = phase.check.first_bad_state_is_nan;
  record.learning_rate = phase.update.apply != 0 ? phase.update.scalars.learning_rate : 0.0f;
  record.scale_before = verdict.scale_before;
  record.scaler = phase.scaler;
  ring.records[control->records & static_cast<uint64_t>(ring.size - 1)] = record;
  ++control->records;
}

// Shows the host the first `records` records, which are written.
__device__ inline void PublishRecords(uint64_t records, const RecordRing& ring) {
  __threadfence_system();
  *static_cast<volatile uint64_t*>(ring.count) = records;
}

// Moves the scaler and fills in the update's control; halts where it cannot decide or the training cannot go on by
// itself. `scalars`: ScalarsOfNext(). WriteRecord() and PublishRecords() come behind it.
__device__ inline void Decide(StepControl* control, PhaseControl* phase, const DecisionConfig& config,
                              const optim::UpdateScalars* scalars, Verdict* verdict) {
  phase->update.apply = 0;
  verdict->recorded = control->halt == 0;
  if (control->halt != 0) return;
  verdict->attempted_step = control->attempted_step;
  verdict->scale_before = phase->scaler.scale;
  const bool loss_finite = isfinite(phase->loss) && phase->check.first_bad_state < 0;
  const bool clean = loss_finite && phase->check.gradients.finite;
  // Where steps were applied before, only a replay tells whether it was the gradient that overflowed.
  verdict->decided = clean || phase->scaler.steps_applied == 0;
  verdict->decision = optim::ScalerDecision::kSkip;
  if (!verdict->decided) {
    control->halt = 1;
    return;
  }
  if (clean) PrepareUpdate(config, *scalars, phase);
  const auto step = static_cast<int64_t>(control->attempted_step) + 1;
  const optim::ScalerDecision decision =
      optim::transition::Update(config.loss_scale, {loss_finite, phase->check.gradients.finite}, step, &phase->scaler);
  verdict->decision = decision;
  // What is not finite is never applied.
  if (decision != optim::ScalerDecision::kApply && decision != optim::ScalerDecision::kSkip) control->halt = 1;
}

__device__ inline void EndStep(StepControl* control) {
  if (control->halt == 0) ++control->attempted_step;
}

}  // namespace ampd::cuda

#endif  // AMPD_ENGINE_BACKEND_CUDA_STEP_DECISIONS_H_
