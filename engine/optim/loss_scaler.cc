#include "engine/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace ampd::optim {
namespace {

float Bounded(double scale) { return static_cast<float>(std::clamp<double>(scale, kSmallestScale, kLargestScale)); }

float Floor(const LossScaleConfig& config) { return Bounded(config.min); }

float Grown(const LossScaleConfig& config, float scale) {
  const float ceiling = std::max(Bounded(config.max), Floor(config));
  return std::max(scale, std::min(ceiling, Bounded(static_cast<double>(scale) * config.growth_factor)));
}

// A factor so near to 1 that fp32 rounds it away must still lower the scale, or calibration would never end.
float Lowered(const LossScaleConfig& config, float scale) {
  const float lowered =
      std::min(Bounded(static_cast<double>(scale) * config.backoff_factor), std::nextafter(scale, 0.0f));
  return std::max(Floor(config), lowered);
}

void Apply(const LossScaleConfig& config, LossScalerState* state) {
  ++state->steps_applied;
  if (config.hysteresis_refill == HysteresisRefill::kOnAppliedStep) state->hysteresis_left = config.hysteresis;
  if (++state->good_steps < config.growth_interval || config.kind != LossScaleKind::kDynamic) return;
  state->good_steps = 0;
  state->hysteresis_left = config.hysteresis;
  state->scale = Grown(config, state->scale);
}

ScalerDecision AtFloor(const LossScaleConfig& config, const LossScalerState& state) {
  switch (config.on_floor) {
    case OnFloor::kHold:
      return ScalerDecision::kSkip;
    case OnFloor::kFallbackBf16:
      return ScalerDecision::kFallBack;
    case OnFloor::kRollback:
      return state.rollbacks < config.max_rollbacks ? ScalerDecision::kRollBack : ScalerDecision::kFail;
    case OnFloor::kFail:
      break;
  }
  return ScalerDecision::kFail;
}

ScalerDecision LowerAfterOverflow(const LossScaleConfig& config, LossScalerState* state) {
  state->hysteresis_left = std::max<int64_t>(state->hysteresis_left - 1, 0);
  if (state->hysteresis_left > 0) return ScalerDecision::kSkip;
  if (state->scale <= Floor(config)) return AtFloor(config, *state);
  state->scale = Lowered(config, state->scale);
  return ScalerDecision::kSkip;
}

}  // namespace

LossScalerState InitialScalerState(const LossScaleConfig& config) {
  LossScalerState state;
  state.scale = config.kind == LossScaleKind::kNone ? 1.0f : Bounded(config.init);
  state.hysteresis_left = config.hysteresis;
  return state;
}

ScalerDecision Update(const LossScaleConfig& config, const StepOutcome& outcome, int64_t step, LossScalerState* state) {
  if (outcome.loss_finite && outcome.gradients_finite) {
    Apply(config, state);
    return ScalerDecision::kApply;
  }
  ++state->steps_skipped;
  state->last_overflow_step = step;
  state->good_steps = 0;
  if (!outcome.loss_finite || config.kind != LossScaleKind::kDynamic) return ScalerDecision::kSkip;
  return LowerAfterOverflow(config, state);
}

void FallBack(LossScalerState* state) {
  const LossScalerState off = InitialScalerState({});
  state->scale = off.scale;
  state->good_steps = 0;
  state->hysteresis_left = off.hysteresis_left;
  state->fell_back = true;
}

void RollBack(const LossScaleConfig& config, const LossScalerState& before, LossScalerState* state) {
  const LossScalerState fresh = InitialScalerState(config);
  state->scale = fresh.scale;
  state->good_steps = 0;
  state->hysteresis_left = fresh.hysteresis_left;
  state->rollbacks = before.rollbacks + 1;
}

}  // namespace ampd::optim
