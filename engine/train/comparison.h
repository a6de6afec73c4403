// Several modes of a job measured against each other at one batch size.
#ifndef AMPD_ENGINE_TRAIN_COMPARISON_H_
#define AMPD_ENGINE_TRAIN_COMPARISON_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "engine/train/measured_run.h"
#include "engine/train/turns.h"

namespace ampd::train {

struct ComparisonOptions {
  // The trainer's own; `devices` of one at most.
  TrainerOptions trainer;
  int64_t batch_size = 1;
  std::vector<v1::PrecisionSpec::Mode> modes;
  // Attempted steps that are not measured, and those that are.
  int64_t warmup_steps = 0;
  int64_t steps = 1;
  // Steps are counted as they are applied: the first fifth of `steps` is not timed, the loss is that of the last half,
  // and a mode that skips more than `steps` has diverged.
  bool applied_steps = false;
  // Whether FP16's flushed gradients are counted.
  bool underflow = false;
  TurnOptions turns;
};

// Measures `spec` in every mode as MeasureInTurn() does; a cell for each, in their order. `data` as MeasuredRun's.
absl::StatusOr<std::vector<v1::BenchCell>> CompareModes(const ResolvedJobSpec& spec, const TrainingData& data,
                                                        const ComparisonOptions& options);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_COMPARISON_H_
