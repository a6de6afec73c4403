// The loss scaler: which steps are applied, and how the scale moves. A pure transition over a small state.
#ifndef AMPD_ENGINE_OPTIM_LOSS_SCALER_H_
#define AMPD_ENGINE_OPTIM_LOSS_SCALER_H_

#include <cstdint>

namespace ampd::optim {

enum class LossScaleKind : uint8_t {
  kNone,     // the scale is 1
  kStatic,   // the scale is `init`; a step that overflows is still skipped
  kDynamic,  // falls when gradients overflow, rises after a run of clean steps
};

// The scale and its reciprocal are normal fp32 numbers within these.
inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kLargestScale = 0x1p126f;

// Constants of a phase. Defaults are PyTorch's GradScaler's, and Megatron's for hysteresis.
struct LossScaleConfig {
  LossScaleKind kind = LossScaleKind::kNone;
  double init = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // >= 1
  double min = 1;
  double max = 0x1p126;
  int64_t hysteresis = 1;  // >= 1
};

// Everything the scaler remembers; saved in checkpoints.
struct LossScalerState {
  float scale = 1;
  // Applied steps in a row since the scale last grew or a step was skipped.
  int64_t good_steps = 0;
  // Overflows until the scale is lowered; refilled by an applied step.
  int64_t hysteresis_left = 1;
  int64_t steps_applied = 0;
  int64_t steps_skipped = 0;
  // Attempted step, from 1, of the newest skip; 0: none.
  int64_t last_overflow_step = 0;

  bool operator==(const LossScalerState&) const = default;
};

struct StepOutcome {
  bool loss_finite = true;
  bool gradients_finite = true;
};

enum class ScalerDecision : uint8_t {
  kApply,
  kSkip,
  // Skip, and the scale would have to fall below `min`: what happens next is the phase's on_floor policy.
  kFloor,
};

// Before the first step.
LossScalerState InitialScalerState(const LossScaleConfig& config);

// What becomes of attempted step `step` (from 1), and the state after it:
//  - all finite: applied. hysteresis_left is refilled. Dynamic: after growth_interval good steps in a row the scale is
//    multiplied by growth_factor, never above max (the product is taken in double and cannot overflow).
//  - loss not finite: skipped. No scale cures that, so scale and hysteresis stay.
//  - gradients not finite, loss finite: skipped. Dynamic: hysteresis_left falls by one; once it is 0, each overflow
//    multiplies the scale by backoff_factor, never below min; at min already, kFloor.
// A skip of either kind sets good_steps to 0: growth asks for applied steps in a row, and values that overflow the
// forward pass are no sign that there is room for a larger scale.
ScalerDecision Update(const LossScaleConfig& config, const StepOutcome& outcome, int64_t step, LossScalerState* state);

}  // namespace ampd::optim

#endif  // AMPD_ENGINE_OPTIM_LOSS_SCALER_H_
