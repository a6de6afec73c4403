#include "engine/backend/cuda/step_control.h"

#include <type_traits>

#include "engine/backend/cuda/launch.h"
#include "engine/optim/scaler_transition.h"
#include "engine/optim/update_scalars.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

static_assert(std::is_trivially_copyable_v<PhaseControl> && std::is_trivially_copyable_v<StepControl> &&
              std::is_trivially_copyable_v<DecisionConfig> && std::is_trivially_copyable_v<runtime::StepRecord>);

__device__ __forceinline__ const char* SlotOf(const StepControl* control, const FeedRing& ring) {
  return ring.data +
         static_cast<int64_t>(control->attempted_step % static_cast<uint64_t>(ring.slots)) * ring.bytes_per_slot;
}

__device__ __forceinline__ runtime::MicroBatchWeight WeightOf(const StepControl* control, const FeedRing& ring,
                                                              int64_t at) {
  return reinterpret_cast<const runtime::MicroBatchWeight*>(SlotOf(control, ring))[at];
}

__global__ void BeginPhase(PhaseControl* phase) {
  phase->unscale = 1.0f / phase->scaler.scale;
  phase->loss = 0;
}

__global__ void BeginMicroBatch(const StepControl* control, const PhaseControl* phase, FeedRing ring, int64_t at,
                                uint64_t seed, uint32_t first_sample, runtime::StepState* state) {
  const runtime::MicroBatchWeight w = WeightOf(control, ring, at);
  state->seed = seed;
  state->attempted_step = control->attempted_step;
  state->first_sample = first_sample;
  state->loss_seed = static_cast<float>(static_cast<double>(phase->scaler.scale) * w.weight / w.total);
}

__global__ void Gather(const StepControl* control, FeedRing ring, int64_t offset, int64_t packs, uint4* to) {
  const auto* from = reinterpret_cast<const uint4*>(SlotOf(control, ring) + offset);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) to[i] = from[i];
}

__global__ void AddLoss(const StepControl* control, FeedRing ring, int64_t at, const float* mean, PhaseControl* phase) {
  const runtime::MicroBatchWeight w = WeightOf(control, ring, at);
  phase->loss += static_cast<double>(*mean) * w.weight / w.total;
}

// Fills in what an applied step updates by.
__device__ inline void PrepareUpdate(const DecisionConfig& config, const optim::LossScalerState& before,
                                     PhaseControl* phase) {
  const double norm = sqrt(phase->check.gradients.sum_of_squares);
  const double clip = config.clip_norm > 0 ? optim::ClipFactor(norm, config.clip_norm) : 1.0;
  phase->update.scalars = config.table[before.steps_applied % config.table_size];
  phase->update.scalars.gradient_factor = static_cast<float>(clip / static_cast<double>(before.scale));
  phase->update.apply = 1;
}

__device__ inline void WriteRecord(const DecisionConfig& config, const optim::LossScalerState& before, bool decided,
                                   optim::ScalerDecision decision, const PhaseControl& phase, const RecordRing& ring,
                                   StepControl* control) {
  runtime::StepRecord record;
  record.attempted_step = control->attempted_step;
  record.phase = config.phase;
  record.decided = decided;
  record.decision = decision;
  record.loss = phase.loss;
  record.check = phase.check.gradients;
  record.first_bad_state = phase.check.first_bad_state;
  record.first_bad_state_is_nan = phase.check.first_bad_state_is_nan;
  record.learning_rate = phase.update.apply != 0 ? phase.update.scalars.learning_rate : 0.0f;
  record.scale_before = before.scale;
  record.scaler = phase.scaler;
  ring.records[control->records % static_cast<uint64_t>(ring.size)] = record;
  __threadfence_system();
  ++control->records;
  *static_cast<volatile uint64_t*>(ring.count) = control->records;
}

__global__ void Decide(StepControl* control, PhaseControl* phase, DecisionConfig config, RecordRing records) {
  phase->update.apply = 0;
  if (control->halt != 0) return;
  const optim::LossScalerState before = phase->scaler;
  const bool loss_finite = isfinite(phase->loss) && phase->check.first_bad_state < 0;
  const bool clean = loss_finite && phase->check.gradients.finite;
  if (!clean && before.steps_applied > 0) {
    // Whether it was the gradient that overflowed, only a replay tells.
    control->halt = 1;
    return WriteRecord(config, before, /*decided=*/false, optim::ScalerDecision::kSkip, *phase, records, control);
  }
  const auto step = static_cast<int64_t>(control->attempted_step) + 1;
  const optim::ScalerDecision decision =
      optim::transition::Update(config.loss_scale, {loss_finite, phase->check.gradients.finite}, step, &phase->scaler);
  if (decision == optim::ScalerDecision::kApply) {
    PrepareUpdate(config, before, phase);
  } else if (decision != optim::ScalerDecision::kSkip) {
    control->halt = 1;
  }
  WriteRecord(config, before, /*decided=*/true, decision, *phase, records, control);
}

__global__ void CommitState(const PhaseControl* phase, const uint4* pending, int64_t packs, uint4* committed) {
  if (phase->update.apply == 0) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) {
    committed[i] = pending[i];
  }
}

__global__ void EndStep(StepControl* control) {
  if (control->halt == 0) ++control->attempted_step;
}

}  // namespace

absl::Status EnqueueBeginPhase(cudaStream_t stream, PhaseControl* phase) {
  return Launch("begin phase", BeginPhase, 1, 1, 0, stream, phase);
}

absl::Status EnqueueBeginMicroBatch(cudaStream_t stream, const StepControl* control, const PhaseControl* phase,
                                    const FeedRing& ring, int32_t phase_index, int64_t index, int64_t count,
                                    int64_t size, uint64_t seed, runtime::StepState* state) {
  return Launch("begin micro-batch", BeginMicroBatch, 1, 1, 0, stream, control, phase, ring,
                phase_index * count + index, seed, static_cast<uint32_t>(index * size), state);
}

absl::Status EnqueueGather(cudaStream_t stream, int sm_count, const StepControl* control, const FeedRing& ring,
                           int64_t offset, int64_t bytes, void* to) {
  const int64_t packs = CeilDiv(bytes, 16);
  return Launch("gather", Gather, BlocksFor(packs, kThreads, sm_count), kThreads, 0, stream, control, ring, offset,
                packs, static_cast<uint4*>(to));
}

absl::Status EnqueueAddLoss(cudaStream_t stream, const StepControl* control, const FeedRing& ring, int32_t phase_index,
                            int64_t index, int64_t count, const float* mean, PhaseControl* phase) {
  return Launch("add loss", AddLoss, 1, 1, 0, stream, control, ring, phase_index * count + index, mean, phase);
}

absl::Status EnqueueDecide(cudaStream_t stream, StepControl* control, PhaseControl* phase, const DecisionConfig& config,
                           const RecordRing& records) {
  return Launch("decide", Decide, 1, 1, 0, stream, control, phase, config, records);
}

absl::Status EnqueueCommitState(cudaStream_t stream, int sm_count, const PhaseControl* phase, const void* pending,
                                int64_t bytes, void* committed) {
  if (bytes == 0) return absl::OkStatus();
  const int64_t packs = CeilDiv(bytes, 16);
  return Launch("commit state", CommitState, BlocksFor(packs, kThreads, sm_count), kThreads, 0, stream, phase,
                static_cast<const uint4*>(pending), packs, static_cast<uint4*>(committed));
}

absl::Status EnqueueEndStep(cudaStream_t stream, StepControl* control) {
  return Launch("end step", EndStep, 1, 1, 0, stream, control);
}

}  // namespace ampd::cuda
