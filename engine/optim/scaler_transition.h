// The loss scaler's transition, as one function every backend shares; loss_scaler.h is its contract (Update).
#ifndef AMPD_ENGINE_OPTIM_SCALER_TRANSITION_H_
#define AMPD_ENGINE_OPTIM_SCALER_TRANSITION_H_

#include <bit>
#include <cstdint>

#include "engine/core/host_device.h"
#include "engine/optim/loss_scaler.h"

namespace ampd::optim::transition {

AMPD_HOST_DEVICE inline float Bounded(double scale) {
  const double low = kSmallestScale, high = kLargestScale;
  return static_cast<float>(scale < low ? low : (scale > high ? high : scale));
}

AMPD_HOST_DEVICE inline float Floor(const LossScaleConfig& config) { return Bounded(config.min); }

AMPD_HOST_DEVICE inline float Grown(const LossScaleConfig& config, float scale) {
  const float floor = Floor(config), max = Bounded(config.max);
  const float ceiling = max > floor ? max : floor;
  const float product = Bounded(static_cast<double>(scale) * config.growth_factor);
  const float grown = product < ceiling ? product : ceiling;
  return grown > scale ? grown : scale;
}

// A factor so near to 1 that fp32 rounds it away must still lower the scale, or calibration would never end.
AMPD_HOST_DEVICE inline float Lowered(const LossScaleConfig& config, float scale) {
  // The scale is a positive normal number: the one below it.
  const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 1);
  const float product = Bounded(static_cast<double>(scale) * config.backoff_factor);
  const float lowered = product < below ? product : below;
  const float floor = Floor(config);
  return lowered > floor ? lowered : floor;
}

AMPD_HOST_DEVICE inline void Apply(const LossScaleConfig& config, LossScalerState* state) {
  ++state->steps_applied;
  if (config.hysteresis_refill == HysteresisRefill::kOnAppliedStep) state->hysteresis_left = config.hysteresis;
  if (++state->good_steps < config.growth_interval || config.kind != LossScaleKind::kDynamic) return;
  state->good_steps = 0;
  state->hysteresis_left = config.hysteresis;
  state->scale = Grown(config, state->scale);
}

AMPD_HOST_DEVICE inline ScalerDecision AtFloor(const LossScaleConfig& config, const LossScalerState& state) {
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

AMPD_HOST_DEVICE inline ScalerDecision LowerAfterOverflow(const LossScaleConfig& config, LossScalerState* state) {
  state->hysteresis_left = state->hysteresis_left > 1 ? state->hysteresis_left - 1 : 0;
  if (state->hysteresis_left > 0) return ScalerDecision::kSkip;
  if (state->scale <= Floor(config)) return AtFloor(config, *state);
  state->scale = Lowered(config, state->scale);
  return ScalerDecision::kSkip;
}

AMPD_HOST_DEVICE inline ScalerDecision Update(const LossScaleConfig& config, const StepOutcome& outcome, int64_t step,
                                              LossScalerState* state) {
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

}  // namespace ampd::optim::transition

#endif  // AMPD_ENGINE_OPTIM_SCALER_TRANSITION_H_
