#include "engine/train/attribution.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/core/status.h"

namespace ampd::train {
namespace {

v1::OverflowSkip::Stage StageOf(const runtime::PlanStep& step) {
  // Its input was looked at when it was written: what overflowed is the sum.
  if (step.op == ir::OpKind::kAccumulateGrad) return v1::OverflowSkip::REDUCE;
  switch (step.stage) {
    case ir::Stage::kInput:
      return v1::OverflowSkip::INPUT;
    case ir::Stage::kForward:
      return v1::OverflowSkip::FORWARD;
    case ir::Stage::kLoss:
      return v1::OverflowSkip::LOSS;
    case ir::Stage::kGradient:
      return v1::OverflowSkip::GRADIENT;
  }
  return v1::OverflowSkip::STAGE_UNSPECIFIED;
}

}  // namespace

v1::OverflowSkip::Kind KindOf(bool is_nan) { return is_nan ? v1::OverflowSkip::KIND_NAN : v1::OverflowSkip::KIND_INF; }

bool IsOfTheGradient(v1::OverflowSkip::Stage stage) {
  return stage == v1::OverflowSkip::GRADIENT || stage == v1::OverflowSkip::REDUCE;
}

absl::Status NonFiniteSearch::Look(const TensorView& tensor, v1::OverflowSkip::Stage stage, absl::string_view name) {
  bool found = false, is_nan = false;
  if (find_.has_value()) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(backend_->FindNonFinite(tensor, &found, &is_nan));
  if (found) find_ = NonFinite{stage, std::string(name), KindOf(is_nan)};
  return absl::OkStatus();
}

void NonFiniteSearch::LookOnHost(absl::Span<const float> values, v1::OverflowSkip::Stage stage,
                                 absl::string_view name) {
  if (find_.has_value()) return;
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  if (bad != values.end()) find_ = NonFinite{stage, std::string(name), KindOf(std::isnan(*bad))};
}

absl::Status NonFiniteSearch::After(const runtime::PlanStep& step, absl::Span<const TensorView> outputs) {
  const v1::OverflowSkip::Stage stage = StageOf(step);
  if (gradients_only_ && !IsOfTheGradient(stage)) return absl::OkStatus();
  for (size_t i = 0; i < outputs.size(); ++i) {
    AMPD_RETURN_IF_ERROR(Look(outputs[i], stage, step.outputs[i].name));
  }
  return find_.has_value() ? absl::CancelledError("found") : absl::OkStatus();
}

absl::StatusOr<absl::optional<NonFinite>> FindNonFiniteState(runtime::Backend* backend, runtime::ModelMemory* memory) {
  const runtime::ModelLayout& layout = memory->layout();
  NonFiniteSearch search(backend);
  for (size_t i = 0; i < layout.states().size(); ++i) {
    const ir::Persistent& state = layout.states()[i];
    const TensorView pending{memory->pending_state() + layout.state_offsets()[i], state.type.dtype, state.type.shape};
    AMPD_RETURN_IF_ERROR(search.Look(pending, v1::OverflowSkip::FORWARD, state.name));
  }
  return search.find();
}

absl::StatusOr<absl::optional<NonFinite>> ReplayForNonFinite(const MicroBatches& step, const data::Batch& batch,
                                                             const runtime::StepState& state, float loss_scale,
                                                             bool gradients_only) {
  AMPD_RETURN_IF_ERROR(CheckRead(batch));
  runtime::Backend* backend = step.model_plan().backend.get();
  NonFiniteSearch search(backend, gradients_only);
  // The whole batch first: an infinite input makes every later tensor look guilty.
  const auto reads = [&step, gradients_only](absl::string_view name) {
    const std::vector<runtime::PlannedTensor>& inputs = step.plan().inputs;
    return !gradients_only &&
           std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) { return input.name == name; });
  };
  if (reads("x")) search.LookOnHost(batch.inputs.as<float>(), v1::OverflowSkip::INPUT, "x");
  if (reads("targets") && !batch.targets.shape().empty()) {
    search.LookOnHost(batch.targets.as<float>(), v1::OverflowSkip::INPUT, "targets");
  }
  if (search.find().has_value()) return search.find();
  const absl::Status status =
      step.Run(batch, state, loss_scale,
               [&search](const runtime::PlanStep& planned, absl::Span<const TensorView> outputs) {
                 return search.After(planned, outputs);
               })
          .status();
  if (search.find().has_value()) return search.find();
  AMPD_RETURN_IF_ERROR(status);
  if (gradients_only) return absl::optional<NonFinite>();
  return FindNonFiniteState(backend, &step.model()->memory);
}

}  // namespace ampd::train
