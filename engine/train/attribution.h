// Where a skipped step first went wrong.
#ifndef AMPD_ENGINE_TRAIN_ATTRIBUTION_H_
#define AMPD_ENGINE_TRAIN_ATTRIBUTION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
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

// Found in what the backward pass writes.
bool IsOfTheGradient(v1::OverflowSkip::Stage stage);

// Looks at tensors in the order in which they are written and keeps the first find. Thread-compatible.
class NonFiniteSearch {
 public:
  // `backend` outlives it. `gradients_only`: After() looks at nothing but what the backward pass writes.
  explicit NonFiniteSearch(runtime::Backend* backend, bool gradients_only = false)
      : backend_(backend), gradients_only_(gradients_only) {}

  // Blames `name` and `stage` if `tensor`, in the backend's memory, is the first that is not finite. Errors are the
  // backend's.
  absl::Status Look(const TensorView& tensor, v1::OverflowSkip::Stage stage, absl::string_view name);
  // The same for f32 on the host.
  void LookOnHost(absl::Span<const float> values, v1::OverflowSkip::Stage stage, absl::string_view name);
  // Looks at what a step has written; for runtime::Executor::Hook. A gradient that became non-finite by being added to
  // others is REDUCE; else the stage is the step's own. CANCELLED, to end the run, once something is found.
  absl::Status After(const runtime::PlanStep& step, absl::Span<const TensorView> outputs);

  const absl::optional<NonFinite>& find() const { return find_; }

 private:
  runtime::Backend* backend_;
  bool gradients_only_;
  absl::optional<NonFinite> find_;
};

// The first of the model's pending untrained states (running statistics) that is not finite; nullopt when all are.
absl::StatusOr<absl::optional<NonFinite>> FindNonFiniteState(runtime::Backend* backend, runtime::ModelMemory* memory);

// Runs a skipped step once more, on unchanged parameters, the same batch, the same `state` and loss scale, and looks at
// every tensor after the kernel that wrote it. A sum over micro-batches that overflows though every part was finite is
// REDUCE. nullopt when nothing is found. Overwrites gradients and pending state. `gradients_only`: GRADIENT and REDUCE
// are looked for alone.
absl::StatusOr<absl::optional<NonFinite>> ReplayForNonFinite(const MicroBatches& step, const data::Batch& batch,
                                                             const runtime::StepState& state, float loss_scale,
                                                             bool gradients_only = false);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_ATTRIBUTION_H_
