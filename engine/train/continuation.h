// A training that goes on where another job's stands (JobSpec.start_from.continue_training).
#ifndef AMPD_ENGINE_TRAIN_CONTINUATION_H_
#define AMPD_ENGINE_TRAIN_CONTINUATION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/train/checkpoint.h"
#include "engine/train/train_state.h"
#include "proto/spec/resolve.h"

namespace ampd::train {

// Whether a training of `spec`, `total_steps` long, may go on from `state`: whether every number that the state and the
// tensors beside it stand for means the same in both. INVALID_ARGUMENT with the fields of `spec` that do not allow it:
// start_from.continue_training, with up to five that differ and both values, or because the state does not tell of its
// spec or tells of one that this build refuses; and train.epochs or train.steps where no step is left.
absl::Status CheckContinues(const TrainState& state, const ResolvedJobSpec& spec, int64_t total_steps);

// The same of the checkpoint that was held for the job in `folder`; its tensors are not read. DATA_LOSS and UNAVAILABLE
// as ReadTrainState().
absl::Status CheckContinues(const std::string& folder, const ResolvedJobSpec& spec, int64_t total_steps);

// The checkpoint that was held for the job in `folder`, once it may be continued; without what its own job went by and
// this one begins anew: the best evaluation so far, and what early stopping counted. Errors carry a failure class.
absl::StatusOr<LoadedCheckpoint> LoadContinued(const std::string& folder, const ResolvedJobSpec& spec,
                                               int64_t total_steps);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CONTINUATION_H_
