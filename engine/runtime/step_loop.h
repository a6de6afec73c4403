// Steps that a device takes by itself. The host feeds batches and launches steps ahead; whether a step is applied, what
// becomes of the loss scale and which learning rate comes next is decided on the device, and what it decided comes back
// in records. What it cannot decide, it stops at.
#ifndef AMPD_ENGINE_RUNTIME_STEP_LOOP_H_
#define AMPD_ENGINE_RUNTIME_STEP_LOOP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/optim/loss_scaler.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/model_memory.h"
#include "engine/runtime/stored_samples.h"

namespace ampd::runtime {

// What one phase's part of a step came to. Plain: devices write it.
struct StepRecord {
  // The step, from 0, and the phase.
  uint64_t attempted_step = 0;
  int32_t phase = 0;
  // False: the step was not applied, and what that means for the scale needs a replay. Nothing has changed: no counter,
  // no parameter; steps launched behind it do nothing and leave no record.
  bool decided = true;
  optim::ScalerDecision decision = optim::ScalerDecision::kApply;
  // Mean over the batch, unscaled.
  double loss = 0;
  GradientCheck check;
  // The first untrained state (an index into ModelLayout::states()) whose new value is not finite, and whether a NaN
  // stands first there; -1: none.
  int32_t first_bad_state = -1;
  bool first_bad_state_is_nan = false;
  // Of an applied step: the rate used.
  float learning_rate = 0;
  float scale_before = 1;
  // After the step; of an undecided one, before it.
  optim::LossScalerState scaler;
};

// A micro-batch's part in the mean over the batch is weight / total.
struct MicroBatchWeight {
  double weight = 1;
  double total = 1;
};

// One input of a step: the plan's inputs of this name, one after the other for every micro-batch, dense.
struct FedInput {
  absl::string_view name;
  const void* data = nullptr;
  int64_t bytes = 0;
};

struct StepLoopPhase {
  // By bucket: runs one micro-batch forward and backward; its plan has the output "loss". Borrowed.
  std::vector<Executor*> executors;
  optim::LossScaleConfig loss_scale;
  // 0: none.
  double clip_norm = 0;
  // Its scalars are not looked at.
  UpdateArgs update;
  // Gradients, in backward order.
  std::vector<ArenaSlot> slots;
  // The numbers of the update that follows so many applied ones; gradient_factor is the device's to fill in. Pure.
  std::function<optim::UpdateScalars(int64_t applied_steps)> scalars;
};

// How the steps of a loop reach the device.
enum class StepLaunch {
  // As kResident or as kCaptured, whichever is measured to be faster before the first step; the same for later loops
  // of the network where the backend keeps what it measures.
  kFastest,
  // Steps of a small network many in one kernel, which keeps the network on one multiprocessor; where the device or the
  // network has no such kernel, as kCaptured. Products and sums are added up in another order than kCaptured's, the
  // same in every run.
  kResident,
  // As kResident, but each of the plan's steps interpreted, dense layers too, which kResident takes together where it
  // can: to compare with.
  kInterpreted,
  // Each step captured once and replayed.
  kCaptured,
  // Kernels launched one by one, to look at a step with a debugger.
  kEnqueued,
};

struct StepLoopConfig {
  // Borrowed. Everything in `phases` belongs to it.
  ModelMemory* memory = nullptr;
  std::vector<StepLoopPhase> phases;
  // Of every step.
  int64_t micro_batches = 1;
  int64_t micro_batch_size = 1;
  uint64_t seed = 0;
  StepLaunch launch = StepLaunch::kCaptured;
  // What the loop is to keep on the device where it can, so that steps are fed by numbers of samples; null: nothing.
  // Read while the loop is made.
  const StoredSamples* samples = nullptr;
};

// Thread-compatible, as the backend that made it, which outlives it. Errors are the device's and name the step where
// that is known; after one, nothing more can be done with the loop.
class StepLoop {
 public:
  virtual ~StepLoop() = default;

  // How it takes its steps: as the config says, but where that says kResident or kInterpreted kCaptured if the network
  // or the device has no such kernel, and kInterpreted if it has no dense layers that are taken together; and one of
  // all these where it says kFastest.
  virtual StepLaunch launch() const = 0;

  // OK: the config's samples lie on the device, and steps are fed by FeedSamples(). Else why not, and they are fed by
  // Feed(): no device runs out of memory for samples.
  virtual absl::Status samples() const { return absl::UnimplementedError("none are kept on this device"); }

  // What a training's log should say of how the device computes it: a sentence each, none on most devices.
  virtual std::vector<std::string> notes() const { return {}; }

  // Batches that can be fed and not yet recorded.
  virtual int64_t slots() const = 0;

  // Goes on from step `attempted_step` with these scalers, by phase, on the parameters as they are. Nothing may be in
  // flight; batches fed for this step and later ones stay fed.
  virtual absl::Status Start(uint64_t attempted_step, absl::Span<const optim::LossScalerState> scalers) = 0;

  // The batch of the step after the one fed last (at first: of the one it starts from), and by phase and micro-batch
  // its weights. Inputs that no plan has are passed over. The memory was read when it returns. FAILED_PRECONDITION:
  // no slot is free. INVALID_ARGUMENT: an input is missing, or of another size than the plan's.
  virtual absl::Status Feed(size_t bucket, absl::Span<const FedInput> inputs,
                            absl::Span<const MicroBatchWeight> weights) = 0;

  // As Feed(), of a batch of these samples; slots hold the same bits then. INVALID_ARGUMENT: there is no such sample,
  // or not a batch of them.
  virtual absl::Status FeedSamples(absl::Span<const int64_t> /*samples*/,
                                   absl::Span<const MicroBatchWeight> /*weights*/) {
    return samples();
  }

  // Takes the next `steps` fed steps, all of one bucket, each with the phases whose bits are set, in order. Returns at
  // once. FAILED_PRECONDITION: not so many are fed and not launched.
  virtual absl::Status Launch(size_t bucket, uint64_t phases, int64_t steps) = 0;

  // The next record, in order; waits for it. nullopt: all that was launched is done and recorded, or undone by an
  // undecided step.
  virtual absl::StatusOr<absl::optional<StepRecord>> Next() = 0;
};

}  // namespace ampd::runtime

#endif  // AMPD_ENGINE_RUNTIME_STEP_LOOP_H_
