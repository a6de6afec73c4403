// One set of FP8 scales for all replicas of a training.
#ifndef AMPD_ENGINE_TRAIN_FP8_AGREEMENT_H_
#define AMPD_ENGINE_TRAIN_FP8_AGREEMENT_H_

#include "absl/status/status.h"
#include "engine/runtime/collective.h"
#include "engine/runtime/model_memory.h"

namespace ampd::train {

// Makes the histories of amax in the pending state of `memory` those of all replicas together: each entry the largest
// of the replicas' (which recorded equally many), and the scale that follows from the larger history. So every replica
// quantizes alike, and a resumed training goes on from the one copy in a checkpoint. Nothing happens, and nobody is
// waited for, where the model has none. Each replica calls it, with models of one layout. Errors are the group's and
// the memory's.
absl::Status AgreeOnFp8Scales(runtime::Collective* collective, runtime::ModelMemory* memory);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_FP8_AGREEMENT_H_
