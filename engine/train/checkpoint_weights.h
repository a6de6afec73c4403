// Reads the weights of one checkpoint, wherever its folder lies; implemented in checkpoint.cc.
#ifndef AMPD_ENGINE_TRAIN_CHECKPOINT_WEIGHTS_H_
#define AMPD_ENGINE_TRAIN_CHECKPOINT_WEIGHTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/core/safetensors.h"
#include "engine/train/train_state.h"

namespace ampd::train {

// The weights in the folder of a checkpoint, or with `ema` their running average, each with untrained state; compared
// with MANIFEST. Changes nothing there, and does not ask what spec the checkpoint is of. NOT_FOUND when there is no
// such folder, DATA_LOSS naming what is damaged, UNAVAILABLE naming what cannot be read, FAILED_PRECONDITION when it
// has no running average.
absl::StatusOr<Safetensors> ReadWeights(const std::string& folder, bool ema);

// The state of the training that wrote the checkpoint. As ReadWeights().
absl::StatusOr<TrainState> ReadTrainState(const std::string& folder);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_CHECKPOINT_WEIGHTS_H_
