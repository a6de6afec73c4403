// One attempted step: forward, backward, check, and the update, or a skip that changes nothing but the scaler.
#ifndef AMPD_ENGINE_TRAIN_STEP_RUNNER_H_
#define AMPD_ENGINE_TRAIN_STEP_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/schedule.h"
#include "engine/runtime/collective.h"
#include "engine/runtime/step_loop.h"
#include "engine/train/attribution.h"
#include "engine/train/micro_batches.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// What a step came to.
struct StepResult {
  // Mean over the batch, unscaled.
  double loss = 0;
  optim::ScalerDecision decision = optim::ScalerDecision::kApply;
  // No step of the phase had been applied before.
  bool calibration = false;
  float scale_before = 1;
  float scale_after = 1;
  // Applied steps only: the rate used, and the L2 norm of the unscaled gradients before clipping.
  double learning_rate = 0;
  double gradient_norm = 0;
  // Skipped steps only.
  NonFinite first_non_finite;

  bool applied() const { return decision == optim::ScalerDecision::kApply; }
};

// Thread-compatible. An applied step of one replica allocates nothing.
class StepRunner {
 public:
  // Of phase `phase`. Borrows plan and model. `total_steps`: planned for the job. `collective`: of one of several
  // replicas, borrowed; the others have runners of their own, and models that are equal but for running statistics.
  StepRunner(int64_t total_steps, PlannedModel* plan, LoadedModel* model, int phase = 0,
             runtime::Collective* collective = nullptr, int64_t bucket_bytes = runtime::kGradientBucketBytes);

  // Runs the phase's plans on zeros, for what a device loads, measures and allocates at a first run. Of several
  // replicas alone: what a replica does then may have to wait for the kernels of a sum that waits for this replica.
  // Between steps; leaves nothing that a step reads.
  absl::Status WarmUp();

  // Trains on `batch` (whose `step` is the attempted step, from 0) and moves `scaler`. Masters and moments of the
  // phase's parameters, and untrained state, change only if the loss, every gradient and every new state is finite;
  // this is so in every mode.
  // Of several replicas all run the same batch, each in its own thread, and take their share of it: the result, what
  // becomes of `scaler`, and the bits of masters, moments, average and FP8 scales are the same in all. A replica that
  // gets an error of its own must abort the collective's group, which the others wait for.
  absl::StatusOr<StepResult> Run(const data::Batch& batch, optim::LossScalerState* scaler);

  // Times what Run() does from here on; nullptr: nothing does. Borrowed. A replay of a skipped step is no part of it.
  void set_profiler(StepProfiler* profiler) { profiler_ = profiler; }

  // What a device made of a step of this phase and decided.
  StepResult ResultOf(const runtime::StepRecord& record) const;
  // As Run(), of a step that a device has taken up to the check but not decided: on unchanged parameters, the same
  // batch and the same scaler.
  absl::StatusOr<StepResult> Resolve(const data::Batch& batch, const runtime::StepRecord& record,
                                     optim::LossScalerState* scaler);
  // This phase, for a device that takes steps by itself. Borrows the runner.
  runtime::StepLoopPhase LoopPhase() const;
  const MicroBatches& micro_batches() const { return micro_batches_; }

  // Rounds masters as `precision.master_weights: false` asks and publishes them: once before the first step.
  absl::Status Prepare();

  // The schedule's rate after `applied_steps` applied ones.
  double LearningRate(int64_t applied_steps) const { return optim::LearningRate(schedule_, applied_steps); }
  const optim::LossScaleConfig& loss_scale() const { return loss_scale_; }
  // What `batch` is run with, but for the loss seed and the micro-batch's first sample.
  runtime::StepState StateOf(const data::Batch& batch) const;

 private:
  // What a batch came to before anything is decided; of all replicas, once they agree.
  struct Findings {
    double loss = 0;
    runtime::GradientCheck check;
    bool state_finite = true;
  };
  absl::Status Agree(Findings* findings) const;
  // What follows the check. `state`: this replica's own.
  absl::StatusOr<StepResult> Finish(const data::Batch& batch, const Findings& found,
                                    const absl::optional<NonFinite>& state, optim::LossScalerState* scaler);
  // Of the first replica that has one.
  absl::StatusOr<absl::optional<NonFinite>> FirstOf(const absl::optional<NonFinite>& own) const;
  absl::optional<NonFinite> BadStateOf(const runtime::StepRecord& record) const;
  absl::Status Apply(const runtime::GradientCheck& check, const optim::LossScalerState& scaler, StepResult* result);
  absl::StatusOr<NonFinite> Attribute(const data::Batch& batch, const runtime::GradientCheck& check,
                                      const absl::optional<NonFinite>& state, const StepResult& result) const;
  // What a replay of the skipped step finds, on the first replica that finds something.
  absl::StatusOr<absl::optional<NonFinite>> Replay(const data::Batch& batch, const StepResult& result,
                                                   bool gradients_only) const;
  // The smallest scale that the scaler may come to, or 1, if that is less.
  float LeastScale() const;
  // Runs the skipped step once more at LeastScale(): whether all gradients, of all replicas, are finite then. False
  // where the step ran at it.
  absl::StatusOr<bool> IsFiniteAtTheLeast(const data::Batch& batch, const StepResult& result) const;
  NonFinite WithoutReplay(const runtime::GradientCheck& check, const absl::optional<NonFinite>& state,
                          const StepResult& result) const;

  // Nothing without a profiler.
  void Profile(StepPart part) const;

  const optim::LossScaleConfig loss_scale_;
  const optim::ScheduleConfig schedule_;
  const double clip_norm_;  // 0: none
  const uint64_t seed_;
  PlannedModel* plan_;
  const size_t phase_index_;
  const PlannedPhase* phase_;
  LoadedModel* model_;
  runtime::Collective* collective_;  // null: there is one replica
  MicroBatches micro_batches_;
  StepProfiler* profiler_ = nullptr;
  // Of several replicas; by plan of the phase.
  std::vector<runtime::GradientReducer> reducers_;
  // In backward order.
  std::vector<runtime::ArenaSlot> slots_;
  runtime::UpdateArgs update_;
};

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_STEP_RUNNER_H_
