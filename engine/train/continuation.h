// A training that goes on where another job's stands (JobSpec.start_from.continue_training).
#ifndef AMPD_ENGINE_TRAIN_CONTINUATION_H_
#define AMPD_ENGINE_TRAIN_CONTINUATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/train/checkpoint.h"
#include "engine/train/train_state.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// What the data makes of a spec.
struct TrainingLength {
  // In all.
  int64_t steps = 0;
  // Of the training set.
  int64_t samples = 0;
  // As InputNotes has them; nullopt: not known, as data.eval, which they may follow from, cannot be read yet.
  std::optional<std::vector<int64_t>> length_buckets = std::vector<int64_t>();
};

// Whether a training of `spec`, so long, may go on from `state`: whether every number that the state and the
// tensors beside it stand for means the same in both. INVALID_ARGUMENT with the fields of `spec` that do not allow it:
// start_from.continue_training, with up to five that differ and both values, or because the state does not tell of its
// spec or tells of one that this build refuses; data.train where it has another number of samples, and
// data.length_buckets where its sequences fall into others, in which the place would be another; and train.epochs or
// train.steps where no step is left.
absl::Status CheckContinues(const TrainState& state, const ResolvedJobSpec& spec, const TrainingLength& length);

// The same of the checkpoint that was held for the job in `folder`, whose tensors are not read; and whether
// model.onnx.path is the file that was trained, as it was read last. DATA_LOSS and UNAVAILABLE as ReadTrainState().
absl::Status CheckContinues(const std::string& folder, const ResolvedJobSpec& spec, const TrainingLength& length);

// The checkpoint that was held for the job in `folder`, once it may be continued; without what its own job went by and
// this one begins anew: the best evaluation so far, what early stopping counted, rollbacks, the skips that limits look
// at; and with that job's counts as inherited ones. Errors carry a failure class.
absl::StatusOr<LoadedCheckpoint> LoadContinued(const std::string& folder, const ResolvedJobSpec& spec,
                                               const TrainingLength& length);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CONTINUATION_H_
