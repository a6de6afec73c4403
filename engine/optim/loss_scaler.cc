#include "engine/optim/loss_scaler.h"

#include "engine/optim/scaler_transition.h"

namespace ampd::optim {

LossScalerState InitialScalerState(const LossScaleConfig& config) {
  LossScalerState state;
  state.scale = config.kind == LossScaleKind::kNone ? 1.0f : transition::Bounded(config.init);
  state.hysteresis_left = config.hysteresis;
  return state;
}

ScalerDecision Update(const LossScaleConfig& config, const StepOutcome& outcome, int64_t step, LossScalerState* state) {
  return transition::Update(config, outcome, step, state);
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
