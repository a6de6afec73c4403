// Where a skipped step first went wrong.
#ifndef AMPD_ENGINE_TRAIN_ATTRIBUTION_H_
#define AMPD_ENGINE_TRAIN_ATTRIBUTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ampd/v1/event.pb.h"
#include "engine/data/loader.h"
#include "engine/train/micro_batches.h"

namespace ampd::train {

struct NonFinite {
  v1::OverflowSkip::Stage stage = v1::OverflowSkip::STAGE_UNSPECIFIED;
  std::string tensor;
  v1::OverflowSkip::Kind kind = v1::OverflowSkip::KIND_UNSPECIFIED;
};

v1::OverflowSkip::Kind KindOf(bool is_nan);

// The first of the model's pending untrained states (running statistics) that is not finite; nullopt when all are.
absl::StatusOr<absl::optional<NonFinite>> FindNonFiniteState(runtime::Backend* backend, runtime::ModelMemory* memory);

// Runs a skipped step once more, on unchanged parameters, the same batch, the same `state` and loss scale, and looks at
// every tensor after the kernel that wrote it. A sum over micro-batches that overflows though every part was finite is
// REDUCE. nullopt when nothing is found. Overwrites gradients and pending state.
absl::StatusOr<absl::optional<NonFinite>> ReplayForNonFinite(const MicroBatches& step, const data::Batch& batch,
                                                             const runtime::StepState& state, float loss_scale);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_ATTRIBUTION_H_
