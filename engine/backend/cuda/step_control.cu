#include "engine/backend/cuda/step_control.h"

#include <type_traits>

#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/step_decisions.h"

namespace ampd::cuda {
namespace {

constexpr int kThreads = 256;

static_assert(std::is_trivially_copyable_v<PhaseControl> && std::is_trivially_copyable_v<StepControl> &&
              std::is_trivially_copyable_v<DecisionConfig> && std::is_trivially_copyable_v<runtime::StepRecord>);

__global__ void BeginPhaseOnce(PhaseControl* phase) { BeginPhase(phase); }

__global__ void BeginMicroBatchOnce(const StepControl* control, const PhaseControl* phase, FeedRing ring, int64_t at,
                                    uint64_t seed, uint32_t first_sample, runtime::StepState* state) {
  BeginMicroBatch(control, phase, WeightOf(control, ring, at), seed, first_sample, state);
}

__global__ void Gather(const StepControl* control, FeedRing ring, int64_t offset, int64_t packs, uint4* to) {
  const auto* from = reinterpret_cast<const uint4*>(SlotOf(control, ring) + offset);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) to[i] = from[i];
}

__global__ void AddLossOnce(const StepControl* control, FeedRing ring, int64_t at, const float* mean,
                            PhaseControl* phase) {
  AddLoss(WeightOf(control, ring, at), mean, phase);
}

__global__ void DecideOnce(StepControl* control, PhaseControl* phase, DecisionConfig config, RecordRing records) {
  Verdict verdict;
  Decide(control, phase, config, ScalarsOfNext(config, *phase), &verdict);
  WriteRecord(config, verdict, *phase, records, control);
  PublishRecords(control->records, records);
}

__global__ void CommitState(const PhaseControl* phase, const uint4* pending, int64_t packs, uint4* committed) {
  if (phase->update.apply == 0) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) {
    committed[i] = pending[i];
  }
}

__global__ void EndStepOnce(StepControl* control) { EndStep(control); }

}  // namespace

absl::Status EnqueueBeginPhase(cudaStream_t stream, PhaseControl* phase) {
  return Launch("begin phase", BeginPhaseOnce, 1, 1, 0, stream, phase);
}

absl::Status EnqueueBeginMicroBatch(cudaStream_t stream, const StepControl* control, const PhaseControl* phase,
                                    const FeedRing& ring, int32_t phase_index, int64_t index, int64_t count,
                                    int64_t size, uint64_t seed, runtime::StepState* state) {
  return Launch("begin micro-batch", BeginMicroBatchOnce, 1, 1, 0, stream, control, phase, ring,
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
  return Launch("add loss", AddLossOnce, 1, 1, 0, stream, control, ring, phase_index * count + index, mean, phase);
}

absl::Status EnqueueDecide(cudaStream_t stream, StepControl* control, PhaseControl* phase, const DecisionConfig& config,
                           const RecordRing& records) {
  return Launch("decide", DecideOnce, 1, 1, 0, stream, control, phase, config, records);
}

absl::Status EnqueueCommitState(cudaStream_t stream, int sm_count, const PhaseControl* phase, const void* pending,
                                int64_t bytes, void* committed) {
  if (bytes == 0) return absl::OkStatus();
  const int64_t packs = CeilDiv(bytes, 16);
  return Launch("commit state", CommitState, BlocksFor(packs, kThreads, sm_count), kThreads, 0, stream, phase,
                static_cast<const uint4*>(pending), packs, static_cast<uint4*>(committed));
}

absl::Status EnqueueEndStep(cudaStream_t stream, StepControl* control) {
  return Launch("end step", EndStepOnce, 1, 1, 0, stream, control);
}

}  // namespace ampd::cuda
